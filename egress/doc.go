// Package egress decides on the host which connections a sandbox may open, and carries them.
//
// A [Policy] is the compiled form of a [v1.Network]. It decides by name and port, before any look-up: a name that is
// not allowed is never resolved, so DNS is no channel out of the sandbox. A [Gateway] belongs to one attachment. It
// resolves allowed names, compares each address with the [Floor] and with the rules for addresses, and dials the
// address that was compared, so a name that changes its address (rebinding) gains nothing.
//
// On port 443 the server name in the ClientHello, and on port 80 the Host of every request, must equal the name that
// was allowed: otherwise a server that hosts many names (a CDN) would be a way to names that are denied (fronting).
// A ClientHello with an encrypted one inside (ECH) is refused unless the policy allows every public name; browsers send
// random values in its place, and therefore need a policy without rules for names, or this feature switched off.
// What is inside TLS is not inspected. Therefore a policy that allows one name of a CDN trusts this CDN to compare the
// Host of encrypted requests with the name in the ClientHello.
//
// The guest is not trusted: names, ports and bytes from it are input of an attacker. Everything that is kept for a
// connection is bounded.
package egress
