package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// AddKey implements Access.
func (s *SQLite) AddKey(ctx context.Context, k APIKey) error {
	_, err := s.exec(ctx, "add key", `
		INSERT INTO api_keys (id, name, tenant, scopes, hash, created, expires, revoked, quota, network)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		k.ID, k.Name, k.Tenant, strings.Join(k.Scopes, " "), k.Hash,
		toNanos(k.Created), toNanos(k.Expires), toNanos(k.Revoked), quotaText(k.Quota), networkText(k.Network))
	return err
}

// Keys implements Access.
func (s *SQLite) Keys(ctx context.Context, tenant string) ([]APIKey, error) {
	var w where
	w.and(tenant != "", "tenant = ?", tenant)
	scan := func(rows *sql.Rows) (k APIKey, err error) {
		var scopes, quota, network string
		var created, expires, revoked int64
		err = rows.Scan(&k.ID, &k.Name, &k.Tenant, &scopes, &k.Hash, &created, &expires, &revoked, &quota, &network)
		if err != nil {
			return k, err
		}
		k.Scopes = strings.Fields(scopes)
		k.Created, k.Expires, k.Revoked = fromNanos(created), fromNanos(expires), fromNanos(revoked)
		return k, errors.Join(json.Unmarshal([]byte(quota), &k.Quota), json.Unmarshal([]byte(network), &k.Network))
	}
	return queryRows(ctx, s, "list keys", scan,
		"SELECT id, name, tenant, scopes, hash, created, expires, revoked, quota, network FROM api_keys"+w.text+
			" ORDER BY created, id", w.args...)
}

// RevokeKey implements Access.
func (s *SQLite) RevokeKey(ctx context.Context, tenant, id string) (bool, error) {
	n, err := s.exec(ctx, "revoke key", `
		UPDATE api_keys SET revoked = CASE revoked WHEN 0 THEN ? ELSE revoked END
		WHERE id = ? AND (? = '' OR tenant = ?)`,
		toNanos(time.Now()), id, tenant, tenant)
	return n > 0, err
}

// AddToken implements Access.
func (s *SQLite) AddToken(ctx context.Context, t Token) error {
	_, err := s.exec(ctx, "add token", `
		INSERT INTO tokens (id, tenant, session, name, scopes, hash, created, expires, api_key)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		t.ID, t.Tenant, t.Session, t.Name, strings.Join(t.Scopes, " "), t.Hash,
		toNanos(t.Created), toNanos(t.Expires), t.Key)
	return err
}

// TokenByHash implements Access.
func (s *SQLite) TokenByHash(ctx context.Context, hash []byte) (t Token, err error) {
	var scopes string
	var created, expires int64
	err = s.read.QueryRowContext(ctx,
		"SELECT id, tenant, session, name, scopes, hash, created, expires, api_key FROM tokens WHERE hash = ?", hash).
		Scan(&t.ID, &t.Tenant, &t.Session, &t.Name, &scopes, &t.Hash, &created, &expires, &t.Key)
	t.Scopes, t.Created, t.Expires = strings.Fields(scopes), fromNanos(created), fromNanos(expires)
	if errors.Is(err, sql.ErrNoRows) {
		return t, &v1.Error{Code: v1.CodeNotFound, Op: "find token", Message: "token not found"}
	}
	return t, s.wrapError("find token", err)
}

// DropTokens implements Access.
func (s *SQLite) DropTokens(ctx context.Context, session string) error {
	query, arg := "DELETE FROM tokens WHERE session = ?", any(session)
	if session == "" {
		query, arg = "DELETE FROM tokens WHERE expires > 0 AND expires < ?", toNanos(time.Now())
	}
	_, err := s.exec(ctx, "drop tokens", query, arg)
	return err
}

// BeginReply implements Access.
func (s *SQLite) BeginReply(ctx context.Context, r Reply) (old Reply, claimed bool, err error) {
	err = s.transaction(ctx, "claim idempotency key", func(tx *sql.Tx) error {
		var header string
		var created int64
		err := tx.QueryRowContext(ctx, `
			SELECT tenant, key, request, done, status, body, header, created FROM replies
			WHERE tenant = ? AND key = ?`, r.Tenant, r.Key).
			Scan(&old.Tenant, &old.Key, &old.Request, &old.Done, &old.Status, &old.Body, &header, &created)
		if err == nil {
			old.Created = fromNanos(created)
			return json.Unmarshal([]byte(header), &old.Header)
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		claimed = true
		_, err = tx.ExecContext(ctx, `
			INSERT INTO replies (tenant, key, request, done, status, body, header, created)
			VALUES (?, ?, ?, 0, 0, x'', '{}', ?)`,
			r.Tenant, r.Key, r.Request, toNanos(r.Created))
		return err
	})
	return old, claimed && err == nil, err
}

// EndReply implements Access.
func (s *SQLite) EndReply(ctx context.Context, r Reply) error {
	header, err := json.Marshal(r.Header)
	if err != nil {
		return s.wrapError("store reply", err)
	}
	if r.Body == nil {
		r.Body = []byte{}
	}
	_, err = s.exec(ctx, "store reply",
		"UPDATE replies SET done = 1, status = ?, body = ?, header = ? WHERE tenant = ? AND key = ?",
		r.Status, r.Body, string(header), r.Tenant, r.Key)
	return err
}

// DropReply implements Access.
func (s *SQLite) DropReply(ctx context.Context, tenant, key string) error {
	_, err := s.exec(ctx, "drop reply", "DELETE FROM replies WHERE tenant = ? AND key = ?", tenant, key)
	return err
}

// TrimReplies implements Access.
func (s *SQLite) TrimReplies(ctx context.Context, before time.Time) (int, error) {
	return s.exec(ctx, "trim replies", "DELETE FROM replies WHERE created < ?", toNanos(before))
}

var _ Store = (*SQLite)(nil)
