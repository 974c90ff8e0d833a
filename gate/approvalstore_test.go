package gate

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// memoryStore is an ApprovalStore in memory. Save returns the error full, if it is set.
type memoryStore struct {
	kept map[string][]byte
	full error
}

func (d *memoryStore) Save(_ context.Context, k StoredApproval) error {
	if d.full != nil {
		return d.full
	}
	b, err := json.Marshal(k)
	d.kept[k.ID] = b
	return err
}

func (d *memoryStore) Drop(_ context.Context, ids ...string) error {
	for _, id := range ids {
		delete(d.kept, id)
	}
	return nil
}

func (d *memoryStore) Load(context.Context) ([]StoredApproval, error) {
	var out []StoredApproval
	for _, b := range d.kept {
		var k StoredApproval
		if err := json.Unmarshal(b, &k); err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, nil
}

// program returns the gate of a newly started program that uses the store.
func program(t *testing.T, d *memoryStore, now func() time.Time) (*Checker, *Approvals) {
	t.Helper()
	a := NewApprovals(time.Minute)
	a.now = now
	if err := a.UseStore(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	return defaultChecker(t, Options{Approvals: a, EscalateAfter: 1}), a
}

func TestQuestionsAndAnswersOutliveTheProgram(t *testing.T) {
	d := &memoryStore{kept: map[string][]byte{}}
	now := time.Now()
	clock := func() time.Time { return now }
	code := func(n string) Request {
		return Request{Language: Bash, Code: removal + " # " + n + " \xff", Session: "s", Tenant: "t"}
	}
	c, a := program(t, d, clock)
	ids := map[string]string{}
	for _, n := range []string{"pending", "granted", "used", "refused"} {
		ids[n] = judge(t, c, code(n)).Approval
	}
	for n, grant := range map[string]bool{"granted": true, "used": true, "refused": false} {
		if _, err := a.Resolve(ids[n], Answer{Grant: grant, By: "ann", Note: "because"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := judge(t, c, code("used")); got.ApprovedBy != "ann" {
		t.Fatalf("%+v", got)
	}

	c, a = program(t, d, clock)
	if got := judge(t, c, code("pending")); got.Approval != ids["pending"] {
		t.Errorf("the pending question was opened a second time: %+v", got)
	}
	if got := judge(t, c, code("granted")); got.ApprovedBy != "ann" {
		t.Errorf("the grant is lost: %+v", got)
	}
	if got := judge(t, c, code("used")); got.ApprovedBy != "" {
		t.Errorf("a grant was used twice: %+v", got)
	}
	if got := judge(t, c, code("refused")); got.RefusedBy != "ann" || got.RefusedNote != "because" {
		t.Errorf("the refusal is lost: %+v", got)
	}
	if got, err := a.Get(ids["refused"]); err != nil || got.State != v1.ApprovalRefused {
		t.Errorf("%+v %v", got, err)
	}
	waiting := make(chan Approval, 1)
	go func() {
		got, err := a.Wait(t.Context(), ids["pending"])
		if err != nil {
			t.Error(err)
		}
		waiting <- got
	}()
	if _, err := a.Resolve(ids["pending"], Answer{Grant: true, By: "bob"}); err != nil {
		t.Fatal(err)
	}
	if got := <-waiting; got.State != v1.ApprovalGranted || got.By != "bob" {
		t.Errorf("%+v", got)
	}

	now = now.Add(3 * time.Minute)
	if _, a = program(t, d, clock); len(a.List("")) != 0 || len(d.kept) != 0 {
		t.Errorf("%d expired questions are still stored", len(d.kept))
	}
}

func TestWhatCannotBeKeptDidNotHappen(t *testing.T) {
	d := &memoryStore{kept: map[string][]byte{}}
	c, a := program(t, d, time.Now)
	req := Request{Language: Bash, Code: removal, Session: "s"}
	id := judge(t, c, req).Approval
	full := errors.New("no room")
	d.full = full
	if _, err := a.Resolve(id, Answer{Grant: true, By: "ann"}); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if got, err := a.Get(id); err != nil || got.State != v1.ApprovalPending {
		t.Errorf("an answer that was not stored has an effect: %+v %v", got, err)
	}
	other := req
	other.Code += " # other"
	if _, err := c.Judge(t.Context(), other); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	d.full = nil
	if _, err := a.Resolve(id, Answer{Grant: true, By: "ann"}); err != nil {
		t.Fatal(err)
	}
	d.full = full
	if _, err := c.Judge(t.Context(), req); !errors.Is(err, full) {
		t.Errorf("a grant was used although its use was not stored: %v", err)
	}
	d.full = nil
	if got := judge(t, c, req); got.ApprovedBy != "ann" {
		t.Errorf("%+v", got)
	}
}

func TestQuestionsFromBeforeThePlaceAreKeptToo(t *testing.T) {
	a := NewApprovals(0)
	c := defaultChecker(t, Options{Approvals: a, EscalateAfter: 1})
	id := judge(t, c, Request{Language: Bash, Code: removal, Session: "s"}).Approval
	if other := judge(t, c, Request{Language: Bash, Code: removal, Session: "t"}).Approval; other == id {
		t.Error("one question for two sessions")
	}
	d := &memoryStore{kept: map[string][]byte{}}
	for range 2 {
		if err := a.UseStore(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	if d.kept[id] == nil || len(d.kept) != 2 || len(a.List("")) != 2 {
		t.Errorf("%d questions are stored, want 2", len(d.kept))
	}
}

func TestAGrantIsGoodForTheVeryBytes(t *testing.T) {
	a := NewApprovals(0)
	c := defaultChecker(t, Options{Approvals: a, EscalateAfter: 1})
	asked := Request{Language: Bash, Code: removal + " # \xff", Session: "s"}
	if _, err := a.Resolve(judge(t, c, asked).Approval, Answer{Grant: true, By: "ann"}); err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]Request{
		"another byte":    {Language: Bash, Code: removal + " # \xfe", Session: "s"},
		"another session": {Language: Bash, Code: asked.Code, Session: "t"},
		"as arguments":    {Language: Command, Args: []string{"rm", "-rf", "/"}, Session: "s"},
	} {
		if d := judge(t, c, other); d.Action.Runs() {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if d := judge(t, c, asked); d.ApprovedBy != "ann" {
		t.Errorf("%+v", d)
	}
}
