package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
)

// memory is a store of lines that can be made to fail.
type memory struct {
	store.Log // methods that a Journal does not need

	mu      sync.Mutex
	events  []store.Event
	entries []store.Entry
	mark    int64
	err     error
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *memory) Append(_ context.Context, b store.Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	m.events = append(m.events, b.Events...)
	for _, e := range b.Entries {
		e.ID = int64(len(m.entries) + 1)
		m.entries = append(m.entries, e)
	}
	if b.Mark > 0 {
		m.mark = b.Mark
	}
	return nil
}

func (m *memory) Marked(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mark, m.err
}

func (m *memory) Entries(_ context.Context, q store.EntryQuery) (out []store.Entry, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if e.ID > q.After && (q.Action == "" || e.Action == q.Action) && (q.Limit == 0 || len(out) < q.Limit) {
			out = append(out, e)
		}
	}
	return out, m.err
}

func open(t *testing.T, o Options) *Journal {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	j, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// listed returns the details of all entries of a query.
func listed(t *testing.T, j *Journal, q store.EntryQuery) string {
	t.Helper()
	var all []string
	for e, err := range j.Entries(t.Context(), q) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Detail)
	}
	return strings.Join(all, " ")
}

func TestEntriesAreWrittenAndListed(t *testing.T) {
	m := &memory{}
	j := open(t, Options{Store: m, Dir: t.TempDir()})
	const many = 2*page + 10
	for i := range many {
		j.AddEntry(store.Entry{Action: "cell", Detail: fmt.Sprint(i)})
	}
	if got := len(strings.Fields(listed(t, j, store.EntryQuery{}))); got != many {
		t.Errorf("%d entries are listed, want %d", got, many)
	}
	for limit, want := range map[int]int{1: 1, page: page, page + 1: page + 1, 2 * page: 2 * page, many + 5: many} {
		if got := len(strings.Fields(listed(t, j, store.EntryQuery{Limit: limit}))); got != want {
			t.Errorf("%d entries are listed with a limit of %d, want %d", got, limit, want)
		}
	}
	if got := listed(t, j, store.EntryQuery{After: many - 2}); got != fmt.Sprintf("%d %d", many-2, many-1) {
		t.Errorf("the last two are %q", got)
	}
	if err := j.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestALongDetailIsShortened(t *testing.T) {
	m := &memory{}
	j := open(t, Options{Store: m, Dir: t.TempDir()})
	defer j.Close(t.Context())
	long := strings.Repeat("é", detailBytes)
	j.AddEntry(store.Entry{Detail: "x" + long})
	j.AddEntry(store.Entry{Detail: "x" + long + "!"})
	if err := j.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, b := m.entries[0], m.entries[1]
	if want := "x" + long[:detailBytes-2]; a.Detail != want || b.Detail != want {
		t.Errorf("details of %d and %d bytes, want %d", len(a.Detail), len(b.Detail), len(want))
	}
	if a.Digest == "" || a.Digest == b.Digest || a.Time.IsZero() {
		t.Errorf("%+v and %+v", a, b)
	}
}

func TestRunWritesByItself(t *testing.T) {
	m := &memory{}
	j := open(t, Options{Store: m, Dir: t.TempDir()})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); j.Run(ctx) }()
	j.AddEvent(store.Event{Seq: 1})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		m.mu.Lock()
		n := len(m.events)
		m.mu.Unlock()
		if n == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the event was not written")
		}
	}
	stop()
	<-ended
	j.AddEvent(store.Event{Seq: 2})
	if err := j.Close(t.Context()); err != nil || len(m.events) != 2 {
		t.Errorf("%d events, %v", len(m.events), err)
	}
}

func TestEventsDoNotWaitForTheStore(t *testing.T) {
	m := &memory{}
	const room = 20
	j := open(t, Options{Store: m, Dir: t.TempDir(), Capacity: room})
	resume := j.Pause()
	for i := range 3 * room {
		j.AddEvent(store.Event{Seq: int64(i)})
	}
	resume()
	if err := j.Close(t.Context()); err != nil || len(m.events) != room {
		t.Errorf("%d events were kept, want %d; %v", len(m.events), room, err)
	}
}

// While a slow write fails, its lines must still count as waiting. Otherwise code could run that the audit log cannot
// record.
func TestAFullJournalStaysBlockedDuringAWrite(t *testing.T) {
	const room = 5
	m := &memory{}
	m.fail(errors.New("broken"))
	var j *Journal
	writes, unblocked := 0, 0
	j = open(t, Options{Store: &memory{}, Dir: t.TempDir(), Capacity: room, Written: func() {
		if writes++; writes > 1 && j.Blocked() == nil {
			unblocked++
		}
	}})
	j.opts.Store = m
	for range room {
		j.AddEntry(store.Entry{Action: "cell"})
	}
	for range 3 {
		if j.Flush(t.Context()) == nil {
			t.Fatal("a broken store was written")
		}
	}
	if writes != 4 || unblocked != 0 {
		t.Errorf("in %d of %d writes code could run", unblocked, writes)
	}
	m.fail(nil)
	if err := j.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAFullJournalBlocksUntilTheStoreCanBeWritten(t *testing.T) {
	m := &memory{}
	const room = 20
	var log bytes.Buffer
	j := open(t, Options{Store: m, Dir: t.TempDir(), Capacity: room, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	m.fail(&v1.Error{Code: v1.CodeDiskFull})
	for i := range 3 * room {
		if blocked := j.Blocked() != nil; blocked != (i >= room) {
			t.Fatalf("blocked %t with %d entries", blocked, i)
		}
		j.AddEntry(store.Entry{Detail: fmt.Sprint(i)})
	}
	if err := j.Blocked(); v1.CodeOf(err) != v1.CodeDiskFull {
		t.Errorf("the error is %v", err)
	}
	for _, err := range j.Entries(t.Context(), store.EntryQuery{}) {
		if v1.CodeOf(err) != v1.CodeDiskFull {
			t.Errorf("listing: %v", err)
		}
	}
	m.fail(nil)
	if err := j.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(m.entries) != 2*room || j.Blocked() != nil {
		t.Errorf("%d entries were kept, want %d; %v", len(m.entries), 2*room, j.Blocked())
	}
	if text := log.String(); !strings.Contains(text, "cannot be written") || !strings.Contains(text, "lost") || !strings.Contains(text, "written again") {
		t.Errorf("logged: %s", text)
	}
}

// TestEntriesSurviveACrash stops at each point at which a program can be killed, and opens the journal again.
func TestEntriesSurviveACrash(t *testing.T) {
	m, dir := &memory{}, t.TempDir()
	j := open(t, Options{Store: m, Dir: dir})
	j.AddEntry(store.Entry{Detail: "a"}) // killed before the store has the entry
	j = open(t, Options{Store: m, Dir: dir})
	j.AddEntry(store.Entry{Detail: "b"})
	crashed := errors.New("crashed")
	func() { // killed when both the store and the spool have the entry
		defer func() { _ = recover() }()
		j.opts.Written = func() { panic(crashed) }
		_ = j.Flush(t.Context())
	}()
	j = open(t, Options{Store: m, Dir: dir})
	if got := listed(t, j, store.EntryQuery{}); got != "a b" {
		t.Errorf("entries %q", got)
	}
	if err := j.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAJournalThatCannotBeOpenedSaysWhy(t *testing.T) {
	broken := errors.New("broken")
	if _, err := Open(t.Context(), Options{Store: &memory{err: broken}, Dir: t.TempDir()}); !errors.Is(err, broken) {
		t.Errorf("a store that cannot be read: %v", err)
	}
	if _, err := Open(t.Context(), Options{Store: &memory{}, Dir: "/nonexistent"}); v1.CodeOf(err) != v1.CodeInternal {
		t.Errorf("a directory that is missing: %v", err)
	}
}
