// Package attack holds no code, only tests: each tries inside a real gVisor sandbox what hostile code would try, and asserts
// that the host and the neighbours are unharmed and that the session lives on. The list of attacks is in docs/SECURITY.md.
package attack
