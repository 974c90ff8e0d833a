package session

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// counting is a manager that only counts.
func counting(t *testing.T) *Manager {
	t.Helper()
	st, err := store.OpenSQLite(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Manager{store: st}
}

func withKey(ctx context.Context, key string) context.Context {
	return WithActor(ctx, Actor{Key: key, Remote: key != ""})
}

func newHolding(id string, o owner, memory int64) *record {
	return &record{ID: id, Owner: o, State: v1.StateCreating, Spec: sandbox.Spec{Limits: sandbox.Limits{Memory: memory, CPUs: 1, Processes: 256, Disk: 1 << 20}}}
}

func wantQuota(t *testing.T, what string, err error, says string) {
	t.Helper()
	if v1.CodeOf(err) != v1.CodeQuotaExceeded || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want quota_exceeded with %q", what, err, says)
	}
}

func TestTheLastPlaceIsTakenOnce(t *testing.T) {
	t.Parallel()
	m, o := counting(t), owner{Tenant: "a"}
	if err := m.store.SaveTenant(t.Context(), store.Tenant{Name: "a", Quota: v1.Quota{Sessions: new(3)}}); err != nil {
		t.Fatal(err)
	}
	b, err := m.bounds(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var taken atomic.Int32
	for i := range 32 {
		wg.Go(func() {
			if m.ledger.reserve(b, newHolding(string(rune('a'+i)), o, 1)) == nil {
				taken.Add(1)
			}
		})
	}
	wg.Wait()
	if taken.Load() != 3 {
		t.Errorf("%d of 3 places were taken", taken.Load())
	}
}

func TestTheTightestBoundDecides(t *testing.T) {
	t.Parallel()
	m, ctx := counting(t), t.Context()
	m.opts.Quota, m.opts.RemoteQuota = v1.Quota{Processes: new(10_000)}, v1.Quota{Memory: new(int64(8 << 30)), Processes: new(1)}
	err := errors.Join(
		m.store.SaveTenant(ctx, store.Tenant{Name: "a", Quota: v1.Quota{Memory: new(int64(4 << 30))}}),
		m.store.AddKey(ctx, store.APIKey{ID: "k", Tenant: "a", Hash: []byte("1"), Quota: v1.Quota{Memory: new(int64(1 << 30))}}),
		m.store.AddKey(ctx, store.APIKey{ID: "l", Tenant: "a", Hash: []byte("2")}),
	)
	if err != nil {
		t.Fatal(err)
	}
	reserve := func(id, tenant, key string, memory int64) error {
		o := owner{Tenant: tenant, Key: key, Remote: key != ""}
		b, err := m.bounds(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		return m.ledger.reserve(b, newHolding(id, o, memory))
	}
	wantQuota(t, "more than a key may", reserve("1", "a", "k", 2<<30), "the quota of key k allows 1g of memory, 1g is left and 2g is asked for")
	if err := reserve("2", "a", "l", 3<<30); err != nil {
		t.Fatal(err)
	}
	if err := reserve("3", "a", "k", 1<<30); err != nil {
		t.Fatal(err)
	}
	wantQuota(t, "more than the tenant may", reserve("4", "a", "l", 1<<20), "the quota of tenant a allows 4g of memory, 0 is left")
	if err := reserve("5", "b", "x", 3<<30); err != nil {
		t.Fatal(err)
	}
	wantQuota(t, "more than the machine has, over the network", reserve("6", "b", "x", 2<<30), "the quota of the server allows 8g of memory, 1g is left")
	if err := reserve("7", "b", "", 1<<40); err != nil {
		t.Errorf("on the own socket: %v", err)
	}
	m.ledger.release("7")

	// A hibernated session holds no memory, and takes it again only if there is some.
	m.ledger.setState("2", v1.StateHibernated)
	if err := reserve("8", "a", "l", 2<<30); err != nil {
		t.Fatal(err)
	}
	b, err := m.bounds(ctx, owner{Tenant: "a", Key: "l"})
	if err != nil {
		t.Fatal(err)
	}
	wantQuota(t, "to wake it", m.ledger.change(b, "2", newHolding("2", owner{}, 3<<30).Spec.Limits), "tenant a")
	m.ledger.release("8")
	if err := m.ledger.change(b, "2", newHolding("2", owner{}, 3<<30).Spec.Limits); err != nil {
		t.Error(err)
	}

	u, err := m.Usage(withKey(ctx, "k"), "a", false)
	if err != nil || *u.Tenant.Used.Memory != 4<<30 || *u.Key.Used.Sessions != 1 || *u.Key.Bounds.Memory != 1<<30 || u.Server.Used != nil || *u.Server.Bounds.Memory != 8<<30 {
		t.Errorf("usage %+v, %v", u, err)
	}
}

func TestRunsAreBounded(t *testing.T) {
	t.Parallel()
	m, ctx := counting(t), withKey(t.Context(), "k")
	if err := m.store.SaveTenant(ctx, store.Tenant{Name: "a", Quota: v1.Quota{Runs: new(2), Spend: new(10.0)}}); err != nil {
		t.Fatal(err)
	}
	admit := func(run string, usd *float64) (*RunPlace, error) {
		return m.AdmitRun(ctx, RunDemand{Tenant: "a", Run: run, USD: usd, Usual: v1.NoLimit})
	}
	_, err := admit("", new(11.0))
	wantQuota(t, "more money than there is", err, "allows 10 of spend_usd, 10 is left and 11 is asked for")
	one, err := admit("", new(4.0))
	if err != nil {
		t.Fatal(err)
	}
	two, err := admit("", nil)
	if err != nil || *two.MostUSD != 6 {
		t.Fatalf("%+v %v", two, err)
	}
	_, err = admit("", new(0.0))
	wantQuota(t, "a third at once", err, "2 of runs")
	if err := errors.Join(one.Begin(ctx, "r1"), two.Begin(ctx, "r2"), one.End(ctx, 1.5), two.End(ctx, -1)); err != nil {
		t.Fatal(err)
	}
	// The second one left no result: it counts for what it was allowed.
	_, err = admit("", new(3.0))
	wantQuota(t, "what is left", err, "2.5 is left and 3 is asked for")
	again, err := admit("r2", nil)
	if err != nil || *again.MostUSD != 8.5 {
		t.Fatalf("resumed: %+v %v", again, err)
	}
	if err := errors.Join(again.Begin(ctx, "r2"), again.End(ctx, 8.495)); err != nil {
		t.Fatal(err)
	}
	_, err = admit("", nil)
	wantQuota(t, "hardly anything left", err, "spend_usd")
	long := store.Spend{Run: "r2", Tenant: "a", Time: time.Now().Add(-31 * 24 * time.Hour), USD: 8.5}
	if err := m.store.SaveSpend(ctx, long); err != nil {
		t.Fatal(err)
	}
	if p, err := admit("", nil); err != nil || *p.MostUSD != 8.5 {
		t.Errorf("a month later: %+v %v", p, err)
	}
}
