// Package attack contains only tests. Each test runs code of an attacker in a real sandbox, on our own gVisor and, in
// TestOnDocker, in containers with runc and runsc. It asserts that the host and other sandboxes are unharmed and that
// the session continues. docs/SECURITY.md lists the attacks.
package attack
