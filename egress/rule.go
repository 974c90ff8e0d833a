package egress

import (
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// PortRange is a range of ports, both ends included.
type PortRange struct {
	First, Last uint16
}

var (
	allPorts = []PortRange{{1, math.MaxUint16}}
	webPorts = []PortRange{{80, 80}, {443, 443}} // of a target without ports
)

// Target is the part of a rule that names hosts and ports.
type Target struct {
	Name       string       // normalized name; empty: Prefix
	Subdomains bool         // *.Name and **.Name
	Apex       bool         // Name itself; false for *.Name
	Prefix     netip.Prefix // of addresses
	Ports      []PortRange
	bare       bool // without ports
	text       string
}

// String returns the target as it is written in a rule.
func (t Target) String() string { return t.text }

func (t *Target) matchesName(name string) bool {
	if t.Apex && name == t.Name {
		return true
	}
	rest, ok := strings.CutSuffix(name, t.Name)
	return t.Subdomains && ok && len(rest) > 1 && rest[len(rest)-1] == '.'
}

func (t *Target) matchesPort(port uint16) bool {
	for _, r := range t.Ports {
		if r.First <= port && port <= r.Last {
			return true
		}
	}
	return false
}

// Rule is a parsed [v1.NetworkRule].
type Rule struct {
	Action v1.NetworkAction
	Target Target
}

// String returns the rule as text.
func (r Rule) String() string { return string(r.Action) + " " + r.Target.text }

// ParseRule parses a rule. Errors have the corrected form in their remedy, if there is one.
func ParseRule(rule v1.NetworkRule) (Rule, error) {
	action, target, found := strings.Cut(strings.TrimSpace(string(rule)), " ")
	switch a := v1.NetworkAction(action); {
	case a != v1.NetworkAllow && a != v1.NetworkDeny && a != v1.NetworkAsk:
		return Rule{}, invalid(string(rule), "the rule does not begin with allow, deny or ask",
			"write it like 'allow api.github.com'")
	case !found:
		return Rule{}, invalid(string(rule), "the rule has no target", "write it like 'allow api.github.com'")
	default:
		t, err := ParseTarget(strings.TrimSpace(target))
		if a == v1.NetworkDeny && t.bare {
			t.Ports = allPorts // who denies a host does not mean its web pages only
		}
		return Rule{a, t}, err
	}
}

// ParseTarget parses the target of a rule.
func ParseTarget(text string) (Target, error) {
	switch {
	case text == "":
		return Target{}, invalid(text, "the target is empty", "write a name such as api.github.com")
	case len(text) > 4*maxName:
		return Target{}, invalid(text[:64]+"…", "the target is too long", "")
	case text == "*" || text == "**" || text == "*:*":
		return Target{}, invalid(text, "a wildcard alone would match every host",
			"use --net public for all public hosts, or name a domain: *.example.com")
	case strings.Contains(text, "://"):
		return Target{}, urlInsteadOfTarget(text)
	case strings.ContainsAny(text, " \t\r\n,;"):
		return Target{}, invalid(text, "the target contains a space or a list", "use one rule for each target")
	}
	hostPart, portPart, err := splitPorts(text)
	if err != nil {
		return Target{}, err
	}
	t := Target{text: text, bare: portPart == ""}
	if t.Ports, err = parsePorts(text, hostPart, portPart); err != nil {
		return Target{}, err
	}
	if err := t.parseHost(text, hostPart); err != nil {
		return Target{}, err
	}
	t.text = t.canonical(portPart)
	return t, nil
}

// canonical returns the normalized text of t.
func (t *Target) canonical(ports string) string {
	text := t.Name
	switch {
	case t.Name == "" && t.Prefix.IsSingleIP():
		text = t.Prefix.Addr().String()
	case t.Name == "":
		text = t.Prefix.String()
	case t.Subdomains && t.Apex:
		text = "**." + text
	case t.Subdomains:
		text = "*." + text
	}
	if ports == "" {
		return text
	}
	if t.Name == "" && t.Prefix.Addr().Is6() {
		text = "[" + text + "]"
	}
	return text + ":" + ports
}

// urlInsteadOfTarget returns the error for a URL, with the target that the URL means.
func urlInsteadOfTarget(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return invalid(text, "the target is a URL", "write only the name, and the port if it is not 80 or 443")
	}
	text = u.Redacted()
	target, port := u.Hostname(), u.Port()
	if strings.Contains(target, ":") {
		target = "[" + target + "]"
	}
	if port == "" {
		if known, ok := schemePorts[u.Scheme]; ok {
			port = strconv.Itoa(int(known))
		}
	}
	if port != "" && port != "443" {
		target += ":" + port
	}
	return invalid(text, "the target is a URL", "write "+target)
}

// splitPorts separates the host of a target from its ports.
func splitPorts(text string) (host, ports string, err error) {
	if rest, ok := strings.CutPrefix(text, "["); ok {
		host, after, closed := strings.Cut(rest, "]")
		ports, colon := strings.CutPrefix(after, ":")
		if !closed || after != "" && (!colon || ports == "") {
			return "", "", invalid(text, "the brackets of the IPv6 address are incomplete",
				"write it like [2001:db8::1]:443")
		}
		return host, ports, nil
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return text, "", nil
	}
	if strings.Count(text, ":") == 1 {
		if text[i+1:] == "" {
			return "", "", invalid(text, "the port is missing", "write "+text[:i]+", or :* for all ports")
		}
		return text[:i], text[i+1:], nil
	}
	// An IPv6 address without brackets. If its last part can be a port, only brackets make clear what is meant.
	head, tail := text[:i], text[i+1:]
	_, portErr := strconv.ParseUint(strings.ReplaceAll(tail, "*", "0"), 10, 32)
	if parses6(head) && portErr == nil && tail != "" {
		return "", "", invalid(text, "an IPv6 address with a port needs brackets",
			fmt.Sprintf("write [%s]:%s, or [%s] if the whole text is the address", head, tail, text))
	}
	return text, "", nil
}

// parses6 reports whether s is an IPv6 address or prefix.
func parses6(s string) bool {
	if _, err := netip.ParsePrefix(s); err == nil {
		return true
	}
	_, err := netip.ParseAddr(s)
	return err == nil
}

func parsePorts(text, host, ports string) ([]PortRange, error) {
	switch ports {
	case "":
		return webPorts, nil
	case "*":
		return allPorts, nil
	}
	first, last, isRange := strings.Cut(ports, "-")
	if !isRange {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	switch {
	case errA != nil || errB != nil || a == 0 || b == 0:
		return nil, invalid(text, fmt.Sprintf("invalid port %q", ports),
			fmt.Sprintf("ports are 1 to 65535: write %s:8443, a range such as %s:8000-8100, or %s:*", host, host, host))
	case a > b:
		return nil, invalid(text, "the range of ports is reversed", fmt.Sprintf("write %s:%d-%d", host, b, a))
	}
	return []PortRange{{uint16(a), uint16(b)}}, nil
}

// parseHost sets the name or the prefix of t.
func (t *Target) parseHost(text, host string) error {
	name := host
	switch {
	case strings.HasPrefix(host, "**."):
		t.Subdomains, t.Apex, name = true, true, host[3:]
	case strings.HasPrefix(host, "*."):
		t.Subdomains, name = true, host[2:]
	default:
		t.Apex = true
		if ok, err := t.parsePrefix(text, host); ok || err != nil {
			return err
		}
	}
	wildcard := host[:len(host)-len(name)]
	switch {
	case name == "" && t.Subdomains:
		return invalid(text, "the domain after the wildcard is missing", "write it like *.example.com")
	case strings.Contains(name, "*"):
		return invalid(text, "a wildcard is only possible as the whole first part of a name",
			"write *.example.com for subdomains, **.example.com for the domain too")
	case strings.HasSuffix(name, ".") && len(name) > 1:
		return invalid(text, "the name ends with a dot", "write "+wildcard+strings.TrimRight(name, "."))
	}
	normal, err := NormalizeName(name)
	switch {
	case err != nil:
		return invalid(text, "invalid name: "+err.Error(), "write a name such as api.github.com, or an address such as 192.0.2.7")
	case !isASCII(name):
		return invalid(text, "the name is not ASCII, and letters of different scripts can look the same",
			"write its DNS form: "+wildcard+normal)
	}
	t.Name = normal
	return nil
}

// parsePrefix sets the prefix of t, if host is an address or a prefix.
func (t *Target) parsePrefix(text, host string) (bool, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" {
			return false, invalid(text, "an address with a zone cannot be reached from a sandbox", "")
		}
		addr = addr.Unmap()
		t.Prefix = netip.PrefixFrom(addr, addr.BitLen())
		return true, nil
	}
	if !strings.Contains(host, "/") {
		return false, nil
	}
	prefix, err := netip.ParsePrefix(host)
	switch {
	case err != nil:
		return false, invalid(text, "invalid prefix", "write it like 203.0.113.0/24, and a name without a path")
	case prefix.Addr().Is4In6():
		return false, invalid(text, "the prefix is in IPv4-mapped form", "write it as an IPv4 prefix")
	case prefix != prefix.Masked():
		return false, invalid(text, "the prefix has bits after its length", "write "+prefix.Masked().String())
	}
	t.Prefix = prefix
	return true, nil
}

func invalid(text, message, remedy string) error {
	return &v1.Error{
		Code:    v1.CodeInvalidSpec,
		Op:      "read the network policy",
		Message: fmt.Sprintf("%q: %s", text, message),
		Remedy:  remedy,
	}
}
