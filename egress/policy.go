package egress

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxRules bounds the rules of one policy: each connection and look-up compares with all of them.
const maxRules = 1000

//go:embed packages.txt
var packagesText string

// builtinPackages are the targets of the preset packages.
var builtinPackages = sync.OnceValues(func() ([]Target, error) { return parseList(packagesText) })

// Options are the parts of a policy that the operator and the host determine.
type Options struct {
	Packages string   // text of the preset packages in the form of packages.txt; empty: the built-in list
	Mirrors  []string // further targets of the preset packages, see HostMirrors
	Title    string   // whose policy it is, in reasons: "the operator's maximum"; empty: the network policy
}

// Policy decides which connections are allowed. It is immutable; the zero value and nil deny everything.
type Policy struct {
	layers []*layer // all of them must allow
	probes []uint16 // ports at which decisions can change; in order
}

// layer is one compiled v1.Network.
type layer struct {
	title  string
	preset v1.NetworkPreset
	rules  []Rule // in order, those of the preset last
	own    int    // number of rules that are not of the preset
}

// Decision is the answer to a request.
type Decision struct {
	Action v1.NetworkAction
	Rule   string // the rule that decided, or the preset: "allow *.example.com", "preset none"
	Reason string // in words
	Remedy string // what would allow the connection; empty for an allowed one
	// Approval is the id of the question to a person about the connection; empty: no person was asked.
	Approval string
}

// Allowed reports whether the connection is allowed now.
func (d Decision) Allowed() bool { return d.Action == v1.NetworkAllow }

// String returns the reason and the remedy.
func (d Decision) String() string {
	if d.Remedy == "" {
		return d.Reason
	}
	return d.Reason + " (" + d.Remedy + ")"
}

// Compile checks a policy and returns the form that decides.
func Compile(n v1.Network, o Options) (*Policy, error) {
	l := &layer{title: o.Title, preset: n.Preset}
	if l.title == "" {
		l.title = callersPolicy
	}
	if l.preset == "" {
		l.preset = v1.NetworkNone
	}
	if len(n.Rules) > maxRules {
		return nil, invalid(fmt.Sprintf("%d rules", len(n.Rules)), "the policy has too many rules",
			fmt.Sprintf("at most %d are possible", maxRules))
	}
	for _, text := range n.Rules {
		r, err := ParseRule(text)
		if err != nil {
			return nil, err
		}
		l.rules = append(l.rules, r)
	}
	l.own = len(l.rules)
	switch l.preset {
	case v1.NetworkNone, v1.NetworkPublic, v1.NetworkAll:
	case v1.NetworkPackages:
		targets, err := packages(o)
		if err != nil {
			return nil, err
		}
		for _, t := range targets {
			l.rules = append(l.rules, Rule{v1.NetworkAllow, t})
		}
	default:
		return nil, invalid(string(n.Preset), "unknown preset", "use none, packages, public or all")
	}
	return newPolicy(l), nil
}

// packages returns the targets of the preset packages.
func packages(o Options) (targets []Target, err error) {
	if o.Packages == "" {
		targets, err = builtinPackages()
	} else {
		targets, err = parseList(o.Packages)
	}
	if err != nil {
		return nil, err
	}
	targets = slices.Clone(targets)
	for _, m := range o.Mirrors {
		t, err := ParseTarget(m)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	return targets, nil
}

func parseList(text string) (targets []Target, err error) {
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		line, _, _ := strings.Cut(s.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		t, err := ParseTarget(line)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	return targets, s.Err()
}

func newPolicy(layers ...*layer) *Policy {
	p := &Policy{layers: layers, probes: []uint16{443, 80, 1}}
	for _, l := range layers {
		for i := range l.rules {
			for _, r := range l.rules[i].Target.Ports {
				p.probes = append(p.probes, r.First)
				if r.Last < 65535 {
					p.probes = append(p.probes, r.Last+1)
				}
			}
		}
	}
	slices.Sort(p.probes[2:]) // the usual ports stay first: they answer most questions
	p.probes = append(p.probes[:2], slices.Compact(p.probes[2:])...)
	return p
}

// Narrow returns a policy that allows what both p and other allow.
func (p *Policy) Narrow(other *Policy) *Policy {
	layers := append(slices.Clone(p.all()), other.all()...)
	return newPolicy(layers...)
}

// callersPolicy is the title of a policy that its user can change.
const callersPolicy = "the network policy"

// denyAll is the layer of policies without one.
var denyAll = []*layer{{title: callersPolicy, preset: v1.NetworkNone}}

func (p *Policy) all() []*layer {
	if p == nil || len(p.layers) == 0 {
		return denyAll
	}
	return p.layers
}

// Decide decides about a connection to a name or an address. An address that a name resolves to is decided again, see
// Gateway.
func (p *Policy) Decide(hostname string, port uint16) Decision {
	h, err := parseHost(hostname)
	if err == nil && port == 0 {
		err = errors.New("port 0")
	}
	if err != nil {
		return badName(err)
	}
	return p.decide(h, netip.Addr{}, port)
}

func badName(err error) Decision {
	return Decision{
		Action: v1.NetworkDeny,
		Rule:   "invalid name",
		Reason: "the destination is invalid: " + err.Error(),
		Remedy: "use a name of DNS or an address in its usual form, and a port from 1 to 65535",
	}
}

// Name decides whether any port of a name is allowed, or needs approval.
func (p *Policy) Name(name string) Decision {
	name, err := NormalizeName(name)
	if err != nil {
		return badName(err)
	}
	return p.name(host{name: name})
}

func (p *Policy) name(h host) Decision {
	var best Decision
	probes := []uint16{443}
	if p != nil && len(p.probes) > 0 {
		probes = p.probes
	}
	for i, port := range probes {
		d := p.decide(h, netip.Addr{}, port)
		if d.Allowed() {
			return d
		}
		if i == 0 || d.Action == v1.NetworkAsk && best.Action == v1.NetworkDeny {
			best = d
		}
	}
	return best
}

// decide decides about h. If resolved is valid, it is an address of the name h.
func (p *Policy) decide(h host, resolved netip.Addr, port uint16) Decision {
	var first, ask Decision
	for i, l := range p.all() {
		d := l.decide(h, resolved, port)
		switch {
		case d.Action == v1.NetworkDeny:
			return d
		case d.Action == v1.NetworkAsk && ask.Action == "":
			ask = d
		case i == 0:
			first = d
		}
	}
	if ask.Action != "" {
		return ask
	}
	return first
}

func (l *layer) decide(h host, resolved netip.Addr, port uint16) Decision {
	for i := range l.rules {
		r := &l.rules[i]
		if !r.Target.matchesPort(port) || !r.matches(h, resolved) {
			continue
		}
		d := Decision{Action: r.Action, Rule: r.String()}
		if i >= l.own {
			d.Rule = fmt.Sprintf("preset %s: %s", l.preset, r.Target)
		}
		switch target := hostPort(h, port); r.Action {
		case v1.NetworkAllow:
			d.Reason = fmt.Sprintf("%s allows %s by %q", l.title, target, d.Rule)
		case v1.NetworkAsk:
			d.Reason = fmt.Sprintf("approval requested: %s asks a person about %s by %q", l.title, target, d.Rule)
			d.Remedy = "try again when it is approved"
		default:
			d.Reason = fmt.Sprintf("%s denies %s by %q", l.title, target, d.Rule)
			d.Remedy = l.remedy("remove this rule, or put before it: allow " + h.withPort(port))
		}
		return d
	}
	d := Decision{Action: v1.NetworkAllow, Rule: "preset " + string(l.preset)}
	switch {
	case l.preset == v1.NetworkAll,
		l.preset == v1.NetworkPublic && (h.literal() || ClassifyName(h.name) == NamePublic):
		d.Reason = fmt.Sprintf("%s allows %s by %q", l.title, hostPort(h, port), d.Rule)
		return d
	}
	d.Action = v1.NetworkDeny
	d.Reason = fmt.Sprintf("%s does not allow %s (%s)", l.title, hostPort(h, port), l.summary())
	d.Remedy = l.remedy("to allow it: --allow " + h.withPort(port))
	if isPackageHost(h, port) && l.preset == v1.NetworkNone {
		d.Remedy = l.remedy("to allow it: --net packages")
	}
	return d
}

// remedy returns what would allow a connection: text, unless the operator decides.
func (l *layer) remedy(text string) string {
	if l.title != callersPolicy {
		return "only the operator can allow it"
	}
	return text
}

// matches reports whether a rule applies to a host. A prefix allows addresses only, since a name must not be resolved
// before it is allowed; but a prefix that denies also denies the names that resolve to it.
func (r *Rule) matches(h host, resolved netip.Addr) bool {
	switch {
	case r.Target.Name != "":
		return !h.literal() && r.Target.matchesName(h.name)
	case h.literal():
		return r.Target.Prefix.Contains(h.addr)
	}
	return r.Action != v1.NetworkAllow && resolved.IsValid() && r.Target.Prefix.Contains(resolved)
}

func isPackageHost(h host, port uint16) bool {
	targets, _ := builtinPackages()
	return slices.ContainsFunc(targets, func(t Target) bool {
		return !h.literal() && t.matchesName(h.name) && t.matchesPort(port)
	})
}

func hostPort(h host, port uint16) string {
	if h.addr.Is6() {
		return fmt.Sprintf("[%s]:%d", h, port)
	}
	return fmt.Sprintf("%s:%d", h, port)
}

func (l *layer) summary() string {
	switch l.own {
	case 0:
		return "preset " + string(l.preset)
	case 1:
		return fmt.Sprintf("1 rule, preset %s", l.preset)
	}
	return fmt.Sprintf("%d rules, preset %s", l.own, l.preset)
}

// filtersNames reports whether a name in a ClientHello can make a difference: some name is denied, or needs approval.
func (p *Policy) filtersNames() bool {
	for _, l := range p.all() {
		if l.preset != v1.NetworkPublic && l.preset != v1.NetworkAll {
			return true
		}
		for i := range l.rules {
			if l.rules[i].Target.Name != "" && l.rules[i].Action != v1.NetworkAllow {
				return true
			}
		}
	}
	return false
}

// Ports returns the ports on which some connection can be allowed, without overlaps and in order. Backends that cannot
// redirect every port listen on these.
func (p *Policy) Ports() []PortRange {
	ranges := allPorts
	for _, l := range p.all() {
		ranges = intersect(ranges, l.ports())
	}
	return ranges
}

func (l *layer) ports() (ranges []PortRange) {
	if l.preset == v1.NetworkPublic || l.preset == v1.NetworkAll {
		return allPorts
	}
	for i := range l.rules {
		if l.rules[i].Action != v1.NetworkDeny {
			ranges = append(ranges, l.rules[i].Target.Ports...)
		}
	}
	slices.SortFunc(ranges, func(a, b PortRange) int { return int(a.First) - int(b.First) })
	merged := ranges[:0]
	for _, r := range ranges {
		if n := len(merged); n > 0 && int(r.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, r.Last)
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

// intersect returns the ports that are in both lists, each of which is in order and without overlaps.
func intersect(a, b []PortRange) (both []PortRange) {
	for len(a) > 0 && len(b) > 0 {
		if first, last := max(a[0].First, b[0].First), min(a[0].Last, b[0].Last); first <= last {
			both = append(both, PortRange{first, last})
		}
		if a[0].Last < b[0].Last {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return both
}

// Rules returns the rules in order and then the preset, as text. Layers after the first one have their title.
func (p *Policy) Rules() (lines []string) {
	for i, l := range p.all() {
		title := ""
		if i > 0 {
			title = l.title + ": "
		}
		for j := range l.own {
			lines = append(lines, title+l.rules[j].String())
		}
		lines = append(lines, title+"preset "+string(l.preset))
	}
	return lines
}

// String returns the rules on one line.
func (p *Policy) String() string { return strings.Join(p.Rules(), "; ") }
