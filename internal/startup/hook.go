package startup

import (
	"strings"

	"github.com/recluse-dev/recluse/internal/agents"
)

// plainHook returns the hook for a command line "hook" with valid flags of the hook. It returns false for all other
// command lines, which the command itself handles and reports errors for.
func plainHook(args []string) (*agents.Hook, bool) {
	if len(args) == 0 || args[0] != "hook" {
		return nil, false
	}
	f := agents.HookFlags{Unexpected: string(agents.Block)}
	flags := map[string]*string{
		"--agent":      &f.Agent,
		"--project":    &f.Project,
		"--permission": &f.Permission,
		"--unexpected": &f.Unexpected,
	}
	for args = args[1:]; len(args) > 0; {
		name, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		if !joined {
			if len(args) == 0 {
				return nil, false
			}
			value, args = args[0], args[1:]
		}
		target, ok := flags[name]
		if !ok {
			return nil, false
		}
		*target = value
	}
	h, err := agents.NewHook(f)
	return h, err == nil
}
