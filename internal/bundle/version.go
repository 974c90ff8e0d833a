package bundle

import (
	"runtime/debug"
	"strings"
)

// version returns the version of our module in the running program, in the syntax of go install.
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
		return "latest" // the version of a working tree, perhaps with changes, is not published
	}
	return m.Version
}
