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

// Server describes an MCP server: a command or an address.
type Server struct {
	Name    string            // begins the names of its tools
	Command []string          // program and arguments, without a shell
	Env     map[string]string // variables of the program, beside the few that every one gets
	Dir     string            // where the program works; empty: where we do
	URL     string            // of streamable HTTP
	Headers map[string]string // of every request to the address
}

var serverName = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_-]{0,31}$`)

func invalid(name, format string, args ...any) error {
	return &v1.Error{Code: CodeServerInvalid, Op: "read MCP server " + name, Message: fmt.Sprintf(format, args...), Remedy: "write NAME=COMMAND, or NAME=https://…"}
}

// Parse reads NAME=COMMAND or NAME=URL. A command is split into words as a shell does it, with quotes and variables, and runs without one.
func Parse(text string) (Server, error) {
	name, what, ok := strings.Cut(text, "=")
	s := Server{Name: strings.TrimSpace(name)}
	what = strings.TrimSpace(what)
	if !ok || what == "" {
		return s, invalid(s.Name, "%q is not NAME=COMMAND", text)
	}
	if isURL(what) {
		s.URL = what
		return s, s.check()
	}
	words, err := shell.Fields(what, os.Getenv)
	if err != nil {
		return s, invalid(s.Name, "the command cannot be split into words: %v", err)
	}
	s.Command = words
	return s, s.check()
}

func isURL(text string) bool {
	return strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://")
}

// check refuses what cannot be a server.
func (s *Server) check() error {
	if !serverName().MatchString(s.Name) {
		return invalid(s.Name, "the name %q has not only letters, digits, - and _, or is longer than 32", s.Name)
	}
	if (len(s.Command) == 0) == (s.URL == "") {
		return invalid(s.Name, "it needs either a command or an address")
	}
	if len(s.Command) > 0 {
		if s.Command[0] == "" {
			return invalid(s.Name, "the command is empty")
		}
		return nil
	}
	u, err := url.Parse(s.URL)
	if err != nil || !isURL(s.URL) || u.Host == "" {
		return invalid(s.Name, "%q is no address of HTTP", s.URL)
	}
	return nil
}

// maxFile bounds a file that describes servers.
const maxFile = 1 << 20

// ReadFile reads servers from a file of the form that many agents have:
//
//	{"mcpServers": {"docs": {"command": "docs-server", "args": ["--stdio"], "env": {"TOKEN": "${DOCS_TOKEN}"}},
//	                "tracker": {"url": "https://tracker.example/mcp", "headers": {"Authorization": "Bearer ${TRACKER_TOKEN}"}}}}
//
// ${NAME} in a variable or header is taken from our environment.
func ReadFile(path string) ([]Server, error) {
	fail := func(err error) ([]Server, error) {
		return nil, &v1.Error{Code: CodeServerInvalid, Op: "read MCP servers", Message: path, Remedy: `the file must be {"mcpServers": {NAME: {"command": …, "args": […]}}}`, Err: err}
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fail(err)
	}
	if len(data) > maxFile {
		return fail(fmt.Errorf("it has more than %d bytes", maxFile))
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
		s := Server{Name: name, Env: expanded(d.Env), Dir: d.Dir, URL: d.URL, Headers: expanded(d.Headers)}
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

var braced = lazyregexp.New(`\$\{[A-Za-z_][A-Za-z0-9_]*\}`)

// expanded fills in ${NAME} alone: a bare dollar may be part of a secret.
func expanded(m map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		out[k] = braced().ReplaceAllStringFunc(v, func(s string) string { return os.Getenv(s[2 : len(s)-1]) })
	}
	return out
}
