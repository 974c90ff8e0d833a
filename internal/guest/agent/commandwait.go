//go:build linux

package agent

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
)

// quietTime is how long a quiet command runs before the guest looks at it. Most commands have ended by then, with their
// output still in the pipes, and cost one wake-up. For the others the guest then requests the pid from the nanny, and
// their timeout starts.
const quietTime = 10 * time.Millisecond

// await waits for the end of the main process. While it is unknown whether the process runs, the event may also report
// a failed start (Exited is then false), or the error may be nanny.ErrDead.
func (c *running) await() (*nanny.Event, error) {
	for {
		if c.quiet {
			if err := c.readUntilEvent(); err != nil {
				return nil, err
			}
		}
		e, err := c.nanny.Next()
		switch {
		case err != nil && c.pid == 0:
			return nil, c.nanny.StartError(err)
		case err != nil || e.Errno != 0 && c.pid == 0:
			return e, err
		case e.Exited:
			c.setPID(e.PID)
			return e, nil
		case e.PID != 0:
			c.setPID(e.PID)
			c.startTimeout()
		}
		// Otherwise it is a list that the previous user of the nanny has requested.
	}
}

// setPID records the pid of the main process.
func (c *running) setPID(pid int) {
	c.pid = pid
	c.op.SetPID(pid)
}

// readUntilEvent reads the output of a quiet command until the nanny sends an event. One thread is enough for pipes and
// nanny, because only the disk can delay the output.
func (c *running) readUntilEvent() error {
	early := c.pid == 0
	earlyEnd := time.Now().Add(quietTime)
	if c.req.Options.TimeoutNs > 0 {
		earlyEnd = time.Now().Add(min(quietTime, time.Duration(c.req.Options.TimeoutNs)))
	}
	for !c.nanny.HasEvent() {
		fds := []unix.PollFd{{Fd: int32(c.nanny.FD()), Events: unix.POLLIN}}
		var open []*tap
		wait := -1
		if early {
			wait = int((max(0, time.Until(earlyEnd)) + time.Millisecond - 1) / time.Millisecond)
		} else {
			for _, t := range c.taps {
				if t.fd >= 0 {
					open = append(open, t)
					fds = append(fds, unix.PollFd{Fd: int32(t.fd), Events: unix.POLLIN})
				}
			}
		}
		n, err := blocking.Poll(fds, wait)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 && !c.nanny.QueueEmpty() {
			// A second request now would make it impossible to tell whether the nanny has read the start.
			earlyEnd = time.Now().Add(quietTime)
			continue
		}
		if n == 0 {
			early = false
			_ = c.nanny.RequestPID() // if the nanny has died, Next reports it
		}
		if fds[0].Revents != 0 {
			return nil
		}
		for i, t := range open {
			if fds[i+1].Revents != 0 {
				t.read()
			}
		}
	}
	return nil
}

// pump reads the rest of the pipes, each in its own goroutine. A pipe without a writer is read at once.
func (c *running) pump() {
	left := false
	for _, t := range c.taps {
		if c.quiet && t.fd >= 0 {
			t.readRest()
		}
		if t.fd < 0 {
			continue
		}
		left = true
		c.pumps.Go(t.drain)
	}
	if !left {
		close(c.drained)
		return
	}
	go func() {
		c.pumps.Wait()
		close(c.drained)
	}()
}

// abandon closes the pipes of a command that never ran.
func (c *running) abandon() {
	for _, t := range c.taps {
		if t.fd >= 0 {
			t.close()
		}
	}
	c.closeInput()
}
