//go:build linux

package agent

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
)

// early is how long a command is left to itself. Most have ended by then, with what they said still in the pipes, and cost one wake-up; of the others
// the process is asked for then, to be listed, and their time begins.
const early = 10 * time.Millisecond

// await waits for the end of the main process. Where it was not known to have begun, it may also be that it could not be started, and the
// event is not that of an exit then; or nanny.ErrDead.
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
			return nil, c.nanny.Started(err)
		case err != nil || e.Errno != 0 && c.pid == 0:
			return e, err
		case e.Exited:
			c.named(e.PID)
			return e, nil
		case e.PID != 0:
			c.named(e.PID)
			c.clock()
		}
		// Otherwise a list that the last user of this nanny had asked for.
	}
}

// named notes the main process.
func (c *running) named(pid int) {
	c.pid = pid
	c.op.SetPID(pid)
}

// listen takes the output of a quiet command until the nanny has something to say. One thread for pipes and nanny is enough, because nobody but the
// disk holds the output up.
func (c *running) listen() error {
	young := c.pid == 0
	grown := time.Now().Add(early)
	if c.req.Options.TimeoutNs > 0 {
		grown = time.Now().Add(min(early, time.Duration(c.req.Options.TimeoutNs)))
	}
	for !c.nanny.Heard() {
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
		if n == 0 && !c.nanny.Taken() {
			grown = time.Now().Add(early) // were it asked for more, nobody could tell afterwards whether it had started this
			continue
		}
		if n == 0 {
			young = false
			_ = c.nanny.RequestPID() // one that has died is heard of like any other end
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

// pump reads what the pipes still give, each on its own. What nobody can write to any more is read at once.
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
