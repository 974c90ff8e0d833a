package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

// maxName is the longest name that DNS can carry, without the final dot.
const maxName = 253

// NormalizeName returns name in the form in which names are compared: ASCII (punycode), lower case, without the final
// dot. It does not accept addresses, nor numbers that some programs read as addresses (2130706433, 0x7f.1, 127.1).
func NormalizeName(name string) (string, error) {
	if len(name) > 4*maxName { // before idna, which is slow with long input
		return "", errors.New("the name is too long")
	}
	if !isASCII(name) {
		ascii, err := idna.Lookup.ToASCII(name)
		if err != nil {
			return "", fmt.Errorf("the name has no ASCII form: %w", err)
		}
		name = ascii
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "" || len(name) > maxName {
		return "", errors.New("a name has 1 to 253 characters")
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return "", errors.New("each part of a name has 1 to 63 characters")
		}
		for _, c := range []byte(label) {
			if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
				return "", fmt.Errorf("invalid character %q", c)
			}
		}
		if label[0] == '-' || label[len(label)-1] == '-' {
			return "", errors.New("a part of the name begins or ends with a hyphen")
		}
		last = label
	}
	if isNumber(last) {
		return "", errors.New("the last part is a number, which programs read as an address in different ways")
	}
	return name, nil
}

// isNumber reports whether inet_aton and URL parsers read label as a number.
func isNumber(label string) bool {
	digits, hex := strings.CutPrefix(label, "0x")
	for _, c := range []byte(digits) {
		if !('0' <= c && c <= '9' || hex && 'a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// NameClass tells names of the public DNS from others.
type NameClass string

// The classes of names. The preset public allows public names only.
const (
	NamePublic  NameClass = "public"
	NameSingle  NameClass = "single-label" // found in /etc/hosts or by the host's search domains
	NameSpecial NameClass = "special-use"  // RFC 6761 and its like: never in the public DNS
)

// specialUse are the top-level domains of names that the public DNS does not have.
var specialUse = map[string]bool{
	"localhost": true, "local": true, "localdomain": true, "internal": true, "intranet": true, "private": true,
	"corp": true, "home": true, "lan": true, "onion": true, "alt": true, "arpa": true,
	"test": true, "invalid": true, "example": true,
}

// ClassifyName returns the class of a normalized name.
func ClassifyName(name string) NameClass {
	switch i := strings.LastIndexByte(name, '.'); {
	case specialUse[name[i+1:]]:
		return NameSpecial
	case i < 0:
		return NameSingle
	}
	return NamePublic
}

// host is what a connection is opened to: a name or an address.
type host struct {
	name string     // normalized; empty: an address
	addr netip.Addr // of a literal; unmapped, without zone
}

func (h host) literal() bool { return h.addr.IsValid() }

func (h host) String() string {
	if h.literal() {
		return h.addr.String()
	}
	return h.name
}

// withPort returns the host and a port as a target of a rule.
func (h host) withPort(port uint16) string {
	switch {
	case port == 80 || port == 443:
		return h.String()
	case h.addr.Is6():
		return fmt.Sprintf("[%s]:%d", h, port)
	}
	return fmt.Sprintf("%s:%d", h, port)
}

// parseHost parses what a guest asks for.
func parseHost(s string) (host, error) {
	if len(s) > 4*maxName {
		return host{}, errors.New("the name is too long")
	}
	if addr, err := netip.ParseAddr(s); err == nil {
		if addr.Zone() != "" {
			return host{}, errors.New("an address with a zone cannot be reached from a sandbox")
		}
		return host{addr: addr.Unmap()}, nil
	}
	name, err := NormalizeName(s)
	return host{name: name}, err
}
