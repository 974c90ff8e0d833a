// Package sandbox runs model-written Python and bash in machines of their own.
//
// A [Backend] makes sandboxes; [Open] makes one and connects to the guest in it. A
// [Sandbox] then runs cells (Python, in a live interpreter where state stays) and commands
// (any program or shell script), reads and writes files, and is snapshot, forked and closed:
//
//	b, err := gvisor.New(gvisor.Options{})
//	…
//	sb, err := sandbox.Open(ctx, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 256 << 20}})
//	…
//	defer sb.Close()
//	v, err := sb.Cell(ctx, sandbox.Cell{Code: "x = 41\nx + 1"})
//	fmt.Println(v.Result.Text()) // 42
//
// Two kinds of failure are kept apart. What the code did is in the [Verdict]: an exit code, a
// signal, an exception, a time-out. What went wrong with the machinery is an error, always an
// [Error] with a stable [Code]. Whoever shows results to a model shows it the first, and stops at the second.
//
// This package holds the domain and no backend. Backends are in sandbox/gvisor, sandbox/docker and
// sandbox/local; package sandbox/backend chooses among several and says what a backend implements.
package sandbox
