package bundle

import (
	"runtime/debug"
	"strings"
)

// version is that of our module in the running program, as go install understands it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "latest"
	}
	m := &info.Main
	if m.Path != module {
		for _, d := range info.Deps {
			if d.Path == module {
				m = d
			}
		}
	}
	if m.Path != module || !strings.HasPrefix(m.Version, "v") || strings.Contains(m.Version, "+") {
		return "latest" // a working tree's version, perhaps with changes, is nowhere to be had
	}
	return m.Version
}
