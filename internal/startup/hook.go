package startup

import (
	"strings"

	"github.com/recluse-dev/recluse/internal/agents"
)

// hook gives the hook that a command line asks for, if it asks for nothing else. Whatever is not plain and right is left to the verb
// itself, which knows how to tell what is wrong.
func hook(args []string) (*agents.Hook, bool) {
	if len(args) == 0 || args[0] != "hook" {
		return nil, false
	}
	f := agents.HookFlags{Unexpected: string(agents.Block)}
	known := map[string]*string{"--agent": &f.Agent, "--project": &f.Project, "--permission": &f.Permission, "--unexpected": &f.Unexpected}
	for args = args[1:]; len(args) > 0; {
		name, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		if !joined {
			if len(args) == 0 {
				return nil, false
			}
			value, args = args[0], args[1:]
		}
		into, ok := known[name]
		if !ok {
			return nil, false
		}
		*into = value
	}
	h, err := agents.NewHook(f)
	return h, err == nil
}
