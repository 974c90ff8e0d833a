package e2b

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/session"
)

// The labels that keep what E2B knows about a sandbox and a session does not. Names that begin with ownLabels are not
// metadata.
const (
	ownLabels     = "e2b."
	labelTemplate = "e2b.template"
	labelResume   = "e2b.auto-resume"
	labelPublic   = "e2b.public-traffic"
	labelMemory   = "e2b.pause-memory" // "false": only files survive the pause after the timeout
)

// The templates that every server has. Both are the default sandbox.
var builtinTemplates = []string{"base", "code-interpreter-v1"}

// idBytes is the number of random bytes of an id, so that it cannot be guessed.
const idBytes = 10

// The messages, which the client of sandbox/e2b uses, too.
type (
	newSandbox     = wire.NewSandbox
	access         = wire.Access
	details        = wire.Details
	lifecycle      = wire.Lifecycle
	networkOptions = wire.NetworkOptions
	snapshotInfo   = wire.SnapshotInfo
	failure        = wire.Failure
)

func (c *call) access(ses *session.Session) access {
	i := ses.Info()
	return access{
		Sandbox:      i.Key.Name,
		Template:     templateOf(i),
		Client:       "recluse",
		Version:      envdVersion,
		Token:        c.token(envdToken, i.Key, i.ID),
		TrafficToken: c.token(trafficToken, i.Key, i.ID),
		Domain:       c.domain(c.r),
	}
}

// domain returns the domain of the host names of ports, with the port of this server.
func (h *Handler) domain(r *http.Request) string {
	domain := cmp.Or(h.opts.Domain, "localhost")
	if _, _, err := net.SplitHostPort(domain); err == nil {
		return domain
	}
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		return net.JoinHostPort(domain, port)
	}
	return domain
}

// ours reports whether a session was created as a sandbox of E2B.
func ours(i session.Info) bool { return i.Labels[labelTemplate] != "" }

func templateOf(i session.Info) string {
	return cmp.Or(i.Labels[labelTemplate], i.Spec.Image, builtinTemplates[0])
}

// create makes a sandbox.
func (c *call) create(timeout time.Duration) error {
	var in newSandbox
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	if in.Secure != nil && !*in.Secure {
		return unsupported("secure: false, access to a sandbox without a token,")
	}
	filesOnly := in.AutoPauseMemory != nil && !*in.AutoPauseMemory
	if filesOnly && (!in.AutoPause || in.AutoResume.Enabled) {
		return invalid("autoPauseMemory: false requires autoPause, and excludes autoResume")
	}
	if in.AutoResume.Enabled && !in.AutoPause {
		return invalid("autoResume requires autoPause")
	}
	timeout, err := timeoutOf(in.Timeout, timeout)
	if err != nil {
		return err
	}
	network, err := policyOf(in.Network, in.Internet)
	if err != nil {
		return err
	}
	labels := map[string]string{labelTemplate: cmp.Or(in.Template, builtinTemplates[0])}
	for name, value := range in.Metadata {
		if strings.HasPrefix(name, ownLabels) {
			return invalid("names of metadata that begin with " + ownLabels + " are reserved")
		}
		labels[name] = value
	}
	if in.AutoResume.Enabled {
		labels[labelResume] = "true"
	}
	if filesOnly {
		labels[labelMemory] = "false"
	}
	if in.Network.Public != nil && !*in.Network.Public {
		labels[labelPublic] = "false"
	}
	o := session.OpenOptions{New: true, Settings: session.Settings{Labels: labels, Policy: v1.Policy{
		Expires: v1.Duration(timeout),
		Idle:    v1.NoLimit,
		OnIdle:  v1.IdleKeep,
	}}}
	if in.AutoPause {
		o.Policy.OnExpiry = v1.ExpiryHibernate
	}
	if err := c.fromTemplate(&o.Settings, in.Template); err != nil {
		return err
	}
	if o.From != "" && len(in.Env) > 0 {
		return unsupported("envs for a sandbox that is made from a snapshot")
	}
	if o.Spec != nil {
		o.Spec.Env = in.Env
		if network != nil {
			o.Spec.Network = *network
		}
	}
	ses, _, err := c.manager.Open(c.r.Context(), session.Key{Tenant: c.tenant, Name: ids.Hex(idBytes)}, o)
	if err != nil {
		return err
	}
	if network != nil && o.Spec == nil { // the policy of a snapshot stays until it is replaced
		if _, err := ses.SetNetwork(c.r.Context(), v1.SessionNetwork{Network: *network}); err != nil {
			return errors.Join(err, ses.End(context.WithoutCancel(c.r.Context()), "its network policy was refused"))
		}
	}
	return c.reply(http.StatusCreated, c.access(ses))
}
