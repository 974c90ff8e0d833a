// Package startup does what cannot wait until a large program is initialised.
//
// Before main begins, Go initialises every package that is linked in, used or not: 2 MB of tables and regular expressions of libraries that
// most verbs never call, some 6 ms of processor time. An agent's hook runs before every tool that the agent
// uses and needs nothing of it, so it is answered from here.
//
// The language promises the order: packages are initialised by their import paths, each as soon as all that it imports is ready. This one
// imports little, so it comes before most of the expensive ones. Keep it so: what is imported here is paid by every hook. Regular expressions
// above all: a package that needs none is initialised before all that compile some.
package startup

import "os"

func init() {
	if h, ok := hook(os.Args[1:]); ok {
		os.Exit(h.Serve(os.Stdin, output(os.Stdout), output(os.Stderr))) //nolint:forbidigo // nothing has begun that would need an end
	}
}
