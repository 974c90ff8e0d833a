package config

import (
	"log/slog"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm/mcptools"
)

// MCP configures the MCP servers whose tools the code of runs can call. They can be programs of this machine, so only
// the configuration and callers over the user's own socket choose them.
type MCP struct {
	Servers   []string    `key:"servers" doc:"MCP servers, as NAME=COMMAND or NAME=URL; a command with a comma must be in the file"`
	File      string      `key:"file" path:"yes" doc:"file (JSON) with further MCP servers, in the format that many agents use; see docs/RLM.md for an example"`
	Timeout   v1.Duration `key:"timeout" doc:"timeout of a tool call"`
	MaxResult Size        `key:"max_result" doc:"maximum size of the result of a tool call"`
	Network   bool        `key:"network" doc:"also offer these tools to runs of callers over the network"`
}

func defaultMCP() MCP {
	return MCP{Timeout: v1.Duration(mcptools.DefaultTimeout), MaxResult: mcptools.DefaultMaxResult}
}

// Open returns the configured servers and those in more. It does not start them. The caller must close the set.
func (m MCP) Open(more []mcptools.Server, version string, log *slog.Logger) (*mcptools.Set, error) {
	var servers []mcptools.Server
	if m.File != "" {
		list, err := mcptools.ReadFile(m.File)
		if err != nil {
			return nil, err
		}
		servers = list
	}
	for _, text := range m.Servers {
		s, err := mcptools.Parse(text)
		if err != nil {
			return nil, err
		}
		servers = append(servers, s)
	}
	return mcptools.Open(append(servers, more...), mcptools.Options{
		Timeout:   m.Timeout.Std(),
		MaxResult: int64(m.MaxResult),
		Version:   version,
		Logger:    log,
	})
}
