package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/api"
	"github.com/recluse-dev/recluse/session"
)

// Server describes the server, and whom it takes the caller for.
type Server struct {
	Version              string
	PID                  int
	Started              time.Time
	Tenant, Scope, Actor string
}

// Server asks who answers.
func (c *Client) Server(ctx context.Context) (Server, error) {
	var s api.Server
	err := c.call(ctx, request{op: "ask the server", method: http.MethodGet, path: "/v1/server", again: true}, &s)
	return Server(s), err
}

// Ready reports whether the server can make sandboxes; the error says why not.
func (c *Client) Ready(ctx context.Context) error {
	return c.call(ctx, request{op: "ask the server", method: http.MethodGet, path: "/readyz", again: true}, nil)
}

// Shutdown asks the server to end. Sessions live on.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.call(ctx, request{op: "shut down", method: http.MethodPost, path: "/v1/server/shutdown"}, nil)
}

// GC removes what nothing needs.
func (c *Client) GC(ctx context.Context) (session.Collected, error) {
	var out session.Collected
	err := c.call(ctx, request{op: "collect garbage", method: http.MethodPost, path: "/v1/server/gc", again: true}, &out)
	return out, err
}

// Key describes an API key. Secret is set by CreateKey alone: it is never shown again.
type Key struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Tenant  string     `json:"tenant"`
	Scope   string     `json:"scope"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires,omitempty"`
	Revoked *time.Time `json:"revoked,omitempty"`
	Secret  string     `json:"secret,omitempty"`
}

// KeyOptions says what key to make.
type KeyOptions struct {
	Name   string        // for people and for the audit log
	Tenant string        // empty: the caller's own; "*": an operator's key
	Scope  string        // read, execute or admin
	For    time.Duration // 0: it does not expire
}

// CreateKey makes a key.
func (c *Client) CreateKey(ctx context.Context, o KeyOptions) (Key, error) {
	var k api.Key
	in := api.NewKey{Name: o.Name, Tenant: o.Tenant, Scope: o.Scope, For: v1.Duration(o.For)}
	err := c.call(ctx, request{op: "create key", method: http.MethodPost, path: "/v1/keys", body: in}, &k)
	return Key(k), err
}

// Keys lists the keys of the tenant; an operator who names none sees all.
func (c *Client) Keys(ctx context.Context) ([]Key, error) {
	list, err := pages(func(q url.Values) ([]api.Key, string, error) {
		var page api.Keys
		err := c.call(ctx, request{op: "list keys", method: http.MethodGet, path: "/v1/keys", query: q, again: true}, &page)
		return page.Keys, page.Next, err
	})
	if err != nil {
		return nil, err
	}
	var out []Key
	for _, k := range list {
		out = append(out, Key(k))
	}
	return out, nil
}

// RevokeKey makes a key useless.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	return c.call(ctx, request{op: "revoke key", method: http.MethodDelete, path: "/v1/keys/" + url.PathEscape(id), again: true}, nil)
}

// Audit gives entries of the audit log, oldest first. The tenant is the client's own.
func (c *Client) Audit(ctx context.Context, o session.AuditOptions) iter.Seq2[session.Entry, error] {
	return func(yield func(session.Entry, error) bool) {
		given := 0
		for {
			q := url.Values{"limit": {strconv.Itoa(pageSize(o.Limit, given))}, "after": {strconv.FormatInt(o.After, 10)}}
			set(q, "session", o.Session)
			set(q, "actor", o.Actor)
			set(q, "action", o.Action)
			var page api.Audit
			if err := c.call(ctx, request{op: "read audit log", method: http.MethodGet, path: "/v1/audit", query: q, again: true}, &page); err != nil {
				yield(session.Entry{}, err)
				return
			}
			for _, e := range page.Entries {
				given++
				if !yield(e, nil) || given == o.Limit {
					return
				}
			}
			if page.Next == 0 {
				return
			}
			o.After = page.Next
		}
	}
}

// pages gives a whole list, which read gives page by page.
func pages[T any](read func(q url.Values) (page []T, next string, err error)) ([]T, error) {
	out := []T{}      // in JSON an empty list is one
	q := url.Values{} // a server of an earlier release gives these lists whole, and knows no page
	for {
		page, next, err := read(q)
		if err != nil {
			return nil, err
		}
		out = append(out, page...)
		if next == "" {
			return out, nil
		}
		q.Set("after", next)
	}
}

// pageSize is how much to ask for next; limit 0 means all.
func pageSize(limit, given int) int {
	const most = 1000
	if limit <= 0 {
		return most
	}
	return max(1, min(most, limit-given))
}

func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func flag(q url.Values, name string, value bool) {
	if value {
		q.Set(name, "true")
	}
}
