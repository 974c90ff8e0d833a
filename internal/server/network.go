package server

import (
	"context"
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// networkRoutes returns the routes of the network of sessions.
func networkRoutes() []route {
	const path = "/v1/sessions/{session}/network"
	theSession := (*call).session
	return []route{
		on("GET", path, "network", "Show the network policy of a session; the answer can be sent back with PUT",
			scopeRead, using(theSession, showNetwork)),
		on("PUT", path, "network", "Replace the network policy of a session, and close connections that it does not allow",
			scopeExecute, using(theSession, setNetwork)).filling(),
		on("POST", path+"/check", "network", "Show what the network policy decides about a destination; opens nothing",
			scopeRead, using(theSession, checkNetwork)),
		raw[none, v1.NetworkLogPage]("GET", path+"/log", "network",
			"Latest connections of a session, or as events while they happen",
			scopeRead, rawUsing(theSession, networkLog)).
			with(
				qLimit,
				number("after", "start with the entry after this seq; with events, Last-Event-ID does the same"),
				flag("follow", "with events: continue with later entries; true if left out"),
			).
			streaming(&networkStream).lasting(),
	}
}

func showNetwork(c *call, ses *session.Session, _ none) (v1.SessionNetwork, error) {
	return ses.Network(c.ctx())
}

// setNetwork replaces the network policy. A session token cannot do so, as it cannot open a session with a policy: its
// holder may be the code that the policy is for.
func setNetwork(c *call, ses *session.Session, in v1.SessionNetwork) (v1.SessionNetwork, error) {
	if c.who.session != "" {
		return v1.SessionNetwork{}, &v1.Error{
			Code:    v1.CodeForbidden,
			Op:      "set network policy",
			Message: "a session token cannot change the network policy",
			Remedy:  "use an API key with the scope execute",
		}
	}
	return ses.SetNetwork(c.ctx(), in)
}

func checkNetwork(c *call, ses *session.Session, in v1.NetworkCheckRequest) (v1.NetworkDecision, error) {
	return ses.CheckNetwork(c.ctx(), in.Destination)
}

// networkLog returns a page of the network log, or streams it if the caller accepts events.
func networkLog(c *call, ses *session.Session) error {
	if c.wantsEvents() {
		entries := func(ctx context.Context, after int64, follow bool) iter.Seq2[v1.NetworkEvent, error] {
			return ses.NetworkLog(ctx, v1.NetworkLogOptions{After: after, Follow: follow})
		}
		return sendEvents(c, entries, func(e v1.NetworkEvent) (int64, string) { return e.Seq, v1.EventNetwork })
	}
	limit, out := c.page(), v1.NetworkLogPage{Entries: []v1.NetworkEvent{}}
	for e, err := range ses.NetworkLog(c.ctx(), v1.NetworkLogOptions{After: c.number("after", 0)}) {
		if err != nil {
			return err
		}
		if len(out.Entries) == limit {
			out.Next = out.Entries[limit-1].Seq
			break
		}
		out.Entries = append(out.Entries, e)
	}
	return c.reply(out)
}

func (n *sessionCollector) network(ch chan<- prometheus.Metric, s session.NetworkStats) {
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	count(descConnections, s.Allowed, "allow")
	count(descConnections, s.Denied, "deny")
	count(descLookups, s.Lookups)
	count(descBytes, s.Sent, "sent")
	count(descBytes, s.Received, "received")
}
