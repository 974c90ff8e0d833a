//go:build linux

package nanny

import (
	"os"
	ossignal "os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// In a container a nanny belongs to the user whose code it looks after: there is no other user to be, without capabilities. That code can
// kill a nanny, which ends the code as well, and it can stop one (kill -STOP -1), after which nobody would hear of a time-out. The
// guest is the nanny's parent and hears of that, so it lets the nanny go on at once.

var awake struct {
	sync.Mutex
	all    map[*Nanny]bool // guarded by Mutex; those that live
	notice chan os.Signal  // guarded by Mutex; nil: none lives
}

// keepAwake looks after a nanny until the returned function is called.
func keepAwake(n *Nanny) (release func()) {
	awake.Lock()
	defer awake.Unlock()
	if awake.notice == nil {
		awake.all, awake.notice = map[*Nanny]bool{}, make(chan os.Signal, 1)
		ossignal.Notify(awake.notice, unix.SIGCHLD)
		go func(notice <-chan os.Signal) {
			for range notice {
				wakeStopped()
			}
		}(awake.notice)
	}
	awake.all[n] = true
	return func() {
		awake.Lock()
		defer awake.Unlock()
		delete(awake.all, n)
		if len(awake.all) == 0 {
			ossignal.Stop(awake.notice)
			close(awake.notice)
			awake.notice = nil
		}
	}
}

func wakeStopped() {
	awake.Lock()
	defer awake.Unlock()
	for n := range awake.all {
		var info unix.Siginfo
		// An exit is left for whoever waits for it.
		if err := unix.Waitid(unix.P_PID, n.PID(), &info, unix.WSTOPPED|unix.WNOHANG, nil); err == nil && info.Signo != 0 {
			_ = unix.Kill(n.PID(), unix.SIGCONT) // it is our child, and not reaped: the pid is still its own
		}
	}
}
