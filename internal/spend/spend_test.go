package spend

import (
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// price is the price of a sandbox in dollars per hour.
const price = 0.6

func ledger(t *testing.T, limits Limits) (*Ledger, *time.Time) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &Ledger{
		Path: filepath.Join(t.TempDir(), "spend.json"), Backend: "e2b", Limits: limits,
		Now: func() time.Time { return now },
	}, &now
}

func reached(t *testing.T, err error, key string) {
	t.Helper()
	if v1.CodeOf(err) != v1.CodeQuotaExceeded || !strings.Contains(err.Error(), key) {
		t.Errorf("%v, want the limit %s", err, key)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestEachLimitRefusesASandbox(t *testing.T) {
	t.Parallel()
	l, _ := ledger(t, Limits{Sandboxes: 1})
	must(t, l.Reserve("a", time.Hour, price))
	reached(t, l.Reserve("b", time.Hour, price), "max_sandboxes")
	must(t, l.Cancel("a"))
	must(t, l.Reserve("b", time.Hour, price))

	l, _ = ledger(t, Limits{PerHour: 1})
	must(t, l.Reserve("a", time.Hour, price))
	reached(t, l.Reserve("b", time.Minute, price), "max_per_hour")

	l, now := ledger(t, Limits{Total: 1})
	must(t, l.Reserve("a", time.Hour, price)) // 0.60
	reached(t, l.Reserve("b", time.Hour, price), "max_total")
	must(t, l.Reserve("b", 30*time.Minute, price)) // 0.90
	*now = now.Add(20 * time.Minute)
	must(t, l.Release("b")) // 0.20 + 0.60
	must(t, l.Extend("a", 50*time.Minute, price))
	reached(t, l.Extend("a", 2*time.Hour, price), "max_total")
}

func TestASandboxHasAnAge(t *testing.T) {
	t.Parallel()
	l, now := ledger(t, Limits{Age: time.Hour})
	must(t, l.Reserve("a", 40*time.Minute, price))
	*now = now.Add(30 * time.Minute)
	must(t, l.Extend("a", 40*time.Minute, price))
	*now = now.Add(30 * time.Minute)
	reached(t, l.Extend("a", 40*time.Minute, price), "max_age")
}

func TestAProgramThatDiesDoesNotSpendForEver(t *testing.T) {
	t.Parallel()
	l, now := ledger(t, Limits{Sandboxes: 1})
	must(t, l.Reserve("a", 10*time.Minute, price))
	*now = now.Add(time.Hour)
	s, err := l.Summary()
	if err != nil || s.Sandboxes != 0 || math.Abs(s.Spent-0.1) > 1e-9 {
		t.Errorf("%+v %v", s, err)
	}
	must(t, l.Reserve("b", 10*time.Minute, price))
}

func TestSnapshotsCostWhileTheyAreKept(t *testing.T) {
	t.Parallel()
	l, now := ledger(t, Limits{Total: 1})
	must(t, l.Keep("s", 0.1))
	*now = now.Add(5 * time.Hour) // 0.50
	reached(t, l.Reserve("a", time.Hour, price), "max_total")
	must(t, l.Reserve("b", 30*time.Minute, price))
	if s, err := l.Summary(); err != nil || s.Snapshots != 1 || math.Abs(s.Spent-0.5) > 1e-9 || math.Abs(s.PerHour-0.7) > 1e-9 {
		t.Errorf("%+v %v", s, err)
	}
	*now = now.Add(10 * time.Minute)
	if got := l.Cost("b"); math.Abs(got-0.1) > 1e-9 {
		t.Errorf("%g", got)
	}
	must(t, l.Drop("s"))
	must(t, l.Drop("none"))
	*now = now.Add(5 * time.Hour)
	if s, err := l.Summary(); err != nil || s.Snapshots != 0 || math.Abs(s.Spent-(0.1*31/6+0.3)) > 1e-9 || l.Cost("b") > 0.3+1e-9 {
		t.Errorf("%+v %v", s, err)
	}
}
