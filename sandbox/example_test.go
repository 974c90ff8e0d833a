package sandbox_test

import (
	"fmt"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func ExampleVerdict() {
	for _, v := range []sandbox.Verdict{
		{Ended: v1.EndedExit},
		{Ended: v1.EndedExit, ExitCode: 3},
		{Ended: v1.EndedTimeout, ExitCode: -1, Wall: 2 * time.Second},
		{Ended: v1.EndedSignal, ExitCode: -1, Signal: syscall.SIGSEGV},
		{Ended: v1.EndedMemory, ExitCode: -1},
	} {
		fmt.Printf("%-5v %3d  %s\n", v.OK(), v.Status(), &v)
	}
	// Output:
	// true    0  exit status 0
	// false   3  exit status 3
	// false 124  timed out after 2s
	// false 139  ended by SIGSEGV
	// false 137  killed: out of memory
}
