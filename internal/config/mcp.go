package config

import (
	"log/slog"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm/mcptools"
)

// MCP configures the servers whose tools runs get. They are programs of this machine, so only its owner chooses them.
type MCP struct {
	Servers   []string    `key:"servers" doc:"MCP servers whose tools code of runs can call, NAME=COMMAND or NAME=URL; a command with a comma belongs into the file"`
	File      string      `key:"file" path:"yes" doc:"file (JSON) with more of them, in the form that many agents have; docs/RLM.md shows one"`
	Timeout   v1.Duration `key:"timeout" doc:"for a call of such a tool"`
	MaxResult Size        `key:"max_result" doc:"bytes of a result of such a tool"`
	Network   bool        `key:"network" doc:"give these tools also to the runs of callers over the network"`
}

func defaultMCP() MCP {
	return MCP{Timeout: v1.Duration(mcptools.DefaultTimeout), MaxResult: mcptools.DefaultMaxResult}
}

// Open gives the servers that are configured, and more. It starts none. Close the set.
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
	return mcptools.Open(append(servers, more...), mcptools.Options{Timeout: m.Timeout.Std(), MaxResult: int64(m.MaxResult), Version: version, Logger: log})
}
