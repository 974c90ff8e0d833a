package egress

import (
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestTargetsAreNormalized(t *testing.T) {
	for text, want := range map[string]string{
		"API.GitHub.com":           "api.github.com",
		"*.example.com:8443":       "*.example.com:8443",
		"**.example.com:*":         "**.example.com:*",
		"example.com:8000-8100":    "example.com:8000-8100",
		"203.0.113.7":              "203.0.113.7",
		"203.0.113.0/24:22":        "203.0.113.0/24:22",
		"[2001:db8::1]:22":         "[2001:db8::1]:22",
		"[2001:db8::1]":            "2001:db8::1",
		"2001:db8::1":              "2001:db8::1",
		"2001:db8::8888":           "2001:db8::8888",
		"[2001:db8::/32]:*":        "[2001:db8::/32]:*",
		"::ffff:203.0.113.7":       "203.0.113.7",
		"xn--mnchen-3ya.de":        "xn--mnchen-3ya.de",
		"r3---sn-x.googlevideo.io": "r3---sn-x.googlevideo.io",
		"my_bucket.s3.aws.com":     "my_bucket.s3.aws.com",
		"db:5432":                  "db:5432",
	} {
		got, err := ParseTarget(text)
		if err != nil || got.String() != want {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
			continue
		}
		if again, err := ParseTarget(got.String()); err != nil || again.String() != want {
			t.Errorf("%s: its text is read as %q, %v", text, again, err)
		}
	}
}

func TestInvalidTargetsHaveACorrectedForm(t *testing.T) {
	for text, remedy := range map[string]string{
		"":                           "such as api.github.com",
		"http://x.org":               "write x.org:80",
		"https://x.org/a/b":          "write x.org",
		"https://user:pw@x.org:8443": "write x.org:8443",
		"http://[2001:db8::1]/":      "write [2001:db8::1]:80",
		"*":                          "--net public",
		"**":                         "--net public",
		"*.":                         "*.example.com",
		"**.":                        "*.example.com",
		"*.*.example.com":            "*.example.com for subdomains",
		"a*.example.com":             "*.example.com for subdomains",
		"*example.com":               "*.example.com for subdomains",
		"münchen.de":                 "xn--mnchen-3ya.de",
		"*.münchen.de":               "*.xn--mnchen-3ya.de",
		"gіthub.com":                 "xn--", // a Cyrillic letter
		"example.com.":               "write example.com",
		"*.example.com.:443":         "write *.example.com",
		"example.com:0":              "ports are 1 to 65535",
		"example.com:70000":          "ports are 1 to 65535",
		"example.com:-1":             "ports are 1 to 65535",
		"example.com:1-":             "ports are 1 to 65535",
		"example.com:http":           "ports are 1 to 65535",
		"example.com:9-5":            "write example.com:5-9",
		"example.com:":               "write example.com",
		"a.org b.org":                "one rule for each target",
		"a.org,b.org":                "one rule for each target",
		"a.org\tb.org":               "one rule for each target",
		"example.com/path":           "without a path",
		"10.0.0.5/8":                 "write 10.0.0.0/8",
		"10.0.0.0/33":                "203.0.113.0/24",
		"::ffff:10.0.0.0/104":        "IPv4 prefix",
		"fe80::1%eth0":               "",
		"2001:db8::1:443":            "write [2001:db8::1]:443, or [2001:db8::1:443]",
		"2001:db8::/32:443":          "write [2001:db8::/32]:443",
		"2001:db8::1:*":              "write [2001:db8::1]:*",
		"2001:db8:0:0:0:0:0:1:443":   "write [2001:db8:0:0:0:0:0:1]:443",
		"[2001:db8::1":               "[2001:db8::1]:443",
		"[2001:db8::1]443":           "[2001:db8::1]:443",
		"2130706433":                 "an address such as",
		"0x7f.1":                     "an address such as",
		"0177.0.0.1":                 "an address such as",
		"127.1":                      "an address such as",
		"a..b":                       "such as api.github.com",
		".example.com":               "such as api.github.com",
		"-a.com":                     "such as api.github.com",
		"exa\x00mple.com":            "such as api.github.com",
		strings.Repeat("a", 64):      "such as api.github.com",
		strings.Repeat("a.", 2000):   "",
	} {
		_, err := ParseTarget(text)
		if err == nil {
			t.Errorf("%q is accepted", text)
			continue
		}
		if got, _ := v1.SplitRemedy(err); v1.CodeOf(err) != v1.CodeInvalidSpec || !strings.Contains(got, remedy) {
			t.Errorf("%q: %v; want the remedy %q", text, err, remedy)
		}
		if strings.Contains(err.Error(), ":pw@") {
			t.Errorf("the error contains a password: %v", err)
		}
	}
}

func TestInvalidRules(t *testing.T) {
	for _, text := range []v1.NetworkRule{"", "allow", "permit a.org", "a.org", "allow  ", "deny *", "Allow a.org", "allow a.org b.org"} {
		if r, err := ParseRule(text); v1.CodeOf(err) != v1.CodeInvalidSpec {
			t.Errorf("%q is read as %v, %v", text, r, err)
		}
	}
	if r, err := ParseRule("  deny   **.corp.org:* "); err != nil || r.String() != "deny **.corp.org:*" {
		t.Errorf("%q, %v", r, err)
	}
	if _, err := Compile(v1.Network{Preset: "everything"}, Options{}); v1.CodeOf(err) != v1.CodeInvalidSpec {
		t.Errorf("unknown preset: %v", err)
	}
	if _, err := Compile(v1.Network{Rules: make([]v1.NetworkRule, maxRules+1)}, Options{}); v1.CodeOf(err) != v1.CodeInvalidSpec {
		t.Errorf("too many rules: %v", err)
	}
}

func TestNormalizeName(t *testing.T) {
	for name, want := range map[string]string{
		"Example.COM.":            "example.com",
		"MÜNCHEN.de":              "xn--mnchen-3ya.de",
		"XN--MNCHEN-3YA.de":       "xn--mnchen-3ya.de",
		"evil。example":            "evil.example",
		"localhost":               "localhost",
		"":                        "",
		".":                       "",
		"a..":                     "",
		"a\x00.com":               "",
		"a b":                     "",
		"a/b":                     "",
		"127.0.0.1":               "",
		"127.1":                   "",
		"2130706433":              "",
		"0x7f000001":              "",
		"017700000001":            "",
		"１２７.0.0.1":               "",
		"::1":                     "",
		"[::1]":                   "",
		strings.Repeat("a.", 130): "",
		strings.Repeat("ü", 2000): "",
	} {
		if got, err := NormalizeName(name); got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v; want %q", name, got, err, want)
		}
	}
}

func FuzzName(f *testing.F) {
	for _, s := range []string{"a.b", "EXAMPLE.com.", "münchen.de", "127.1", "0x7f", "a\x00b", "xn--a", "。"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		n, err := NormalizeName(name)
		if err != nil {
			return
		}
		if again, err := NormalizeName(n); again != n || err != nil || len(n) > maxName || !isASCII(n) {
			t.Errorf("%q becomes %q, then %q, %v", name, n, again, err)
		}
		if h, err := parseHost(n); err != nil || h.literal() {
			t.Errorf("%q becomes %q, which is an address", name, n)
		}
	})
}

func FuzzRule(f *testing.F) {
	for _, s := range []string{"allow a.b", "deny *.a.b:1-2", "ask [::1]:*", "allow 10.0.0.0/8", "allow http://x", "deny **.ü", "allow 2001:db8::1:443"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(v1.NetworkRule(text))
		if err != nil {
			if v1.CodeOf(err) != v1.CodeInvalidSpec {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		again, err := ParseRule(v1.NetworkRule(r.String()))
		if err != nil || again.String() != r.String() {
			t.Errorf("%q becomes %q, then %q, %v", text, r, again, err)
		}
	})
}
