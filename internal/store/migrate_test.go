package store

import (
	"bytes"
	"database/sql"
	_ "embed"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

//go:embed testdata/version1.sql
var version1 string

// writeFile creates a store from SQL, without code of this package.
func writeFile(t *testing.T, dir, mode string, statements ...string) string {
	t.Helper()
	path := filepath.Join(dir, File)
	db, err := sql.Open("sqlite", path)
	must(t, err)
	for _, q := range append([]string{"PRAGMA journal_mode = " + mode}, statements...) {
		_, err := db.ExecContext(t.Context(), q)
		must(t, err)
	}
	must(t, db.Close())
	return path
}

// schema returns the tables and columns of a store, however they were created.
func schema(t *testing.T, s *SQLite) string {
	t.Helper()
	columns, err := queryRows(t.Context(), s, "read schema", func(rows *sql.Rows) (line string, err error) {
		err = rows.Scan(&line)
		return line, err
	}, `SELECT m.type || ' ' || m.name || ': ' || coalesce((SELECT group_concat(c.name || ' ' || c.type || ' ' || c."notnull", ', ') FROM pragma_table_info(m.name) c), '')
		FROM sqlite_master m ORDER BY 1`)
	must(t, err)
	return strings.Join(columns, "\n")
}

func TestAStoreOfTheFirstVersionIsBroughtUpToDate(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"WAL", "DELETE"} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			writeFile(t, dir, mode, version1)
			s, ctx := open(t, dir), t.Context()
			if s.Instance() != "0123456789abcdef" {
				t.Errorf("the instance changed to %s", s.Instance())
			}
			if got, fresh := schema(t, s), schema(t, open(t, t.TempDir())); got != fresh {
				t.Errorf("the schema is\n%s\nthe schema of a new store is\n%s", got, fresh)
			}
			sessions, err := s.FindSessions(ctx, SessionQuery{Tenant: "t", Name: "work"})
			must(t, err)
			if len(sessions) != 2 || sessions[0].ID != "n1" || !sessions[0].Live || sessions[0].Image != "gvisor/i1" || sessions[1].Ended.IsZero() {
				t.Errorf("sessions %+v", sessions)
			}
			snapshots, err := s.FindSnapshots(ctx, SnapshotQuery{Tenant: "t", Session: "work"})
			must(t, err)
			if len(snapshots) != 1 || snapshots[0].Name != "warm" || snapshots[0].Size != 4096 || !snapshots[0].Memory {
				t.Errorf("snapshots %+v", snapshots)
			}
			vars, err := s.Vars(ctx, "n1")
			must(t, err)
			events, err := s.Events(ctx, "n1", 0, 0)
			must(t, err)
			entries, err := s.Entries(ctx, EntryQuery{Tenant: "t"})
			must(t, err)
			if vars["a"] != "1" || len(events) != 1 || events[0].Seq != 3 || len(entries) != 1 || entries[0].Actor != "ann" {
				t.Errorf("vars %v, events %+v, entries %+v", vars, events, entries)
			}
			keys, err := s.Keys(ctx, "")
			must(t, err)
			token, err := s.TokenByHash(ctx, []byte{3, 4})
			must(t, err)
			if len(keys) != 1 || keys[0].ID != "k1" || !bytes.Equal(keys[0].Hash, []byte{1, 2}) || token.Session != "n1" || token.Key != "" {
				t.Errorf("keys %+v, token %+v", keys, token)
			}
			reply, claimed, err := s.BeginReply(ctx, Reply{Tenant: "t", Key: "again", Request: []byte{5}})
			if err != nil || claimed || string(reply.Body) != "made" {
				t.Errorf("reply %+v, %v, %v", reply, claimed, err)
			}
			// Columns that the newer version added are now stored.
			if !keys[0].Network.IsZero() {
				t.Errorf("bounds of a key of the first version: %+v", keys[0].Network)
			}
			most := v1.NetworkBounds{Max: &v1.Network{Rules: []v1.NetworkRule{"allow a.test"}}}
			must(t, s.AddKey(ctx, APIKey{ID: "k2", Tenant: "t", Hash: []byte{7}, Network: most}))
			must(t, s.SaveTenant(ctx, Tenant{Name: "t", Network: most}))
			must(t, s.AddToken(ctx, Token{ID: "s2", Tenant: "t", Session: "n1", Name: "work", Key: "k1", Hash: []byte{6}}))
			must(t, s.Close())
			if token, err = open(t, dir).TokenByHash(ctx, []byte{6}); err != nil || token.Key != "k1" {
				t.Errorf("token %+v, %v", token, err)
			}
		})
	}
}

func TestAStoreThatCannotBeOpenedStaysAsItIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, statement string
		code            v1.Code
	}{
		{"newer than this program", "PRAGMA user_version = 9999", CodeNewer},
		{"of a version that never was", "PRAGMA user_version = -7", v1.CodeStoreCorrupt},
		{"with something in the way of a migration", "ALTER TABLE tokens ADD COLUMN api_key TEXT", CodeFailed},
	} {
		for _, mode := range []string{"WAL", "DELETE"} {
			t.Run(c.name+", "+mode, func(t *testing.T) {
				dir := t.TempDir()
				path := writeFile(t, dir, mode, version1, c.statement)
				before, err := os.ReadFile(path)
				must(t, err)
				for range 2 { // the first attempt must not make the second one succeed
					if _, err := OpenSQLite(t.Context(), dir); v1.CodeOf(err) != c.code {
						t.Errorf("got %v, want %s", err, c.code)
					}
				}
				after, err := os.ReadFile(path)
				must(t, err)
				if !bytes.Equal(before, after) {
					t.Error("the file was changed")
				}
			})
		}
	}
}

func TestNetworkBoundsAndBytesAreAddedToAnEarlierVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := append(slices.Clone(migrations[:5]),
		`INSERT INTO tenants VALUES ('t', '{"sessions":3}')`,
		"INSERT INTO api_keys VALUES ('k', 'n', 't', 'execute', x'01', 1, 0, 0, '{}')",
		"PRAGMA user_version = 5")
	writeFile(t, dir, "WAL", old...)
	s, ctx, now := open(t, dir), t.Context(), time.Now()
	tenants, err := s.Tenants(ctx)
	must(t, err)
	if len(tenants) != 1 || *tenants[0].Quota.Sessions != 3 || !tenants[0].Network.IsZero() {
		t.Errorf("tenants %+v", tenants)
	}
	usual := v1.NetworkBounds{Default: &v1.Network{Preset: v1.NetworkPackages}}
	must(t, s.SaveTenant(ctx, Tenant{Name: "t", Network: usual}))
	must(t, s.AddKey(ctx, APIKey{ID: "k2", Tenant: "t", Hash: []byte{2}, Network: v1.NetworkBounds{Max: usual.Default}}))
	must(t, s.AddNetworkBytes(ctx, now.Add(-31*24*time.Hour), NetworkBytes{"t", "k", 1000}))
	must(t, s.AddNetworkBytes(ctx, now, NetworkBytes{"t", "k", 5}, NetworkBytes{"t", "", 7}))
	must(t, s.AddNetworkBytes(ctx, now, NetworkBytes{"t", "k", 6}))
	must(t, s.Close())
	s = open(t, dir)
	ofTenant, ofKey, err := s.NetworkBounds(ctx, "t", "k2")
	must(t, err)
	if ofTenant.Default == nil || ofTenant.Default.Preset != v1.NetworkPackages || ofKey.Max == nil || ofKey.Default != nil {
		t.Errorf("bounds %+v and %+v", ofTenant, ofKey)
	}
	sums, err := s.NetworkBytes(ctx, now.Add(-30*24*time.Hour))
	must(t, err)
	if want := []NetworkBytes{{"t", "", 7}, {"t", "k", 11}}; !slices.Equal(sums, want) {
		t.Errorf("bytes %+v, want %+v", sums, want)
	}
}

func TestSpendingOfAnEarlierVersionIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := append(slices.Clone(migrations[:4]), "INSERT INTO spend VALUES ('t', 'r1', 'k1', 5, 2.5)", "PRAGMA user_version = 4")
	writeFile(t, dir, "WAL", old...)
	s, ctx := open(t, dir), t.Context()
	must(t, s.SaveSpend(ctx, Spend{Tenant: "t", Run: "r1", Key: "k2", USD: 1}))
	by, err := s.SpentOn(ctx, "t", "r1")
	must(t, err)
	if want := map[string]float64{"k1": 2.5, "k2": 1}; !maps.Equal(by, want) {
		t.Errorf("spent %v, want %v", by, want)
	}
	if got, err := s.Spent(ctx, SpendQuery{Tenant: "t", Except: Spending{Run: "r1", Key: "k2"}}); err != nil || got != 2.5 {
		t.Errorf("spent %v but for one key: %v", got, err)
	}
}
