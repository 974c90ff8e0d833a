// Package startup answers an agent's hook before the rest of the program is initialised.
//
// Before main begins, Go initialises every linked package, used or not: 2 MB of tables and regular expressions of
// libraries that most commands never call, about 6 ms of CPU time. An agent's hook runs before every tool call of the
// agent and needs none of these packages, so the init function of this package answers it.
//
// The Go specification defines the order: packages are sorted by import path, and each is initialised as soon as all
// its imports are. This package has few imports, so it is initialised before most of the expensive packages. Keep it
// so, because every hook pays for its imports. Above all, do not import regexp: without it, this package is initialised
// before all packages that compile regular expressions.
package startup

import "os"

func init() {
	if h, ok := plainHook(os.Args[1:]); ok {
		os.Exit(h.Serve(os.Stdin, output(os.Stdout), output(os.Stderr))) //nolint:forbidigo // no clean-up is needed yet
	}
}
