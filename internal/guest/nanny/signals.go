//go:build linux

package nanny

import (
	"os"
	ossignal "os/signal"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropHandlers restores the default action of all signals. The Go runtime handles nearly all signals, and resets each
// handler in every child between fork and exec: sixty system calls, which in gVisor take half a millisecond of a
// command of five. Use it only in nannies that their children cannot signal, because some signals that the runtime
// ignores kill a process by default.
func dropHandlers() {
	ossignal.Ignore() // all signals: after this the runtime no longer resets them in children
	const ignored = 1 // SIG_IGN, which children would inherit
	for s := uintptr(1); s <= 64; s++ {
		// The kernel's struct sigaction; zero means the default action.
		var act struct{ handler, flags, restorer, mask uint64 }
		_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION,
			s, 0, uintptr(unsafe.Pointer(&act)), unsafe.Sizeof(act.mask), 0, 0)
		if e != 0 || act.handler != ignored {
			continue
		}
		act.handler, act.flags, act.restorer, act.mask = 0, 0, 0, 0
		// It was readable, so setting it cannot fail.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION,
			s, uintptr(unsafe.Pointer(&act)), 0, unsafe.Sizeof(act.mask), 0, 0)
	}
}

// resetIgnored makes children start with the default action of SIGHUP and SIGINT, even if this process ignores them. It
// is for nannies that run as our own user, which keep the runtime's handlers. A shell makes background processes ignore
// SIGINT, and nohup makes processes ignore SIGHUP; without the reset, Ctrl-C in a terminal would have no effect.
// Children inherit ignored signals, but not caught ones.
func resetIgnored() {
	for _, s := range []os.Signal{unix.SIGHUP, unix.SIGINT} { // the runtime handles all others
		if ossignal.Ignored(s) {
			ossignal.Notify(make(chan os.Signal, 1), s) // the channel is never read
		}
	}
}
