// Package attack holds no code, only tests: each tries inside a real sandbox what hostile code would try, on our own gVisor and, by TestOnDocker, in containers on runc and on
// runsc, and asserts that the host and the neighbours are unharmed and that the session lives on. The list of attacks is in docs/SECURITY.md.
package attack
