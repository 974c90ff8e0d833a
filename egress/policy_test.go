package egress

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestDecide(t *testing.T) {
	public := func(rules ...string) v1.Network {
		n := allow(rules...)
		n.Preset = v1.NetworkPublic
		return n
	}
	for _, c := range []struct {
		network v1.Network
		host    string
		port    uint16
		want    v1.NetworkAction
	}{
		{v1.Network{}, "example.com", 443, "deny"},
		{allow("allow acme.org"), "acme.org", 443, "allow"},
		{allow("allow acme.org"), "ACME.org.", 80, "allow"},
		{allow("allow acme.org"), "acme.org", 22, "deny"},
		{allow("allow acme.org"), "evilacme.org", 443, "deny"},
		{allow("allow acme.org"), "acme.org.evil.com", 443, "deny"},
		{allow("allow acme.org"), "www.acme.org", 443, "deny"},
		{allow("allow acme.org"), "acme.org\x00.evil.com", 443, "deny"},
		{allow("allow acme.org"), "acme.org..", 443, "deny"},
		{allow("allow *.acme.org"), "acme.org", 443, "deny"},
		{allow("allow *.acme.org"), ".acme.org", 443, "deny"},
		{allow("allow *.acme.org"), "a.b.acme.org", 443, "allow"},
		{allow("allow *.acme.org"), "aacme.org", 443, "deny"},
		{allow("allow **.acme.org"), "acme.org", 443, "allow"},
		{allow("allow **.acme.org"), "x.acme.org", 443, "allow"},
		{allow("allow **.acme.org"), "xacme.org", 443, "deny"},
		{allow("allow acme.org:*"), "acme.org", 65535, "allow"},
		{allow("allow acme.org:8000-8100"), "acme.org", 8100, "allow"},
		{allow("allow acme.org:8000-8100"), "acme.org", 8101, "deny"},
		{allow("allow xn--mnchen-3ya.de"), "MÜNCHEN.de", 443, "allow"},
		{allow("allow 192.0.2.0/24"), "192.0.2.9", 443, "allow"},
		{allow("allow 192.0.2.0/24"), "::ffff:192.0.2.9", 443, "allow"},
		{allow("allow 192.0.2.0/24"), "0xc0000209", 443, "deny"},
		{allow("allow 192.0.2.0/24"), "192.0.2.9%eth0", 443, "deny"},
		{allow("deny x.acme.org", "allow *.acme.org"), "x.acme.org", 443, "deny"},
		{allow("allow *.acme.org", "deny x.acme.org"), "x.acme.org", 443, "allow"},
		{allow("ask acme.org"), "acme.org", 443, "ask"},
		{public(), "example.com", 9999, "allow"},
		{public(), "93.184.216.34", 22, "allow"},
		{public("deny *.corp.org:*"), "git.corp.org", 22, "deny"},
		{public(), "example.com", 0, "deny"},
		{public(), "intranet", 443, "deny"},
		{public(), "localhost", 443, "deny"},
		{public(), "metadata.google.internal", 80, "deny"},
		{public("allow git.internal:22"), "git.internal", 22, "allow"},
		{v1.Network{Preset: "all"}, "intranet", 443, "allow"},
		{v1.Network{Preset: "packages"}, "pypi.org", 443, "allow"},
		{v1.Network{Preset: "packages"}, "pypi.org", 22, "deny"},
		{v1.Network{Preset: "packages"}, "github.com", 443, "deny"},
		{v1.Network{Preset: "packages", Rules: []v1.NetworkRule{"deny pypi.org"}}, "pypi.org", 443, "deny"},
	} {
		d := compile(t, c.network).Decide(c.host, c.port)
		if d.Action != c.want || d.Rule == "" || d.Reason == "" || (d.Remedy == "") != d.Allowed() {
			t.Errorf("%v: %s port %d: %+v, want %s", c.network, c.host, c.port, d, c.want)
		}
	}
	var none *Policy
	if d := none.Decide("a.org", 443); d.Action != v1.NetworkDeny {
		t.Errorf("no policy: %+v", d)
	}
}

func TestADenialNamesTheFlag(t *testing.T) {
	for _, c := range []struct {
		host string
		port uint16
		want string
	}{
		{"github.com", 443, "--allow github.com"},
		{"github.com", 22, "--allow github.com:22"},
		{"2001:db8::1", 22, "--allow [2001:db8::1]:22"},
		{"pypi.org", 443, "--net packages"},
	} {
		if d := compile(t, v1.Network{}).Decide(c.host, c.port); !strings.HasSuffix(d.Remedy, c.want) || !strings.Contains(d.Reason, "preset none") {
			t.Errorf("%s: %+v", c.host, d)
		}
	}
}

func TestNameOfAnyPort(t *testing.T) {
	p := compile(t, allow("deny a.org:*", "allow b.org:5432", "ask c.org:22", "allow **.org:9", "allow 192.0.2.1"))
	for name, want := range map[string]v1.NetworkAction{
		"a.org": "deny", "b.org": "allow", "c.org": "allow", "a.com": "deny", "192.0.2.1": "deny",
	} {
		if d := p.Name(name); d.Action != want {
			t.Errorf("%s: %+v, want %s", name, d, want)
		}
	}
	if d := compile(t, allow("ask c.org:22")).Name("c.org"); d.Action != v1.NetworkAsk {
		t.Errorf("%+v", d)
	}
}

func TestNarrow(t *testing.T) {
	operator, err := Compile(allow("deny x.acme.org", "allow *.acme.org:443", "ask c.org"), Options{Title: "the operator's maximum"})
	if err != nil {
		t.Fatal(err)
	}
	p := operator.Narrow(compile(t, v1.Network{Preset: v1.NetworkAll}))
	for _, c := range []struct {
		host string
		port uint16
		want v1.NetworkAction
	}{
		{"a.acme.org", 443, "allow"}, {"a.acme.org", 80, "deny"}, {"x.acme.org", 443, "deny"}, {"b.org", 443, "deny"}, {"c.org", 443, "ask"},
	} {
		d := p.Decide(c.host, c.port)
		if d.Action != c.want {
			t.Errorf("%s: %+v, want %s", c.host, d, c.want)
		}
		if !d.Allowed() && !strings.Contains(d.Reason, "the operator's maximum") {
			t.Errorf("%s: the reason does not name whose policy decides: %s", c.host, d)
		}
	}
	if d := p.Narrow(nil).Decide("a.acme.org", 443); d.Allowed() {
		t.Errorf("narrowed to nothing: %+v", d)
	}
	if d := p.Narrow(compile(t, allow("allow *.acme.org:80"))).Name("a.acme.org"); d.Allowed() {
		t.Errorf("the layers allow different ports only: %+v", d)
	}
	want := "deny x.acme.org; allow *.acme.org:443; ask c.org; preset none; the network policy: preset all"
	if got := p.String(); got != want {
		t.Errorf("%s", got)
	}
}

func TestPorts(t *testing.T) {
	p := compile(t, allow("allow a.org", "allow b.org:8000-8100", "ask c.org:8050-8200", "deny d.org:9", "allow e.org:81"))
	want := []PortRange{{80, 81}, {443, 443}, {8000, 8200}}
	if got := p.Ports(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := p.Narrow(compile(t, allow("allow a.org:81-8000"))).Ports(); !slices.Equal(got, []PortRange{{81, 81}, {443, 443}, {8000, 8000}}) {
		t.Errorf("narrowed: %v", got)
	}
	if got := compile(t, v1.Network{Preset: "public"}).Ports(); !slices.Equal(got, allPorts) {
		t.Errorf("public: %v", got)
	}
	if got := compile(t, v1.Network{}).Ports(); len(got) > 0 {
		t.Errorf("none: %v", got)
	}
}

func TestTheListOfPackagesCanBeReplaced(t *testing.T) {
	p, err := Compile(v1.Network{Preset: "packages"}, Options{Packages: "# ours\npypi.acme.org:8443 # internal\n\n", Mirrors: []string{"npm.acme.org:443"}})
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]bool{"pypi.acme.org": false, "npm.acme.org": true, "pypi.org": false} {
		if d := p.Decide(target, 443); d.Allowed() != want {
			t.Errorf("%s: %+v", target, d)
		}
	}
	if d := p.Decide("pypi.acme.org", 8443); d.Rule != "preset packages: pypi.acme.org:8443" {
		t.Errorf("%+v", d)
	}
	if _, err := Compile(v1.Network{Preset: "packages"}, Options{Packages: "http://x"}); v1.CodeOf(err) != v1.CodeInvalidSpec {
		t.Errorf("%v", err)
	}
}

func TestHostMirrors(t *testing.T) {
	root := fstest.MapFS{}
	for name, text := range map[string]string{
		"etc/pip.conf": "[global]\nindex-url = https://user:secret@pip.acme.org/simple\nextra-index-url =\n    http://extra.acme.org:8080/simple\n" +
			"    https://extra2.acme.org/simple\nproxy = http://proxy.acme.org:3128\n",
		"home/u/.npmrc": "registry=https://npm.acme.org/\n@acme:registry=https://scope.acme.org:4873/\n//npm.acme.org/:_authToken=secret\n" +
			"proxy=http://proxy.acme.org:3128\n# registry=https://old.acme.org\n",
		"etc/apt/sources.list":                 "deb [signed-by=/k] http://apt.acme.org/debian stable main\n# deb http://off.acme.org x y\n",
		"etc/apt/sources.list.d/u.sources":     "Types: deb\nURIs: http://ubuntu.acme.org/ubuntu\n http://second.acme.org/ubuntu\nSuites: stable\n",
		"home/u/.config/go/env":                "GOPROXY=https://go.acme.org,https://go2.acme.org|direct\nGOFLAGS=-x=https://no.acme.org\n",
		"home/u/.cargo/config.toml":            "[source.ours]\nregistry = \"sparse+https://cargo.acme.org/index/\"\n[registries.two]\nindex = \"https://[2001:db8::1]:8443/x\"\n[http]\nproxy = \"http://proxy.acme.org\"\n",
		"home/u/special/pip.ini":               "[global]\nindex-url=https://special.acme.org\n",
		"etc/apt/sources.list.d/large.sources": strings.Repeat("#", maxConfig) + "\nURIs: http://late.acme.org",
	} {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	env := map[string]string{"PIP_INDEX_URL": "https://a:b@env.acme.org/x", "PIP_CONFIG_FILE": "/home/u/special/pip.ini", "GOPROXY": "off"}
	got := HostMirrors(root, "/home/u", func(k string) string { return env[k] })
	want := []string{
		"apt.acme.org:80", "cargo.acme.org:443", "env.acme.org:443", "extra.acme.org:8080", "extra2.acme.org:443", "go.acme.org:443",
		"go2.acme.org:443", "npm.acme.org:443", "pip.acme.org:443", "scope.acme.org:4873", "second.acme.org:80", "special.acme.org:443",
		"ubuntu.acme.org:80", "[2001:db8::1]:8443",
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if got := HostMirrors(fstest.MapFS{}, "", func(string) string { return "" }); len(got) > 0 {
		t.Errorf("without configuration: %q", got)
	}
}

func TestFloor(t *testing.T) {
	f := NewFloor(FloorOptions{HostAddrs: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("8.8.4.4")}, nil }})
	for _, a := range []string{
		"0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1",
		"172.31.255.255", "192.0.0.192", "192.0.2.1", "192.31.196.1", "192.52.193.1", "192.88.99.1", "192.168.1.1", "192.175.48.1",
		"198.18.0.7", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"168.63.129.16", "8.8.4.4", "::ffff:8.8.4.4",
		"::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1",
		"100:0:0:1::1", "2001::1", "2001:0:808:808::1", "2001:2::1", "2001:20::1", "2001:db8::1", "3fff::1", "2002:7f00:1::", "2620:4f:8000::1",
		"5f00::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "4000::1", "1::1",
	} {
		if f.Denied(netip.MustParseAddr(a), 80) == "" {
			t.Errorf("%s is allowed", a)
		}
	}
	for _, a := range []string{"8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1", "::ffff:1.1.1.1"} {
		if why := f.Denied(netip.MustParseAddr(a), 80); why != "" {
			t.Errorf("%s: %s", a, why)
		}
	}
	if f.Denied(netip.Addr{}, 80) == "" {
		t.Error("an invalid address is allowed")
	}
}

func TestExceptionsOfTheFloor(t *testing.T) {
	f := NewFloor(FloorOptions{
		Except: []netip.Prefix{
			netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("2002::/16"),
			netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("0.0.0.0/32"),
		},
		Listeners: func() []netip.AddrPort {
			return []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:7777"), netip.MustParseAddrPort("[::]:8888")}
		},
		HostAddrs: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil },
	})
	for a, want := range map[string]bool{
		"10.9.9.9:80":                  true,
		"10.0.0.1:80":                  true, // of the host, but the operator names it
		"10.0.0.1:8888":                false,
		"10.0.0.1:7777":                true,
		"127.0.0.1:7777":               false,
		"0.0.0.0:7777":                 false,
		"127.9.9.9:8888":               false,
		"127.0.0.1:80":                 true,
		"192.168.0.1:80":               false,
		"[64:ff9b::808:808]:80":        true,
		"[64:ff9b::a09:909]:80":        true,
		"[64:ff9b::a9fe:a9fe]:80":      false, // 169.254.169.254
		"[64:ff9b::7f00:1]:7777":       false,
		"[2002:a9fe:a9fe::1]:80":       false,
		"[2002:808:808::1]:80":         true,
		"[::ffff:169.254.169.254]:80":  false,
		"[::ffff:10.1.1.1]:80":         true,
		"[2001:0:4136:e378:0:1:2:3]:1": false,
	} {
		ap := netip.MustParseAddrPort(a)
		if why := f.Denied(ap.Addr(), ap.Port()); (why == "") != want {
			t.Errorf("%s: %q, want allowed: %t", a, why, want)
		}
	}
}

func TestADenialWithoutPortsIsForAllPorts(t *testing.T) {
	p, err := Compile(v1.Network{Preset: v1.NetworkPublic, Rules: []v1.NetworkRule{"deny *.corp.example"}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []uint16{22, 80, 443, 5432} {
		if d := p.Decide("db.corp.example", port); d.Allowed() {
			t.Errorf("port %d: %s", port, d)
		}
	}
	if d := p.Decide("www.example.com", 22); !d.Allowed() {
		t.Errorf("another name: %s", d)
	}
}
