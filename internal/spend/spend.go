// Package spend bounds what sandboxes at a service cost. The figures are estimates: a price for each hour that a
// sandbox exists, at most until its service-side timeout.
//
// The cost until the timeout is reserved before a sandbox is made, and again before the timeout is moved, so that the
// bound holds even if this program dies at any moment. The ledger is a file that all programs of an instance share.
package spend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/filelock"
)

// Limits bound the sandboxes of an instance. Zero: unlimited.
type Limits struct {
	Sandboxes int           // at the same time
	Age       time.Duration // of a sandbox
	PerHour   float64       // dollars per hour of all sandboxes together
	Total     float64       // dollars, since the ledger was begun
}

// Ledger records the sandboxes of an instance and what they cost.
type Ledger struct {
	Path    string
	Backend string // for messages
	Limits  Limits

	Now func() time.Time // for tests; nil: time.Now
}

// entry is a sandbox that may exist.
type entry struct {
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"` // the service-side timeout
	PerHour float64   `json:"per_hour"`
}

// kept is a snapshot that the service keeps.
type kept struct {
	Since   time.Time `json:"since"`
	PerHour float64   `json:"per_hour"`
}

func (k kept) cost(until time.Time) float64 { return max(0, until.Sub(k.Since).Hours()) * k.PerHour }

func (e entry) cost(until time.Time) float64 {
	return max(0, until.Sub(e.Since).Hours()) * e.PerHour
}

// book is the content of the file.
type book struct {
	Spent float64          `json:"spent"` // dollars, of sandboxes that have ended and snapshots that were deleted
	Open  map[string]entry `json:"open"`
	Kept  map[string]kept  `json:"kept,omitempty"` // snapshots
}

// settle moves sandboxes that have reached their timeout to those that have ended.
func (b *book) settle(now time.Time) {
	maps.DeleteFunc(b.Open, func(_ string, e entry) bool {
		over := e.Until.Before(now)
		if over {
			b.Spent += e.cost(e.Until)
		}
		return over
	})
}

// lockWait bounds the wait for another program that writes the ledger.
const lockWait = 10 * time.Second

// change reads the ledger, calls f, and writes it if f succeeds.
func (l *Ledger) change(f func(b *book, now time.Time) error) error {
	failed := func(err error) error {
		return &v1.Error{
			Code: v1.CodeInternal, Op: "bound the cost", Message: "cannot use the ledger " + l.Path, Err: err,
		}
	}
	if err := os.MkdirAll(filepath.Dir(l.Path), 0o700); err != nil {
		return failed(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	lock, err := filelock.Acquire(ctx, l.Path+".lock")
	if err != nil {
		return failed(err)
	}
	defer lock.Release()
	var b book
	if err := atomicfile.ReadJSON(l.Path, &b); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(err)
	}
	if b.Open == nil {
		b.Open = map[string]entry{}
	}
	if b.Kept == nil {
		b.Kept = map[string]kept{}
	}
	now := time.Now().UTC()
	if l.Now != nil {
		now = l.Now()
	}
	b.settle(now)
	if err := f(&b, now); err != nil {
		return err
	}
	if err := atomicfile.WriteJSON(l.Path, b); err != nil {
		return failed(err)
	}
	return nil
}

// Reserve records a sandbox that is about to be made with a service-side timeout, and that costs dollars per hour. At a
// limit, the error has v1.CodeQuotaExceeded, and nothing may be made.
func (l *Ledger) Reserve(id string, timeout time.Duration, perHour float64) error {
	return l.change(func(b *book, now time.Time) error {
		e := entry{now, now.Add(timeout), perHour}
		rate := perHour
		for _, o := range b.Open {
			rate += o.PerHour
		}
		b.Open[id] = e
		switch {
		case l.Limits.Sandboxes > 0 && len(b.Open) > l.Limits.Sandboxes:
			return l.reached("max_sandboxes", "%d sandboxes exist", len(b.Open)-1)
		case l.Limits.PerHour > 0 && rate > l.Limits.PerHour:
			return l.reached("max_per_hour", "another sandbox would cost $%.2f per hour with those that exist", rate)
		}
		return l.checkTotal(b, now)
	})
}

// checkTotal checks what was spent and is reserved.
func (l *Ledger) checkTotal(b *book, now time.Time) error {
	sum := b.Spent
	for _, k := range b.Kept {
		sum += k.cost(now)
	}
	for _, e := range b.Open {
		sum += e.cost(e.Until)
	}
	if l.Limits.Total > 0 && sum > l.Limits.Total {
		return l.reached("max_total", "$%.2f would be spent in all", sum)
	}
	return nil
}

func (l *Ledger) reached(key, format string, args ...any) error {
	return &v1.Error{
		Code:    v1.CodeQuotaExceeded,
		Op:      "bound the cost",
		Message: fmt.Sprintf("the limit %s.%s is reached: ", l.Backend, key) + fmt.Sprintf(format, args...) + " (estimated)",
		Remedy:  fmt.Sprintf("end sessions, or raise %s.%s", l.Backend, key),
	}
}

// Extend reserves the cost of a sandbox until a timeout from now. An error with v1.CodeQuotaExceeded means that the
// sandbox must end.
func (l *Ledger) Extend(id string, timeout time.Duration, perHour float64) error {
	return l.change(func(b *book, now time.Time) error {
		e, ok := b.Open[id]
		if !ok { // it had reached its timeout, as far as is known
			e = entry{Since: now, PerHour: perHour}
		}
		if l.Limits.Age > 0 && now.Sub(e.Since) >= l.Limits.Age {
			return l.reached("max_age", "the sandbox is %s old", now.Sub(e.Since).Round(time.Second))
		}
		e.Until = now.Add(timeout)
		b.Open[id] = e
		return l.checkTotal(b, now)
	})
}

// Release records that a sandbox has ended.
func (l *Ledger) Release(id string) error {
	return l.change(func(b *book, now time.Time) error {
		if e, ok := b.Open[id]; ok {
			b.Spent += e.cost(now)
			delete(b.Open, id)
		}
		return nil
	})
}

// Cancel records that a sandbox was not made.
func (l *Ledger) Cancel(id string) error {
	return l.change(func(b *book, _ time.Time) error {
		delete(b.Open, id)
		return nil
	})
}

// Keep records a snapshot that the service is about to keep, and that costs dollars per hour. At the limit of the total
// cost, the error has v1.CodeQuotaExceeded, and none may be taken.
func (l *Ledger) Keep(id string, perHour float64) error {
	return l.change(func(b *book, now time.Time) error {
		b.Kept[id] = kept{now, perHour}
		return l.checkTotal(b, now)
	})
}

// Drop records that a snapshot was deleted.
func (l *Ledger) Drop(id string) error {
	return l.change(func(b *book, now time.Time) error {
		b.Spent += b.Kept[id].cost(now)
		delete(b.Kept, id)
		return nil
	})
}

// Cost returns what a sandbox has cost until now, in dollars; 0: it has ended.
func (l *Ledger) Cost(id string) float64 {
	var b book
	if atomicfile.ReadJSON(l.Path, &b) != nil {
		return 0
	}
	now := time.Now().UTC()
	if l.Now != nil {
		now = l.Now()
	}
	e := b.Open[id]
	if e.Until.Before(now) {
		now = e.Until
	}
	return e.cost(now)
}

// Summary is what an instance spends.
type Summary struct {
	Sandboxes int
	Snapshots int     // at the service
	PerHour   float64 // dollars
	Spent     float64 // dollars until now
}

// String describes the spending for people.
func (s Summary) String() string {
	snapshots := ""
	if s.Snapshots > 0 {
		snapshots = fmt.Sprintf("%d snapshots, ", s.Snapshots)
	}
	return fmt.Sprintf(
		"%d sandboxes, %s$%.2f per hour, $%.2f in all (estimated)", s.Sandboxes, snapshots, s.PerHour, s.Spent)
}

// Summary returns what the instance spends.
func (l *Ledger) Summary() (s Summary, err error) {
	err = l.change(func(b *book, now time.Time) error {
		s.Sandboxes, s.Snapshots, s.Spent = len(b.Open), len(b.Kept), b.Spent
		for _, k := range b.Kept {
			s.PerHour += k.PerHour
			s.Spent += k.cost(now)
		}
		for _, e := range b.Open {
			s.PerHour += e.PerHour
			s.Spent += e.cost(now)
		}
		return nil
	})
	return s, err
}
