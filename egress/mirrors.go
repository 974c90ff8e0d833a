package egress

import (
	"io"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// maxConfig bounds what is read of one configuration file.
const maxConfig = 1 << 20

// mirrorSource is a kind of configuration file, and the keys whose values are URLs of registries. Other keys of these
// files, such as proxy, do not name registries.
type mirrorSource struct {
	key   func() *regexp.Regexp
	files []string // globs below the root; ~ is the home directory
}

var (
	pipKey   = lazyregexp.New(`^((extra-)?index-url|find-links)\b`)
	npmKey   = lazyregexp.New(`^(@[^:]+:)?registry\s*=`)
	aptKey   = lazyregexp.New(`^(deb|deb-src)\s|^URIs:`)
	goKey    = lazyregexp.New(`^(GOPROXY|GOSUMDB)=`)
	cargoKey = lazyregexp.New(`^([\w.-]+\.)?(registry|index)\s*=`)
	urls     = lazyregexp.New(`https?://[^\s"'|,<>]+`)
)

// HostMirrors returns the registries that this host is configured with, as targets for Options.Mirrors. root is the
// root directory of the host, home an absolute path. Credentials in URLs are dropped. Files that cannot be read are
// left out.
func HostMirrors(root fs.FS, home string, getenv func(string) string) []string {
	var m mirrors
	for _, key := range []string{
		"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL",
		"NPM_CONFIG_REGISTRY", "npm_config_registry", "GOPROXY", "GOSUMDB",
	} {
		m.add(getenv(key))
	}
	sources := []mirrorSource{
		{pipKey, []string{
			"etc/pip.conf", "etc/xdg/pip/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf", getenv("PIP_CONFIG_FILE"),
		}},
		{npmKey, []string{
			"etc/npmrc", "usr/etc/npmrc", "usr/local/etc/npmrc", "~/.npmrc", getenv("NPM_CONFIG_USERCONFIG"),
		}},
		{aptKey, []string{
			"etc/apt/sources.list", "etc/apt/sources.list.d/*.list", "etc/apt/sources.list.d/*.sources",
		}},
		{goKey, []string{"~/.config/go/env"}},
		{cargoKey, []string{"~/.cargo/config.toml", "~/.cargo/config"}},
	}
	for _, s := range sources {
		for _, pattern := range s.files {
			pattern = strings.Replace(pattern, "~", home, 1)
			names, _ := fs.Glob(root, strings.TrimPrefix(path.Clean("/"+pattern), "/"))
			for _, name := range names {
				m.read(root, name, s.key())
			}
		}
	}
	slices.Sort(m.targets)
	return slices.Compact(m.targets)
}

type mirrors struct{ targets []string }

// read adds the URLs of one file. A line that is indented continues the value of the line before it.
func (m *mirrors) read(root fs.FS, name string, key *regexp.Regexp) {
	file, err := root.Open(name)
	if err != nil {
		return
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxConfig))
	if err != nil {
		return
	}
	wanted := false
	for line := range strings.SplitSeq(string(text), "\n") {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == '#' || trimmed[0] == ';' {
			continue
		}
		if line[0] != ' ' && line[0] != '\t' || strings.Contains(trimmed, " = ") {
			wanted = key.MatchString(trimmed)
		}
		if wanted {
			m.add(trimmed)
		}
	}
}

// add adds the hosts of all URLs in a value.
func (m *mirrors) add(value string) {
	for _, text := range urls().FindAllString(value, -1) {
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" {
			continue
		}
		host, port := u.Hostname(), u.Port()
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
		}
		if t, err := ParseTarget(host + ":" + port); err == nil {
			m.targets = append(m.targets, t.String())
		}
	}
}
