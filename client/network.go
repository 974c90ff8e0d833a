package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Network returns the network policy of the session, which SetNetwork accepts.
func (s *Session) Network(ctx context.Context) (v1.SessionNetwork, error) {
	return callJSON[v1.SessionNetwork](ctx, s.c, get("show network policy", s.path+"/network", nil))
}

// SetNetwork replaces the network policy of the session, and closes connections that it does not allow. If
// n.Generation is set and is not that of the policy in force, nothing changes, and the error has code network_changed.
func (s *Session) SetNetwork(ctx context.Context, n v1.SessionNetwork) (v1.SessionNetwork, error) {
	return callJSON[v1.SessionNetwork](ctx, s.c, request{
		op:         "set network policy",
		method:     http.MethodPut,
		path:       s.path + "/network",
		body:       n,
		idempotent: n.Generation == 0,
	})
}

// CheckNetwork returns what the network policy of the session decides about a destination: a name or an address, with
// or without a port, or a URL. It opens nothing.
func (s *Session) CheckNetwork(ctx context.Context, destination string) (v1.NetworkDecision, error) {
	in := v1.NetworkCheckRequest{Destination: destination}
	return callJSON[v1.NetworkDecision](ctx, s.c, post("check network policy", s.path+"/network/check", in))
}

// NetworkLog iterates over the latest connections of the session.
func (s *Session) NetworkLog(ctx context.Context, o v1.NetworkLogOptions) iter.Seq2[v1.NetworkEvent, error] {
	q := url.Values{"after": {strconv.FormatInt(o.After, 10)}, "follow": {strconv.FormatBool(o.Follow)}}
	return events[v1.NetworkEvent](ctx, s.c, "follow network log", s.path+"/network/log", q)
}
