package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// counting returns a manager that has only a store and a ledger.
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
	return &record{ID: id, Key: Key{Tenant: o.Tenant}, APIKey: o.Key, Remote: o.Remote, State: v1.StateCreating, Spec: sandbox.Spec{Limits: sandbox.Limits{Memory: memory, CPUs: 1, Processes: 256, Disk: 1 << 20}}}
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

// TestATenantWithoutAQuotaForVolumes has one over the network, which its own quota replaces.
func TestATenantWithoutAQuotaForVolumes(t *testing.T) {
	t.Parallel()
	m, ctx := counting(t), t.Context()
	m.opts.TenantQuota = v1.Quota{VolumeBytes: new(int64(8 << 30))}
	own := v1.Quota{VolumeBytes: new(int64(32 << 30))}
	if err := m.store.SaveTenant(ctx, store.Tenant{Name: "b", Quota: own}); err != nil {
		t.Fatal(err)
	}
	more := func(tenant string, remote bool) error {
		b, err := m.bounds(ctx, owner{Tenant: tenant, Remote: remote})
		if err != nil {
			t.Fatal(err)
		}
		return b.checkVolume([]v1.VolumeInfo{{VolumeOwner: v1.VolumeOwner{Tenant: tenant}, Size: 6 << 30}}, 4<<30)
	}
	wantQuota(t, "over the network", more("a", true), "quota of tenant a, volume_bytes: limit 8g, 2g left, 4g requested")
	for what, err := range map[string]error{"its own quota": more("b", true), "the own socket": more("a", false)} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
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
	wantQuota(t, "more than a key may", reserve("1", "a", "k", 2<<30), "quota of key k, memory: limit 1g, 1g left, 2g requested")
	if err := reserve("2", "a", "l", 3<<30); err != nil {
		t.Fatal(err)
	}
	if err := reserve("3", "a", "k", 1<<30); err != nil {
		t.Fatal(err)
	}
	wantQuota(t, "more than the tenant may", reserve("4", "a", "l", 1<<20), "quota of tenant a, memory: limit 4g, 0 left")
	if err := reserve("5", "b", "x", 3<<30); err != nil {
		t.Fatal(err)
	}
	wantQuota(t, "more than the machine has, over the network", reserve("6", "b", "x", 2<<30), "quota of the server, memory: limit 8g, 1g left")
	if err := reserve("7", "b", "", 1<<40); err != nil {
		t.Errorf("on the own socket: %v", err)
	}
	m.ledger.release("7")

	// A hibernated session holds no memory. It wakes only if the quota has enough memory left.
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

	u, err := m.Usage(withKey(ctx, "k"), UsageQuery{Tenant: "a"})
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
		return m.AdmitRun(ctx, RunDemand{Tenant: "a", Run: run, USD: usd})
	}
	_, err := admit("", new(11.0))
	wantQuota(t, "more money than there is", err, "spend_usd: limit 10, 10 left, 11 requested")
	one, err := admit("", new(4.0))
	if err != nil {
		t.Fatal(err)
	}
	two, err := admit("", nil)
	if err != nil || *two.MostUSD != 6 {
		t.Fatalf("%+v %v", two, err)
	}
	_, err = admit("", new(0.0))
	wantQuota(t, "a third at once", err, "runs: limit 2")
	if err := errors.Join(one.Begin(ctx, "r1"), two.Begin(ctx, "r2"), one.End(ctx, 1.5), two.End(ctx, -1)); err != nil {
		t.Fatal(err)
	}
	// The second run has no result: its maximum cost counts.
	_, err = admit("", new(3.0))
	wantQuota(t, "what is left", err, "2.5 left, 3 requested")
	again, err := admit("r2", nil)
	if err != nil || *again.MostUSD != 8.5 {
		t.Fatalf("resumed: %+v %v", again, err)
	}
	if err := errors.Join(again.Begin(ctx, "r2"), again.End(ctx, 8.495)); err != nil {
		t.Fatal(err)
	}
	_, err = admit("", nil)
	wantQuota(t, "hardly anything left", err, "spend_usd")
	long := store.Spend{Run: "r2", Tenant: "a", Key: "k", Time: time.Now().Add(-31 * 24 * time.Hour), USD: 8.5}
	if err := m.store.SaveSpend(ctx, long); err != nil {
		t.Fatal(err)
	}
	if p, err := admit("", nil); err != nil || *p.MostUSD != 8.5 {
		t.Errorf("a month later: %+v %v", p, err)
	}
}

func TestTheCostOfARunCountsOnceAndForItsKey(t *testing.T) {
	t.Parallel()
	m, ctx := counting(t), t.Context()
	quota := v1.Quota{Spend: new(10.0)}
	err := errors.Join(
		m.store.SaveTenant(ctx, store.Tenant{Name: "a", Quota: v1.Quota{Spend: new(50.0)}}),
		m.store.AddKey(ctx, store.APIKey{ID: "k", Tenant: "a", Hash: []byte("1"), Quota: quota}),
		m.store.AddKey(ctx, store.APIKey{ID: "l", Tenant: "a", Hash: []byte("2"), Quota: quota}),
	)
	if err != nil {
		t.Fatal(err)
	}
	// Each step admits a run with an amount, begins it, and ends it with a total cost.
	for _, step := range []struct {
		name, key, run string
		demand         RunDemand
		most           float64 // what it may cost
		under          float64 // what the tenant has spent while the run is under way
		cost           float64 // at its end; negative: without a result
		k, l           float64 // what the keys have spent then
	}{
		{"a new run", "k", "r1", RunDemand{USD: new(4.0)}, 4, 4, 4, 4, 0},
		{"resumed for nothing", "k", "r1", RunDemand{Run: "r1", USD: new(0.0)}, 0, 4, 4, 4, 0},
		{"resumed with its own limit", "k", "r1", RunDemand{Run: "r1", Usual: new(4.5)}, 4.5, 4.5, 4.25, 4.25, 0},
		{"resumed with more than is left", "k", "r1", RunDemand{Run: "r1", Usual: new(20.0)}, 10, 10, 5, 5, 0},
		{"resumed by another key", "l", "r1", RunDemand{Run: "r1", Usual: new(20.0)}, 15, 15, 7, 5, 2},
		{"and again without an amount", "l", "r1", RunDemand{Run: "r1", USD: new(-1.0), Usual: new(1.0)}, 15, 15, 7, 5, 2},
		{"by the first one again, killed", "k", "r1", RunDemand{Run: "r1", USD: new(8.0)}, 8, 8, -1, 6, 2},
		{"and resumed after that", "k", "r1", RunDemand{Run: "r1", Usual: new(8.0)}, 8, 8, 7.5, 5.5, 2},
		{"a new run of the other key", "l", "r2", RunDemand{USD: new(8.0)}, 8, 15.5, 1, 5.5, 3},
	} {
		ctx := withKey(ctx, step.key)
		step.demand.Tenant = "a"
		p, err := m.AdmitRun(ctx, step.demand)
		if err != nil || p.MostUSD == nil || *p.MostUSD != step.most {
			t.Fatalf("%s: %+v, %v", step.name, p, err)
		}
		if err := p.Begin(ctx, step.run); err != nil {
			t.Fatal(err)
		}
		if u, err := m.Usage(ctx, UsageQuery{Tenant: "a"}); err != nil || *u.Tenant.Used.Spend != step.under {
			t.Errorf("%s: %v is in use, want %v; %v", step.name, *u.Tenant.Used.Spend, step.under, err)
		}
		if err := p.End(ctx, step.cost); err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]float64{"k": step.k, "l": step.l} {
			if u, err := m.Usage(withKey(ctx, key), UsageQuery{Tenant: "a"}); err != nil || *u.Key.Used.Spend != want || u.Key.Name != key {
				t.Errorf("%s: key %s has spent %v, want %v; %v", step.name, key, *u.Key.Used.Spend, want, err)
			}
		}
	}
	free, err := m.AdmitRun(withKey(ctx, "k"), RunDemand{Tenant: "a", Free: true})
	if err != nil || free.MostUSD != nil {
		t.Errorf("a free run: %+v, %v", free, err)
	}
}

func TestTheSandboxOfARunCountsAndACallIsNoRun(t *testing.T) {
	t.Parallel()
	m, ctx := counting(t), t.Context()
	if err := m.store.SaveTenant(ctx, store.Tenant{Name: "a", Quota: v1.Quota{Memory: new(int64(3 << 30)), Runs: new(2), Spend: new(10.0)}}); err != nil {
		t.Fatal(err)
	}
	limits := sandbox.Limits{Memory: 2 << 30, CPUs: 1, Processes: 10}
	run, err := m.AdmitRun(ctx, RunDemand{Tenant: "a", USD: new(1.0), Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.AdmitRun(ctx, RunDemand{Tenant: "a", USD: new(1.0), Limits: limits})
	wantQuota(t, "the memory of a second run", err, "memory: limit 3g, 1g left, 2g requested")
	for _, id := range []string{"c1", "c2", "c3"} {
		call, err := m.AdmitRun(ctx, RunDemand{Tenant: "a", Call: true, Usual: new(0.5)})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(call.Begin(ctx, id), call.End(ctx, 0.25)); err != nil {
			t.Fatal(err)
		}
	}
	u, err := m.Usage(ctx, UsageQuery{Tenant: "a"})
	if err != nil || *u.Tenant.Used.Runs != 1 || *u.Tenant.Used.Memory != 2<<30 || *u.Tenant.Used.Sessions != 0 || *u.Tenant.Used.Spend != 1.75 {
		t.Errorf("in use %+v, %v", u.Tenant.Used, err)
	}
	if err := run.End(ctx, -1); err != nil {
		t.Fatal(err)
	}
	if u, err := m.Usage(ctx, UsageQuery{Tenant: "a"}); err != nil || *u.Tenant.Used.Runs != 0 || *u.Tenant.Used.Memory != 0 {
		t.Errorf("after the run: %+v, %v", u.Tenant.Used, err)
	}
}

func TestRunsThatBeginTogetherDoNotSpendTheSameMoney(t *testing.T) {
	t.Parallel()
	m, ctx := counting(t), t.Context()
	if err := m.store.SaveTenant(ctx, store.Tenant{Name: "a", Quota: v1.Quota{Spend: new(10.0)}}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var taken atomic.Int32
	for i := range 64 {
		wg.Go(func() {
			p, err := m.AdmitRun(ctx, RunDemand{Tenant: "a", USD: new(1.0)})
			if err != nil {
				return
			}
			taken.Add(1)
			if err := p.Begin(ctx, fmt.Sprint("r", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if taken.Load() != 10 {
		t.Errorf("%d runs of 1 dollar were admitted for 10", taken.Load())
	}
}

func TestMaxAgeBoundsEverySession(t *testing.T) {
	t.Parallel()
	const none = v1.Duration(v1.NoLimit)
	hour := v1.Duration(time.Hour)
	for name, tt := range map[string]struct {
		most, asked     *v1.Duration
		open, copied    v1.Duration
		refused, noCopy bool
	}{
		"no bound, no end":           {nil, new(v1.Duration(0)), none, none, false, false},
		"no bound, an end":           {nil, &hour, hour, hour, false, false},
		"a bound, no end":            {&hour, new(v1.Duration(0)), hour, hour, false, false},
		"a bound, unlimited":         {&hour, new(none), none, hour, true, false},
		"a bound, a later end":       {&hour, new(2 * hour), 2 * hour, hour, true, false},
		"no session at all":          {new(v1.Duration(0)), new(v1.Duration(0)), 0, 0, true, true},
		"no session, even for short": {new(v1.Duration(0)), &hour, hour, 0, true, true},
	} {
		b := bounds{{title: "the server", quota: v1.Quota{MaxAge: tt.most}}}
		if got, err := b.expires(*tt.asked); got != tt.open || (v1.CodeOf(err) == v1.CodeQuotaExceeded) != tt.refused {
			t.Errorf("%s: it ends after %s, %v", name, got, err)
		}
		if got, err := b.atMost(*tt.asked); got != tt.copied || (v1.CodeOf(err) == v1.CodeQuotaExceeded) != tt.noCopy {
			t.Errorf("%s: a copy ends after %s, %v", name, got, err)
		}
	}
}

func TestEveryBoundIsEnforced(t *testing.T) {
	t.Parallel()
	m, ctx := counting(t), t.Context()
	var q v1.Quota
	for i, f := range q.Fields() {
		q = v1.Quota{}
		if err := q.Fields()[i].Set("0"); err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		m.opts.Quota = q
		b, err := m.bounds(ctx, owner{Tenant: "a"})
		if err != nil {
			t.Fatal(err)
		}
		_, age := b.expires(v1.Duration(time.Hour))
		_, run := m.AdmitRun(ctx, RunDemand{Tenant: "a", USD: new(1.0)})
		share, err := m.network.share(ctx, m, owner{Tenant: "a"})
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for _, err := range []error{m.ledger.reserve(b, newHolding(f.Name, owner{Tenant: "a"}, 1)), age, run, share.Open(), m.checkSnapshot(ctx, owner{Tenant: "a"}, 1, nil), b.checkVolume(nil, 1)} {
			if err != nil {
				wantQuota(t, f.Name, err, f.Name+": limit 0")
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("a quota without %s rejected %d requests, want 1", f.Name, refused)
		}
	}
}
