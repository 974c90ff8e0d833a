package egress

import (
	"fmt"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestDestinations(t *testing.T) {
	for text, want := range map[string]string{
		"example.com":                       "example.com 443",
		" Example.COM. ":                    "example.com 443",
		"example.com:5432":                  "example.com 5432",
		"https://example.com/a?b":           "example.com 443",
		"http://user:pw@example.com/a":      "example.com 80",
		"HTTP://example.com:8080":           "example.com 8080",
		"postgresql://db.example.com/x":     "db.example.com 5432",
		"ssh://git@example.com/r.git":       "example.com 22",
		"198.51.100.7:22":                   "198.51.100.7 22",
		"[2001:db8::1]:8443":                "2001:db8::1 8443",
		"https://[2001:db8::1]/":            "2001:db8::1 443",
		"":                                  "invalid_request",
		"example.com:0":                     "invalid_request",
		"example.com:70000":                 "invalid_request",
		"gopher://example.com":              "invalid_request",
		"https://":                          "invalid_request",
		"two words":                         "invalid_request",
		"2130706433":                        "invalid_request",
		"*.example.com":                     "invalid_request",
		"http://" + string(make([]byte, 9)): "invalid_request",
	} {
		host, port, err := ParseDestination(text)
		got := fmt.Sprintf("%s %d", host, port)
		if err != nil {
			got = string(v1.CodeOf(err))
		}
		if got != want {
			t.Errorf("%q: %s (%v), want %s", text, got, err, want)
		}
	}
}
