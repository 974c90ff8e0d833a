//go:build linux

package agent

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
)

// early is how long a command runs unobserved. Most have ended by then, with their output still in the pipes, and cost one wake-up. For
// the others the nanny is asked for the pid then, and their timeout starts.
const early = 10 * time.Millisecond

// await waits for the end of the main process. While it is unknown whether the process runs, the event may also report that it could
// not be started, and is no exit then, or the error may be nanny.ErrDead.
func (c *running) await() (*nanny.Event, error) {
	for {
		if c.quiet {
			if err := c.listen(); err != nil {
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
			c.named(e.PID)
			return e, nil
		case e.PID != 0:
			c.named(e.PID)
			c.clock()
		}
		// Otherwise it is a list that the nanny's last user had asked for.
	}
}

// named records the main process.
func (c *running) named(pid int) {
	c.pid = pid
	c.op.SetPID(pid)
}

// listen reads the output of a quiet command until the nanny sends an event. One thread for pipes and nanny is enough, because nothing
// but the disk holds the output up.
func (c *running) listen() error {
	young := c.pid == 0
	grown := time.Now().Add(early)
	if c.req.Options.TimeoutNs > 0 {
		grown = time.Now().Add(min(early, time.Duration(c.req.Options.TimeoutNs)))
	}
	for !c.nanny.HasEvent() {
		fds := []unix.PollFd{{Fd: int32(c.nanny.FD()), Events: unix.POLLIN}}
		var open []*tap
		wait := -1
		if young {
			wait = int((max(0, time.Until(grown)) + time.Millisecond - 1) / time.Millisecond)
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
			grown = time.Now().Add(early) // after a second request it could not be told whether the nanny had started this command
			continue
		}
		if n == 0 {
			young = false
			_ = c.nanny.RequestPID() // Next reports a nanny that has died
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

// pump reads the rest of the pipes, each in a goroutine of its own. A pipe without a writer is read at once.
func (c *running) pump() {
	left := false
	for _, t := range c.taps {
		if c.quiet && t.fd >= 0 {
			t.rest()
		}
		if t.fd < 0 {
			continue
		}
		left = true
		c.pumps.Go(t.drain)
	}
	if !left {
		close(c.flown)
		return
	}
	go func() {
		c.pumps.Wait()
		close(c.flown)
	}()
}

// abandon closes the pipes of what never ran.
func (c *running) abandon() {
	for _, t := range c.taps {
		if t.fd >= 0 {
			t.close()
		}
	}
	c.closeInput()
}
