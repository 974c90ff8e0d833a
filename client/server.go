package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Server asks who answers.
func (c *Client) Server(ctx context.Context) (v1.Server, error) {
	var s v1.Server
	err := c.call(ctx, request{op: "ask the server", method: http.MethodGet, path: "/v1/server", again: true}, &s)
	return s, err
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
func (c *Client) GC(ctx context.Context) (v1.Collected, error) {
	var out v1.Collected
	err := c.call(ctx, request{op: "collect garbage", method: http.MethodPost, path: "/v1/server/gc", again: true}, &out)
	return out, err
}

// CreateKey makes a key. The result alone has its secret.
func (c *Client) CreateKey(ctx context.Context, k v1.NewAPIKey) (v1.APIKey, error) {
	var out v1.APIKey
	err := c.call(ctx, request{op: "create key", method: http.MethodPost, path: "/v1/keys", body: k}, &out)
	return out, err
}

// Keys lists the keys of the tenant; an operator who names none sees all.
func (c *Client) Keys(ctx context.Context) ([]v1.APIKey, error) {
	return pages(func(q url.Values) ([]v1.APIKey, string, error) {
		var page v1.APIKeys
		err := c.call(ctx, request{op: "list keys", method: http.MethodGet, path: "/v1/keys", query: q, again: true}, &page)
		return page.Keys, page.Next, err
	})
}

// RevokeKey makes a key useless.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	return c.call(ctx, request{op: "revoke key", method: http.MethodDelete, path: "/v1/keys/" + url.PathEscape(id), again: true}, nil)
}

// Audit gives entries of the audit log, oldest first. The tenant is the client's own.
func (c *Client) Audit(ctx context.Context, o v1.AuditOptions) iter.Seq2[v1.AuditEntry, error] {
	return func(yield func(v1.AuditEntry, error) bool) {
		given := 0
		for {
			q := url.Values{"limit": {strconv.Itoa(pageSize(o.Limit, given))}, "after": {strconv.FormatInt(o.After, 10)}}
			set(q, "session", o.Session)
			set(q, "actor", o.Actor)
			set(q, "action", o.Action)
			var page v1.AuditPage
			if err := c.call(ctx, request{op: "read audit log", method: http.MethodGet, path: "/v1/audit", query: q, again: true}, &page); err != nil {
				yield(v1.AuditEntry{}, err)
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
