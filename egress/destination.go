package egress

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// schemePorts are the default ports of URLs.
var schemePorts = map[string]uint16{
	"ftp": 21, "ssh": 22, "git+ssh": 22, "http": 80, "ws": 80, "https": 443, "wss": 443, "mysql": 3306, "postgres": 5432,
	"postgresql": 5432, "redis": 6379, "git": 9418,
}

// ParseDestination parses a name or an address, with or without a port, or a URL. Without a port and a scheme, the port
// is 443.
func ParseDestination(text string) (host string, port uint16, err error) {
	text = strings.TrimSpace(text)
	ports, scheme := "", ""
	if strings.Contains(text, "://") {
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" {
			return "", 0, badDestination(text, "invalid URL")
		}
		host, ports, scheme = u.Hostname(), u.Port(), strings.ToLower(u.Scheme)
		text = u.Redacted()
	} else if host, ports, err = splitPorts(text); err != nil {
		return "", 0, err
	}
	switch known, ok := schemePorts[scheme]; {
	case ports != "":
		n, err := strconv.ParseUint(ports, 10, 16)
		if err != nil || n == 0 {
			return "", 0, badDestination(text, fmt.Sprintf("invalid port %q", ports))
		}
		port = uint16(n)
	case ok:
		port = known
	case scheme == "":
		port = 443
	default:
		return "", 0, badDestination(text, fmt.Sprintf("the port of %s is not known", scheme))
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.String(), port, nil
	}
	if host, err = NormalizeName(host); err != nil {
		return "", 0, badDestination(text, err.Error())
	}
	return host, port, nil
}

func badDestination(text, why string) error {
	return &v1.Error{
		Code:    v1.CodeInvalidRequest,
		Op:      "check network policy",
		Message: fmt.Sprintf("invalid destination %.64q: %s", text, why),
		Remedy:  "write it like example.com, example.com:5432 or https://example.com",
	}
}
