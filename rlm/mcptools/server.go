package mcptools

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/shell"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// Server describes an MCP server: a command or a URL.
type Server struct {
	Name    string            // prefix of the names of its tools
	Command []string          // program and arguments, without a shell
	Env     map[string]string // environment variables of the program, in addition to a few of our own
	Dir     string            // working directory of the program; empty: our own
	URL     string            // for streamable HTTP
	Headers map[string]string // for every HTTP request
}

var serverName = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_-]{0,31}$`)

func invalidServer(name, format string, args ...any) error {
	return &v1.Error{
		Code:    CodeServerInvalid,
		Op:      "read MCP server " + name,
		Message: fmt.Sprintf(format, args...),
		Remedy:  "write NAME=COMMAND, or NAME=https://…",
	}
}

// Parse parses NAME=COMMAND or NAME=URL. A command is split into words like in a shell, with quotes and variables, but
// runs without a shell.
func Parse(text string) (Server, error) {
	name, what, ok := strings.Cut(text, "=")
	s := Server{Name: strings.TrimSpace(name)}
	what = strings.TrimSpace(what)
	if !ok || what == "" {
		return s, invalidServer(s.Name, "invalid server %q", text)
	}
	if isURL(what) {
		s.URL = what
		return s, s.check()
	}
	words, err := shell.Fields(what, os.Getenv)
	if err != nil {
		return s, invalidServer(s.Name, "the command cannot be split into words: %v", err)
	}
	s.Command = words
	return s, s.check()
}

func isURL(text string) bool {
	return strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://")
}

// check returns an error if the server is invalid.
func (s *Server) check() error {
	if !serverName().MatchString(s.Name) {
		return invalidServer(s.Name,
			"invalid name %q: a name has at most 32 letters, digits, - and _, and begins with a letter", s.Name)
	}
	if (len(s.Command) == 0) == (s.URL == "") {
		return invalidServer(s.Name, "a server needs either a command or a URL")
	}
	if len(s.Command) > 0 {
		if s.Command[0] == "" {
			return invalidServer(s.Name, "the command is empty")
		}
		return nil
	}
	u, err := url.Parse(s.URL)
	if err != nil || !isURL(s.URL) || u.Host == "" {
		return invalidServer(s.Name, "invalid URL %q", s.URL)
	}
	return nil
}

// maxConfigFile is the maximum size of a file for ReadFile.
const maxConfigFile = 1 << 20

// ReadFile reads servers from a JSON file in the format of many agents:
//
//	{"mcpServers": {"docs": {"command": "docs-server", "args": ["--stdio"], "env": {"TOKEN": "${DOCS_TOKEN}"}},
//	                "tracker": {"url": "https://tracker.example/mcp", "headers": {"Authorization": "Bearer ${TRACKER_TOKEN}"}}}}
//
// ${NAME} in an environment variable or header is replaced by our environment variable NAME.
func ReadFile(path string) ([]Server, error) {
	fail := func(err error) ([]Server, error) {
		return nil, &v1.Error{
			Code:    CodeServerInvalid,
			Op:      "read MCP servers",
			Message: path,
			Remedy:  `write the file as {"mcpServers": {NAME: {"command": …, "args": […]}}}`,
			Err:     err,
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfigFile+1))
	if err != nil {
		return fail(err)
	}
	if len(data) > maxConfigFile {
		return fail(fmt.Errorf("the file has more than %d bytes", maxConfigFile))
	}
	var doc struct {
		Servers map[string]struct {
			Command  string            `json:"command"`
			Args     []string          `json:"args"`
			Env      map[string]string `json:"env"`
			Dir      string            `json:"cwd"`
			URL      string            `json:"url"`
			Headers  map[string]string `json:"headers"`
			Disabled bool              `json:"disabled"`
		} `json:"mcpServers"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return fail(err)
	}
	var names []string
	for name := range doc.Servers {
		names = append(names, name)
	}
	slices.Sort(names)
	var out []Server
	for _, name := range names {
		d := doc.Servers[name]
		if d.Disabled {
			continue
		}
		s := Server{Name: name, Env: expandEnv(d.Env), Dir: d.Dir, URL: d.URL, Headers: expandEnv(d.Headers)}
		if d.Command != "" {
			s.Command = append([]string{d.Command}, d.Args...)
		}
		if err := s.check(); err != nil {
			return fail(err)
		}
		out = append(out, s)
	}
	return out, nil
}

var envReference = lazyregexp.New(`\$\{[A-Za-z_][A-Za-z0-9_]*\}`)

// expandEnv replaces ${NAME} in the values of m. It does not replace $NAME, because a dollar sign may be part of a
// secret.
func expandEnv(m map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		out[k] = envReference().ReplaceAllStringFunc(v, func(s string) string { return os.Getenv(s[2 : len(s)-1]) })
	}
	return out
}
