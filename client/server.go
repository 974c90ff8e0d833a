package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Server returns a description of the server and the identity of the caller.
func (c *Client) Server(ctx context.Context) (v1.Server, error) {
	return callJSON[v1.Server](ctx, c, get("query the server", "/v1/server", nil))
}

// Ready returns nil if the server can make sandboxes, else an error with the reason.
func (c *Client) Ready(ctx context.Context) error {
	return c.call(ctx, get("query the server", "/readyz", nil), nil)
}

// Shutdown stops the server. Sessions stay.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.call(ctx, post("shut down", "/v1/server/shutdown", nil), nil)
}

// GC removes expired records, unused snapshot data and stray sandboxes.
func (c *Client) GC(ctx context.Context) (v1.Collected, error) {
	r := post("collect garbage", "/v1/server/gc", nil)
	r.idempotent = true
	return callJSON[v1.Collected](ctx, c, r)
}

// DiskReport returns what takes space on the disk of the server. It requires a key of an operator.
func (c *Client) DiskReport(ctx context.Context) (v1.DiskReport, error) {
	return callJSON[v1.DiskReport](ctx, c, get("read disk use", "/v1/server/disk", nil))
}

// CreateKey creates a key. Only the result contains its secret.
func (c *Client) CreateKey(ctx context.Context, k v1.NewAPIKey) (v1.APIKey, error) {
	return callJSON[v1.APIKey](ctx, c, post("create key", "/v1/keys", k))
}

// Keys lists the keys of the tenant. For an operator without Options.Tenant, it lists all keys.
func (c *Client) Keys(ctx context.Context) ([]v1.APIKey, error) {
	r := get("list keys", "/v1/keys", nil)
	return collect(list(ctx, c, r, 0, func(p v1.APIKeys) ([]v1.APIKey, string) { return p.Keys, p.Next }))
}

// RevokeKey revokes a key. It stops working at once.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	r := remove("revoke key", "/v1/keys/"+url.PathEscape(id))
	r.idempotent = true
	return c.call(ctx, r, nil)
}

// Usage returns the quotas of the caller, and how much of them is in use.
func (c *Client) Usage(ctx context.Context) (v1.QuotaReport, error) {
	return callJSON[v1.QuotaReport](ctx, c, get("read usage", "/v1/usage", nil))
}

// Tenants lists tenants and their quotas. It requires a key of an operator.
func (c *Client) Tenants(ctx context.Context) ([]v1.Tenant, error) {
	r := get("list tenants", "/v1/tenants", nil)
	return collect(list(ctx, c, r, 0, func(p v1.TenantPage) ([]v1.Tenant, string) { return p.Tenants, p.Next }))
}

// Tenant returns a tenant and its quota. It requires a key of an operator.
func (c *Client) Tenant(ctx context.Context, name string) (v1.Tenant, error) {
	return callJSON[v1.Tenant](ctx, c, get("show tenant", "/v1/tenants/"+url.PathEscape(name), nil))
}

// SetTenant replaces the quota of a tenant, and the bounds of its network policies. It requires a key of an operator.
func (c *Client) SetTenant(ctx context.Context, name string, s v1.TenantSettings) (v1.Tenant, error) {
	return callJSON[v1.Tenant](ctx, c, request{
		op:         "set tenant",
		method:     http.MethodPut,
		path:       "/v1/tenants/" + url.PathEscape(name),
		body:       s,
		idempotent: true,
	})
}

// RemoveTenant removes the quota of a tenant. Its keys and sessions stay. It requires a key of an operator.
func (c *Client) RemoveTenant(ctx context.Context, name string) error {
	return c.call(ctx, remove("remove tenant", "/v1/tenants/"+url.PathEscape(name)), nil)
}

// Audit iterates over entries of the audit log, oldest first. The tenant is that of the client.
func (c *Client) Audit(ctx context.Context, o v1.AuditOptions) iter.Seq2[v1.AuditEntry, error] {
	q := url.Values{"limit": {pageSize(o.Limit)}, "after": {strconv.FormatInt(o.After, 10)}}
	set(q, "session", o.Session)
	set(q, "actor", o.Actor)
	set(q, "action", o.Action)
	if !o.Since.IsZero() {
		q.Set("since", o.Since.Format(time.RFC3339Nano))
	}
	if o.Last > 0 {
		q.Set("last", strconv.Itoa(o.Last))
	}
	return list(ctx, c, get("read audit log", "/v1/audit", q), o.Limit, func(p v1.AuditPage) ([]v1.AuditEntry, string) {
		if p.Next == 0 {
			return p.Entries, ""
		}
		return p.Entries, strconv.FormatInt(p.Next, 10)
	})
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
