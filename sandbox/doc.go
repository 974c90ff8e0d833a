// Package sandbox runs model-written Python and bash in isolated sandboxes.
//
// A [Backend] makes sandboxes. [Open] makes one and connects to the guest in it. A
// [Sandbox] runs cells (Python, in a live interpreter whose state stays) and commands
// (any program or shell script), and reads and writes files. [Sandbox.Snapshot] and
// [Sandbox.Fork] copy it, [Sandbox.Close] ends it:
//
//	b, err := gvisor.New(gvisor.Options{})
//	…
//	sb, err := sandbox.Open(ctx, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 256 << 20}})
//	…
//	defer sb.Close()
//	v, err := sb.Cell(ctx, sandbox.Cell{Code: "x = 41\nx + 1"})
//	fmt.Println(v.Result.Text()) // 42
//
// Failures of the code and failures of the machinery are separate. The [Verdict] holds what the
// code did: an exit code, a signal, an exception, a timeout. A failure of the machinery is an
// error, always a [v1.Error] with a stable code. A program that shows results to a model shows
// it the verdict, and stops at an error.
//
// This package contains no backend. Backends are in sandbox/gvisor, sandbox/docker and
// sandbox/local. Package sandbox/backend selects one of several, and declares the interfaces that
// a backend may implement.
package sandbox
