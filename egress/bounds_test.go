package egress

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// people answer questions about connections.
type people struct {
	mu     sync.Mutex
	asked  []string
	action v1.NetworkAction
}

func (p *people) approve(r Request, d Decision) Decision {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, fmt.Sprintf("%s:%d", r.Name, r.Port))
	d.Action, d.Approval = p.action, "7"
	return d
}

func (p *people) decide(a v1.NetworkAction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.action = a
}

func TestAnApprovedConnectionIsCarried(t *testing.T) {
	for name, rules := range map[string][]string{
		"a name":                  {"ask a.acme.org:*"},
		"the address of a name":   {"ask 127.0.0.0/8:*", "allow a.acme.org:*"},
		"both, and a wider range": {"ask 127.0.0.1:*", "ask **.acme.org:*"},
	} {
		t.Run(name, func(t *testing.T) {
			who := &people{action: v1.NetworkAsk}
			f := newFixture(t, allow(rules...), func(o *GatewayOptions) { o.Terms.Approve = who.approve })
			f.resolver.table["a.acme.org"] = []string{"127.0.0.1"}
			port := serve(t, "127.0.0.1:0", echo)
			if r := f.open("a.acme.org", port).refusal(t, RefusedByPolicy); r.Decision.Approval != "7" {
				t.Errorf("%+v", r.Decision)
			}
			who.decide(v1.NetworkDeny)
			f.open("a.acme.org", port).refusal(t, RefusedByPolicy)
			who.decide(v1.NetworkAllow)
			c := f.open("a.acme.org", port)
			<-c.guest.accepted
			// A policy that still asks does not end it, one that denies does.
			f.SetPolicy(compile(t, allow(append(rules, "allow b.acme.org")...)), 2)
			c.Write([]byte("x"))
			if b := make([]byte, 1); func() error { _, err := c.Read(b); return err }() != nil {
				t.Error("the approved connection was closed")
			}
			f.SetTerms(Terms{Maximum: compile(t, allow("deny a.acme.org:*")), Approve: who.approve})
			c.refusal(t, RefusedChanged)
			f.open("a.acme.org", port).refusal(t, RefusedByPolicy)
			if who.asked[0] != "a.acme.org:"+portText(port) || len(who.asked) != 3 {
				t.Errorf("asked %v", who.asked)
			}
		})
	}
}

func TestTheMaximumHoldsForEveryLaterPolicy(t *testing.T) {
	f := newFixture(t, allow("allow **.acme.org:*"), func(o *GatewayOptions) {
		most, err := Compile(allow("allow a.acme.org:*"), Options{Title: "the maximum of key k"})
		if err != nil {
			t.Fatal(err)
		}
		o.Terms.Maximum = most
	})
	for generation := range 2 {
		d := f.Decide("b.acme.org", 443)
		if d.Allowed() || !strings.Contains(d.Reason, "the maximum of key k") || d.Remedy != "only the operator can allow it" {
			t.Errorf("generation %d: %+v", generation, d)
		}
		if d := f.Decide("a.acme.org", 443); !d.Allowed() {
			t.Errorf("generation %d: %+v", generation, d)
		}
		f.SetPolicy(compile(t, v1.Network{Preset: v1.NetworkPublic}), uint64(generation+2))
	}
	f.SetTerms(Terms{})
	if d := f.Decide("b.acme.org", 443); !d.Allowed() {
		t.Errorf("%+v", d)
	}
}

// purse is a budget of connections and bytes.
type purse struct {
	mu                 sync.Mutex
	connections, bytes int
}

func (p *purse) Open() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.connections == 0 {
		return &v1.Error{Code: v1.CodeQuotaExceeded, Message: "no connection is left", Remedy: "wait"}
	}
	p.connections--
	return nil
}

func (p *purse) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connections++
}

func (p *purse) Count(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes -= n; p.bytes < 0 {
		return errors.New("no byte is left")
	}
	return nil
}

func TestGatewaysShareABudget(t *testing.T) {
	p := &purse{connections: 1, bytes: 3}
	share := func(o *GatewayOptions) { o.Terms.Budget = p }
	one := newFixture(t, allow("allow a.acme.org:*"), share)
	two := newFixture(t, allow("allow a.acme.org:*"), share)
	one.resolver.table["a.acme.org"], two.resolver.table["a.acme.org"] = []string{"127.0.0.1"}, []string{"127.0.0.1"}
	port := serve(t, "127.0.0.1:0", echo)
	c := one.open("a.acme.org", port)
	<-c.guest.accepted
	two.open("b.acme.org", port).refusal(t, RefusedByPolicy) // a denied connection uses none
	r := two.open("a.acme.org", port).refusal(t, RefusedByLimit)
	if r.Decision.Reason != "no connection is left" || r.Decision.Remedy != "wait" {
		t.Errorf("%+v", r.Decision)
	}
	c.Write([]byte("xx")) // comes back: more than 3 bytes
	c.refusal(t, RefusedByLimit)
	if p.connections != 1 {
		t.Errorf("%d connections are left", p.connections)
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	policy := func(preset v1.NetworkPreset, rules ...string) v1.Network {
		n := allow(rules...)
		n.Preset = preset
		return n
	}
	for _, c := range []struct {
		inner, outer v1.Network
		want         string // in the error; empty: none
	}{
		{policy(""), policy(""), ""},
		{policy("none"), policy("public"), ""},
		{policy("packages"), policy("packages"), ""},
		{policy("packages"), policy("public"), ""},
		{policy("packages"), policy("none"), "allows more"},
		{policy("public"), policy("packages"), "preset public"},
		{policy("all"), policy("public"), "preset all"},
		{policy("public"), policy("all"), ""},
		{policy("", "allow api.acme.org"), policy("", "allow **.acme.org"), ""},
		{policy("", "allow api.acme.org:8443"), policy("", "allow **.acme.org"), "allow api.acme.org:8443"},
		{policy("", "allow *.acme.org"), policy("", "allow *.acme.org"), ""},
		{policy("", "allow **.acme.org"), policy("", "allow *.acme.org"), "allows more"},
		{policy("", "allow *.b.acme.org"), policy("", "allow *.acme.org"), ""},
		{policy("", "allow acme.org"), policy("public"), ""},
		{policy("", "allow intranet"), policy("public"), "allows more"},
		{policy("", "allow api.acme.org"), policy("public", "deny *.acme.org"), `"deny *.acme.org" comes first`},
		{policy("public"), policy("public", "deny *.acme.org"), `add the rule "deny *.acme.org"`},
		{policy("public", "deny **.acme.org"), policy("public", "deny *.acme.org"), ""},
		{policy("", "deny *.acme.org", "allow **.acme.org"), policy("", "deny *.acme.org", "allow **.acme.org"), ""},
		{policy("", "allow **.acme.org"), policy("", "deny *.acme.org", "allow **.acme.org"), "comes first"},
		{policy("", "allow a.acme.org"), policy("", "ask a.acme.org"), "comes first"},
		{policy("", "ask a.acme.org"), policy("", "ask a.acme.org"), ""},
		{policy("", "ask a.acme.org"), policy("", "allow a.acme.org"), ""},
		{policy("", "allow 198.51.100.7:22"), policy("", "allow 198.51.100.0/24:1-100"), ""},
		{policy("", "allow 198.51.0.0/16:22"), policy("", "allow 198.51.100.0/24:22"), "allows more"},
		{policy("", "allow http://x"), policy("all"), "is a URL"},
	} {
		err := Within(c.inner, c.outer, Options{})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q within %q: %v, want %q", c.inner, c.outer, err, c.want)
		}
	}
}

// What Within accepts, the wider policy allows for every destination.
func TestWithinAgreesWithDecisions(t *testing.T) {
	t.Parallel()
	names := []string{"org", "a.org", "b.a.org", "c.b.a.org", "x.org", "198.51.100.7", "198.51.100.200", "8.8.8.8"}
	targets := []string{"a.org", "*.a.org", "**.a.org", "b.a.org", "*.b.a.org", "x.org", "198.51.100.0/24", "198.51.100.7"}
	ports := []string{"", ":*", ":22", ":20-30"}
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(list []string) string { return list[random.IntN(len(list))] }
	policy := func() v1.Network {
		n := v1.Network{Preset: v1.NetworkPreset(pick([]string{"none", "public", "all", "packages"}))}
		for range random.IntN(4) {
			n.Rules = append(n.Rules, v1.NetworkRule(pick([]string{"allow ", "allow ", "deny ", "ask "})+pick(targets)+pick(ports)))
		}
		return n
	}
	accepted := 0
	for range 20_000 {
		inner, outer := policy(), policy()
		if Within(inner, outer, Options{}) != nil {
			continue
		}
		accepted++
		in, out := compile(t, inner), compile(t, outer)
		for _, name := range names {
			for _, port := range []uint16{22, 25, 80, 443, 9000} {
				a, b := in.Decide(name, port).Action, out.Decide(name, port).Action
				if a == v1.NetworkAllow && b != v1.NetworkAllow || a == v1.NetworkAsk && b == v1.NetworkDeny {
					t.Fatalf("%q was accepted within %q, but %s:%d is %s and %s", inner, outer, name, port, a, b)
				}
			}
		}
	}
	if accepted < 500 {
		t.Errorf("only %d pairs were accepted", accepted)
	}
}
