package server

import (
	"fmt"
	"net/http"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/session"
)

// createKey creates a key. Only this answer contains the secret.
func createKey(c *call, in v1.NewAPIKey) (v1.APIKey, error) {
	sc, err := parseScope(in.Scope)
	if err != nil {
		return v1.APIKey{}, err
	}
	if in.Name == "" || len(in.Name) > 128 {
		return v1.APIKey{}, invalid("invalid key name: want 1 to 128 bytes")
	}
	tenant := in.Tenant
	if tenant == "" {
		tenant = c.who.tenant
	}
	if tenant != c.who.tenant && !c.who.operator {
		return v1.APIKey{}, &v1.Error{
			Code:    v1.CodeForbidden,
			Op:      "create key",
			Message: "only an operator may create keys for another tenant",
		}
	}
	if tenant != allTenants && !validName(tenant) {
		return v1.APIKey{}, invalid("invalid tenant name %q", tenant)
	}
	if err := in.Quota.Validate(); err != nil {
		return v1.APIKey{}, invalid("quota: %v", err)
	}
	if err := checkNetworkBounds(in.Network); err != nil {
		return v1.APIKey{}, err
	}
	text, id, hash := newSecret(keyPrefix)
	if in.E2B {
		text, id, hash = newE2BSecret()
	}
	k := store.APIKey{
		Quota:   in.Quota,
		Network: in.Network,
		ID:      id,
		Name:    in.Name,
		Tenant:  tenant,
		Scopes:  []string{sc.String()},
		Hash:    hash,
		Created: time.Now(),
	}
	if in.For > 0 {
		k.Expires = k.Created.Add(time.Duration(in.For))
	}
	err = c.s.access.store.AddKey(c.ctx(), k)
	c.noteKey("key.create", k, err)
	if err != nil {
		return v1.APIKey{}, err
	}
	c.s.access.mu.Lock()
	c.s.access.keys[id] = k
	c.s.access.mu.Unlock()
	c.status = http.StatusCreated
	out := keyInfo(k)
	out.Secret = text
	return out, nil
}

// noteKey records an action on a key in the audit log of the key's tenant, without the secret and its hash.
func (c *call) noteKey(action string, k store.APIKey, err error) {
	e := session.Entry{
		Tenant: k.Tenant, Action: action, Error: string(v1.CodeOf(err)),
		Detail: fmt.Sprintf("%s %q, tenant %s, scope %s", k.ID, k.Name, k.Tenant, scopeOf(k.Scopes)),
	}
	if e.Tenant == allTenants { // it has no log
		e.Tenant = c.who.tenant
	}
	c.s.manager.Note(c.ctx(), e)
}

func listKeys(c *call, _ none) (v1.APIKeys, error) {
	tenant := c.who.tenant
	if c.who.operator && c.r.Header.Get(v1.HeaderTenant) == "" {
		tenant = "" // all of them
	}
	keys, err := c.s.access.store.Keys(c.ctx(), tenant)
	if err != nil {
		return v1.APIKeys{}, err
	}
	page, next := paged(c, keys, func(k store.APIKey) string { return pageKey("", k.Created, k.ID) })
	out := v1.APIKeys{Keys: make([]v1.APIKey, len(page)), Next: next}
	for i, k := range page {
		out.Keys[i] = keyInfo(k)
	}
	return out, nil
}

func revokeKey(c *call, _ none) (none, error) {
	tenant := c.who.tenant
	if c.who.operator {
		tenant = ""
	}
	id := c.r.PathValue("key")
	there, err := c.s.access.store.RevokeKey(c.ctx(), tenant, id)
	if err != nil {
		return none{}, err
	}
	if !there {
		return none{}, &v1.Error{Code: v1.CodeKeyUnknown, Op: "revoke key", Message: "no such key"}
	}
	c.s.access.mu.Lock()
	k := c.s.access.keys[id]
	k.Revoked = time.Now()
	c.s.access.keys[id] = k
	c.s.access.mu.Unlock()
	c.noteKey("key.revoke", k, nil)
	return none{}, nil
}

func keyInfo(k store.APIKey) v1.APIKey {
	return v1.APIKey{
		ID:      k.ID,
		Name:    k.Name,
		Tenant:  k.Tenant,
		Scope:   scopeOf(k.Scopes).String(),
		Created: k.Created,
		Expires: nonZero(k.Expires),
		Revoked: nonZero(k.Revoked),
		Quota:   k.Quota,
		Network: k.Network,
	}
}

// nonZero returns a pointer to t, or nil for the zero time.
func nonZero(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// createToken creates a token that is valid for one session. The token ends with the session, because it is bound to
// the session's id, which is never reused. It also ends with the key that created it.
func createToken(c *call, ses *session.Session, in v1.TokenRequest) (v1.Token, error) {
	if c.who.session != "" { // otherwise a token could create one that outlives it
		return v1.Token{}, &v1.Error{
			Code:    v1.CodeForbidden,
			Op:      "create token",
			Message: "a session token cannot create tokens",
			Remedy:  "use a key",
		}
	}
	if in.Scope == "" {
		in.Scope = scopeExecute.String()
	}
	sc, err := parseScope(in.Scope)
	if err != nil {
		return v1.Token{}, err
	}
	if sc > scopeExecute {
		return v1.Token{}, invalid("invalid scope %q of a session token: want read or execute", in.Scope)
	}
	info := ses.Info()
	text, id, hash := newSecret(tokenPrefix)
	t := store.Token{
		ID:      id,
		Tenant:  c.who.tenant,
		Session: info.ID,
		Name:    info.Key.Name,
		Key:     c.who.key,
		Scopes:  []string{sc.String()},
		Hash:    hash,
		Created: time.Now(),
	}
	if in.For > 0 {
		t.Expires = t.Created.Add(time.Duration(in.For))
	}
	err = c.s.access.store.AddToken(c.ctx(), t)
	c.s.manager.Note(c.ctx(), session.Entry{
		Tenant:  t.Tenant,
		Session: t.Name,
		Action:  "token.create",
		Detail:  fmt.Sprintf("%s, scope %s", t.ID, sc),
		Error:   string(v1.CodeOf(err)),
	})
	if err != nil {
		return v1.Token{}, err
	}
	c.status = http.StatusCreated
	return v1.Token{Token: text, Session: info.Key.Name, Scope: in.Scope, Expires: nonZero(t.Expires)}, nil
}

// auditLog returns a page of the tenant's audit log.
func auditLog(c *call, _ none) (v1.AuditPage, error) {
	limit := c.page()
	o := session.AuditOptions{
		Tenant:  c.who.tenant,
		Session: c.query.Get("session"),
		Actor:   c.query.Get("actor"),
		Action:  c.query.Get("action"),
		After:   c.number("after", 0),
		Last:    int(c.number("last", 0)),
		Limit:   limit + 1,
	}
	if since := c.query.Get("since"); since != "" {
		var err error
		if o.Since, err = time.Parse(time.RFC3339, since); err != nil {
			return v1.AuditPage{}, badQuery("since", "a time in the format of RFC 3339, such as 2030-01-31T15:04:05Z")
		}
	}
	out := v1.AuditPage{Entries: []session.Entry{}}
	for e, err := range c.s.manager.Audit(c.ctx(), o) {
		if err != nil {
			return out, err
		}
		if len(out.Entries) == limit {
			out.Next = out.Entries[limit-1].ID
			break
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}
