package e2b

import (
	"net/http"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// The timeouts of a request without one. The first version of the API has another one.
const (
	defaultTimeout   = 300 * time.Second
	defaultTimeoutV1 = 15 * time.Second
	// longestTimeout does not overflow a time.Time, however often it is set.
	longestTimeout = 10 * 365 * 24 * time.Hour
)

// timeoutOf returns a timeout in seconds as a duration.
func timeoutOf(seconds *int64, byDefault time.Duration) (time.Duration, error) {
	switch {
	case seconds == nil:
		return byDefault, nil
	case *seconds < 1 || *seconds > int64(longestTimeout/time.Second):
		return 0, invalid("the timeout is out of range: want 1 second to 10 years")
	}
	return time.Duration(*seconds) * time.Second, nil
}

// connect returns the token of a sandbox, and wakes it. The end of a running sandbox is only ever moved further away.
func (c *call) connect(ses *session.Session) error {
	var in struct {
		Timeout   *int64 `json:"timeout"`
		Memory    *bool  `json:"memory"`
		AutoPause *bool  `json:"autoPause"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	i := ses.Info()
	reboot := in.Memory != nil && !*in.Memory || i.Labels[labelMemory] == "false" && !pausedWithMemory(c.r.Context(), ses)
	if in.AutoPause != nil && *in.AutoPause != (i.Policy.OnExpiry == v1.ExpiryHibernate) {
		return unsupported("changing autoPause of a sandbox")
	}
	timeout, err := timeoutOf(in.Timeout, defaultTimeout)
	if err != nil {
		return err
	}
	status := http.StatusOK
	end := time.Now().Add(timeout)
	if i.State == v1.StateHibernated {
		status = http.StatusCreated
	}
	// A paused sandbox has no end. That of a session which was created otherwise is not made earlier, either.
	if i.Expires == nil && ours(i) && i.State == v1.StateHibernated || i.Expires != nil && i.Expires.Before(end) {
		err = ses.SetExpiry(c.r.Context(), end)
	}
	if err == nil {
		err = ses.Resume(c.r.Context())
	}
	if err == nil && reboot && i.State == v1.StateHibernated {
		err = endProcesses(c.r.Context(), ses)
	}
	if err == nil && i.Labels[labelMemory] == "false" {
		if err = ses.DeleteVar(c.r.Context(), pausedVar); v1.CodeOf(err) == v1.CodeVarNotFound {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	return c.reply(status, c.access(ses))
}

func (c *call) kill(ses *session.Session) error {
	if err := ses.End(c.r.Context(), "killed over the API of E2B"); err != nil {
		return err
	}
	return c.done()
}

// pause hibernates a sandbox; without memory it ends its processes first. It then has no end: the operator's limit for
// hibernated sessions applies.
func (c *call) pause(ses *session.Session) error {
	var in struct {
		Memory *bool `json:"memory"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	if ses.Info().State == v1.StateHibernated {
		fail(c.w, http.StatusConflict, "the sandbox is paused already")
		return nil
	}
	switch {
	case in.Memory != nil && !*in.Memory:
		if err := endProcesses(c.r.Context(), ses); err != nil {
			return err
		}
	case ses.Info().Labels[labelMemory] == "false":
		if err := ses.SetVar(c.r.Context(), pausedVar, "with memory"); err != nil {
			return err
		}
	}
	if err := ses.Hibernate(c.r.Context()); err != nil {
		return err
	}
	if ours(ses.Info()) {
		if err := ses.SetExpiry(c.r.Context(), time.Time{}); err != nil {
			return err
		}
	}
	return c.done()
}

func (c *call) timeout(ses *session.Session) error {
	var in struct {
		Timeout *int64 `json:"timeout"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	if in.Timeout == nil {
		return invalid("the timeout is missing")
	}
	if *in.Timeout == 0 {
		return c.kill(ses)
	}
	timeout, err := timeoutOf(in.Timeout, 0)
	if err != nil {
		return err
	}
	if err := ses.SetExpiry(c.r.Context(), time.Now().Add(timeout)); err != nil {
		return err
	}
	return c.done()
}

// refresh moves the end of a sandbox further away.
func (c *call) refresh(ses *session.Session) error {
	var in struct {
		Duration *int64 `json:"duration"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	timeout, err := timeoutOf(in.Duration, defaultTimeoutV1)
	if err != nil {
		return err
	}
	end := time.Now().Add(timeout)
	if i := ses.Info(); i.Expires != nil && i.Expires.Before(end) {
		if err := ses.SetExpiry(c.r.Context(), end); err != nil {
			return err
		}
	}
	return c.done()
}
