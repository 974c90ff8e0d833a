//go:build linux

package nanny

import (
	"os"
	ossignal "os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// In a container, a nanny runs as the user whose code it supervises, because without capabilities it cannot switch
// users. That code can kill a nanny, which also ends the code. It can also stop a nanny (kill -STOP -1), and then no
// timeout would be enforced. The guest is the parent of the nanny and is notified of the stop, so it continues the
// nanny at once.

var awake struct {
	sync.Mutex
	all    map[*Nanny]bool // guarded by Mutex; all running nannies
	notice chan os.Signal  // guarded by Mutex; nil: no nanny is running
}

// keepAwake continues a nanny whenever it is stopped, until release is called.
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
		// WSTOPPED only: an exit is left for Wait.
		err := unix.Waitid(unix.P_PID, n.PID(), &info, unix.WSTOPPED|unix.WNOHANG, nil)
		if err == nil && info.Signo != 0 {
			_ = unix.Kill(n.PID(), unix.SIGCONT) // it is our child and not reaped, so the pid is still its own
		}
	}
}
