//go:build linux

package nanny

import (
	"os"
	ossignal "os/signal"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropHandlers lets signals do to this process what they do by default. The runtime handles nearly all of them, and sets each one back in
// every child between fork and exec: sixty system calls, in gVisor half a millisecond of a command that takes five. It is for nannies that
// what they start cannot signal: some signals that the runtime shrugs off end a process by default.
func dropHandlers() {
	ossignal.Ignore() // all: this is what makes the runtime forget that it handles them
	const ignored = 1 // SIG_IGN, which children would inherit
	for s := uintptr(1); s <= 64; s++ {
		var act struct{ handler, flags, restorer, mask uint64 } // the kernel's; all zero is the default
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, s, 0, uintptr(unsafe.Pointer(&act)), unsafe.Sizeof(act.mask), 0, 0); e != 0 || act.handler != ignored {
			continue
		}
		act.handler, act.flags, act.restorer, act.mask = 0, 0, 0, 0
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&act)), 0, unsafe.Sizeof(act.mask), 0, 0) // it was readable, so it can be set
	}
}

// heedIgnored is for the nannies of our own user, who keep the runtime's handlers: what they start begins with signals that do what they do by
// default, also where this program is to ignore some. A shell tells that to what it starts in the background, and nohup to all, and Ctrl-C in a
// terminal would reach nobody. Children inherit what is ignored, and not what is caught.
func heedIgnored() {
	for _, s := range []os.Signal{unix.SIGHUP, unix.SIGINT} { // the runtime handles all others that may be told so
		if ossignal.Ignored(s) {
			ossignal.Notify(make(chan os.Signal, 1), s) // nobody listens
		}
	}
}
