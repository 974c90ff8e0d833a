package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// schema4 adds the quotas of keys and tenants, and the cost of runs.
const schema4 = `
ALTER TABLE api_keys ADD COLUMN quota TEXT NOT NULL DEFAULT '{}';

CREATE TABLE tenants (
	name  TEXT PRIMARY KEY,
	quota TEXT NOT NULL
) STRICT;

CREATE TABLE spend (
	tenant  TEXT NOT NULL,
	run     TEXT NOT NULL,
	api_key TEXT NOT NULL,
	time    INTEGER NOT NULL,
	usd     REAL NOT NULL,
	PRIMARY KEY (tenant, run)
) STRICT;
CREATE INDEX spend_time ON spend (time);
`

// schema5 stores the cost of a run for each key, because another key may resume the run.
const schema5 = `
ALTER TABLE spend RENAME TO spend4;
CREATE TABLE spend (
	tenant  TEXT NOT NULL,
	run     TEXT NOT NULL,
	api_key TEXT NOT NULL,
	time    INTEGER NOT NULL,
	usd     REAL NOT NULL,
	PRIMARY KEY (tenant, run, api_key)
) STRICT;
INSERT INTO spend SELECT tenant, run, api_key, time, usd FROM spend4;
DROP TABLE spend4;
CREATE INDEX spend_time ON spend (time);
`

// schema6 adds the bounds of network policies of keys and tenants, and the bytes of connections. The bytes are counted
// by day, so that there are few records.
const schema6 = `
ALTER TABLE api_keys ADD COLUMN network TEXT NOT NULL DEFAULT '{}';
ALTER TABLE tenants ADD COLUMN network TEXT NOT NULL DEFAULT '{}';

CREATE TABLE network_bytes (
	tenant  TEXT NOT NULL,
	api_key TEXT NOT NULL,
	day     INTEGER NOT NULL,
	bytes   INTEGER NOT NULL,
	PRIMARY KEY (tenant, api_key, day)
) STRICT;
`

// Tenant is the record of a tenant.
type Tenant struct {
	Name    string
	Quota   v1.Quota
	Network v1.NetworkBounds
}

// NetworkBytes are bytes that sandboxes of a key in a tenant have sent and received.
type NetworkBytes struct {
	Tenant string
	Key    string // id of the API key; empty: none
	Bytes  int64
}

// Spend is the cost of a run for a key. While the run is live, it is the maximum cost.
type Spend struct {
	Run, Tenant string
	Key         string // id of the API key; empty: none
	Time        time.Time
	USD         float64
}

// SpendQuery selects records of spending. Empty fields select all.
type SpendQuery struct {
	Tenant, Key string
	Since       time.Time
	Except      Spending
}

// Spending identifies a record of spending within a tenant.
type Spending struct{ Run, Key string }

// Quotas stores the quotas of tenants and keys, and what they have spent.
type Quotas interface {
	// SaveTenant creates or replaces a tenant.
	SaveTenant(ctx context.Context, t Tenant) error
	// Tenants returns the stored tenants, sorted by name.
	Tenants(ctx context.Context) ([]Tenant, error)
	// DropTenant removes a tenant and reports whether it existed.
	DropTenant(ctx context.Context, name string) (bool, error)
	// Quotas returns the quotas of a tenant and of a key. A tenant or key without a record has an unlimited quota.
	Quotas(ctx context.Context, tenant, key string) (ofTenant, ofKey v1.Quota, err error)
	// NetworkBounds returns the bounds of the network policies of a tenant and of a key.
	NetworkBounds(ctx context.Context, tenant, key string) (ofTenant, ofKey v1.NetworkBounds, err error)
	// AddNetworkBytes adds bytes to those of the day of now. It removes records that are older than every quota window.
	AddNetworkBytes(ctx context.Context, now time.Time, add ...NetworkBytes) error
	// NetworkBytes returns the bytes by tenant and key since the day of a time.
	NetworkBytes(ctx context.Context, since time.Time) ([]NetworkBytes, error)
	// SaveSpend creates or replaces the record of a key and a run. It removes records that are older than every quota
	// window.
	SaveSpend(ctx context.Context, s Spend) error
	// SpentOn returns the cost of a run in US dollars, by key.
	SpentOn(ctx context.Context, tenant, run string) (map[string]float64, error)
	// Spent returns the sum of the selected spending in US dollars.
	Spent(ctx context.Context, q SpendQuery) (float64, error)
}

// spendTTL is how long the cost of a run is stored.
const spendTTL = 90 * 24 * time.Hour

func quotaText(q v1.Quota) string {
	b, _ := json.Marshal(q) // cannot fail: a quota has only numbers
	return string(b)
}

func networkText(n v1.NetworkBounds) string {
	b, _ := json.Marshal(n) // cannot fail: bounds have only texts
	return string(b)
}

// SaveTenant implements Quotas.
func (s *SQLite) SaveTenant(ctx context.Context, t Tenant) error {
	_, err := s.exec(ctx, "save tenant", `
		INSERT INTO tenants (name, quota, network) VALUES (?, ?, ?)
		ON CONFLICT DO UPDATE SET quota = excluded.quota, network = excluded.network`,
		t.Name, quotaText(t.Quota), networkText(t.Network))
	return err
}

// Tenants implements Quotas.
func (s *SQLite) Tenants(ctx context.Context) ([]Tenant, error) {
	scan := func(rows *sql.Rows) (t Tenant, err error) {
		var quota, network string
		if err := rows.Scan(&t.Name, &quota, &network); err != nil {
			return t, err
		}
		return t, errors.Join(json.Unmarshal([]byte(quota), &t.Quota), json.Unmarshal([]byte(network), &t.Network))
	}
	return queryRows(ctx, s, "list tenants", scan, "SELECT name, quota, network FROM tenants ORDER BY name")
}

// DropTenant implements Quotas.
func (s *SQLite) DropTenant(ctx context.Context, name string) (bool, error) {
	n, err := s.exec(ctx, "drop tenant", "DELETE FROM tenants WHERE name = ?", name)
	return n > 0, err
}

// Quotas implements Quotas.
func (s *SQLite) Quotas(ctx context.Context, tenant, key string) (ofTenant, ofKey v1.Quota, err error) {
	err = s.readOwners(ctx, "quota", tenant, key, &ofTenant, &ofKey)
	return ofTenant, ofKey, err
}

// NetworkBounds implements Quotas.
func (s *SQLite) NetworkBounds(ctx context.Context, tenant, key string) (ofTenant, ofKey v1.NetworkBounds, err error) {
	err = s.readOwners(ctx, "network", tenant, key, &ofTenant, &ofKey)
	return ofTenant, ofKey, err
}

// readOwners decodes a column of a tenant and of a key. Without a record, the value is unchanged.
func (s *SQLite) readOwners(ctx context.Context, column, tenant, key string, ofTenant, ofKey any) error {
	read := func(value any, query, arg string) error {
		var text string
		err := s.read.QueryRowContext(ctx, query, arg).Scan(&text)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			err = json.Unmarshal([]byte(text), value)
		}
		return s.wrapError("read "+column, err)
	}
	err := read(ofTenant, "SELECT "+column+" FROM tenants WHERE name = ?", tenant)
	if err == nil && key != "" {
		err = read(ofKey, "SELECT "+column+" FROM api_keys WHERE id = ?", key)
	}
	return err
}

// dayOf returns the number of the day of t, since 1970.
func dayOf(t time.Time) int64 { return t.Unix() / (24 * 60 * 60) }

// AddNetworkBytes implements Quotas.
func (s *SQLite) AddNetworkBytes(ctx context.Context, now time.Time, add ...NetworkBytes) error {
	return s.transaction(ctx, "count bytes", func(tx *sql.Tx) error {
		for _, b := range add {
			_, err := tx.ExecContext(ctx, `
				INSERT INTO network_bytes (tenant, api_key, day, bytes) VALUES (?, ?, ?, ?)
				ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes`,
				b.Tenant, b.Key, dayOf(now), b.Bytes)
			if err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM network_bytes WHERE day < ?", dayOf(now.Add(-spendTTL)))
		return err
	})
}

// NetworkBytes implements Quotas.
func (s *SQLite) NetworkBytes(ctx context.Context, since time.Time) ([]NetworkBytes, error) {
	scan := func(rows *sql.Rows) (b NetworkBytes, err error) {
		err = rows.Scan(&b.Tenant, &b.Key, &b.Bytes)
		return b, err
	}
	return queryRows(ctx, s, "sum bytes", scan,
		"SELECT tenant, api_key, sum(bytes) FROM network_bytes WHERE day >= ? GROUP BY tenant, api_key", dayOf(since))
}

// SaveSpend implements Quotas.
func (s *SQLite) SaveSpend(ctx context.Context, x Spend) error {
	return s.transaction(ctx, "save spending", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO spend (tenant, run, api_key, time, usd) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET time = excluded.time, usd = excluded.usd`,
			x.Tenant, x.Run, x.Key, toNanos(x.Time), x.USD)
		if err == nil {
			_, err = tx.ExecContext(ctx, "DELETE FROM spend WHERE time < ?", toNanos(x.Time.Add(-spendTTL)))
		}
		return err
	})
}

// SpentOn implements Quotas.
func (s *SQLite) SpentOn(ctx context.Context, tenant, run string) (map[string]float64, error) {
	return queryMap[float64](ctx, s, "read spending",
		"SELECT api_key, usd FROM spend WHERE tenant = ? AND run = ?", tenant, run)
}

// Spent implements Quotas.
func (s *SQLite) Spent(ctx context.Context, q SpendQuery) (float64, error) {
	var w where
	w.and(q.Tenant != "", "tenant = ?", q.Tenant)
	w.and(q.Key != "", "api_key = ?", q.Key)
	w.and(q.Except.Run != "", "NOT (run = ? AND api_key = ?)", q.Except.Run, q.Except.Key)
	w.and(!q.Since.IsZero(), "time >= ?", toNanos(q.Since))
	var sum float64
	err := s.read.QueryRowContext(ctx, "SELECT coalesce(sum(usd), 0.0) FROM spend"+w.text, w.args...).Scan(&sum)
	return sum, s.wrapError("sum spending", err)
}
