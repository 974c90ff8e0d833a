package gate

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// The defaults of Approvals.
const (
	// DefaultApprovalTTL is how long a question waits for its answer, and how long a grant waits for its run.
	DefaultApprovalTTL = 15 * time.Minute
	// maxPending bounds the questions that wait; a person could not answer more.
	maxPending = 1000
	// maxPendingSession bounds those of one session.
	maxPendingSession = 20
)

// ApprovalState is how far a question has come.
type ApprovalState string

// The states of a question.
const (
	Pending ApprovalState = "pending"
	Granted ApprovalState = "granted"
	Refused ApprovalState = "refused"
	Expired ApprovalState = "expired"
)

// Approval is a question to a person: may this code run?
type Approval struct {
	ID       string        `json:"id"`
	Request  Request       `json:"request"`
	Decision Decision      `json:"decision"`
	State    ApprovalState `json:"state"`
	Created  time.Time     `json:"created"`
	Expires  time.Time     `json:"expires"`
	By       string        `json:"by,omitempty"`   // who answered
	Note     string        `json:"note,omitempty"` // what they said
}

// ApprovalOptions size Approvals. Zero fields take their defaults.
type ApprovalOptions struct {
	TTL time.Duration
	// Asked hears of each new question, so that a face (HTTP, MCP) can put it to a person. It must not block.
	Asked func(Approval)
}

// Approvals keeps questions to people and their answers. A grant is good for one run of exactly the code that
// was asked about, in the same session. It is safe for concurrent use, and starts no goroutines.
type Approvals struct {
	opts ApprovalOptions
	now  func() time.Time

	mu   sync.Mutex
	all  map[string]*question // guarded by mu; by id
	keep Keep                 // guarded by mu; nil: they end with the program
}

// question is an Approval with those who wait for it. Its fields are guarded by the Approvals' mu.
type question struct {
	Approval
	key  [32]byte
	done chan struct{} // closed when it is answered
	used bool
}

// NewApprovals makes an empty set of questions.
func NewApprovals(opts ApprovalOptions) *Approvals {
	if opts.TTL <= 0 {
		opts.TTL = DefaultApprovalTTL
	}
	return &Approvals{opts: opts, now: time.Now, all: map[string]*question{}}
}

// key is what a grant is good for: this code, in this session.
func key(req *Request) (k [32]byte) {
	h := sha256.New()
	for _, part := range append([]string{req.Tenant, req.Session, string(req.Language), req.Code}, req.Args...) {
		fmt.Fprintf(h, "%d:%s", len(part), part) // to the byte: JSON would make one of all that is no UTF-8
	}
	h.Sum(k[:0])
	return k
}

// open asks, or finds the question that is already asked. A person who has refused is not asked again for a while.
func (a *Approvals) open(req *Request, d *Decision) (Approval, error) {
	a.mu.Lock()
	a.sweep()
	k := key(req)
	pending, own := 0, 0
	for _, q := range a.all {
		if q.key == k && (q.State == Pending || q.State == Refused) {
			found := q.Approval
			a.mu.Unlock()
			return found, nil
		}
		if q.State != Pending {
			continue
		}
		pending++
		if q.Request.Session == req.Session && q.Request.Tenant == req.Tenant {
			own++
		}
	}
	if pending >= maxPending || own >= maxPendingSession {
		a.mu.Unlock()
		return Approval{}, &sandbox.Error{
			Code: sandbox.CodeTooMany, Op: "ask for approval", Message: "too many questions wait for an answer", Retry: true,
			Remedy: "answer those that are pending",
		}
	}
	now := a.now()
	q := &question{key: k, done: make(chan struct{}), Approval: Approval{
		ID: rand.Text(), Request: *req, Decision: *d, State: Pending, Created: now, Expires: now.Add(a.opts.TTL),
	}}
	if err := a.save(q.kept()); err != nil {
		a.mu.Unlock()
		return Approval{}, err
	}
	a.all[q.ID] = q
	asked := q.Approval
	a.mu.Unlock()
	if a.opts.Asked != nil {
		a.opts.Asked(asked)
	}
	return asked, nil
}

// sweep forgets what is over. Preconditions: mu is held.
func (a *Approvals) sweep() {
	now := a.now()
	var over []string
	for id, q := range a.all {
		if now.Before(q.Expires) {
			continue
		}
		if q.State == Pending {
			q.State = Expired
			close(q.done)
			q.Expires = now.Add(a.opts.TTL) // known for a while as expired
			continue
		}
		delete(a.all, id)
		over = append(over, id)
	}
	a.drop(over)
}

// List gives the questions of a tenant in the order they were asked; tenant "" gives all.
func (a *Approvals) List(tenant string) []Approval {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweep()
	var out []Approval
	for _, q := range a.all {
		if tenant == "" || q.Request.Tenant == tenant {
			out = append(out, q.Approval)
		}
	}
	slices.SortFunc(out, func(x, y Approval) int { return x.Created.Compare(y.Created) })
	return out
}

// Get gives a question.
func (a *Approvals) Get(id string) (Approval, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweep()
	q, err := a.find(id)
	if err != nil {
		return Approval{}, err
	}
	return q.Approval, nil
}

// find gives a question by its id. Preconditions: mu is held.
func (a *Approvals) find(id string) (*question, error) {
	q, ok := a.all[id]
	if !ok {
		return nil, &sandbox.Error{
			Code: CodeApprovalUnknown, Op: "approval", Message: fmt.Sprintf("there is no approval %q", id), Remedy: "it may have expired; run the code again to ask anew",
		}
	}
	return q, nil
}

// Resolve answers a question: by is who does, note what they say to it. A question is answered once.
func (a *Approvals) Resolve(id string, grant bool, by, note string) (Approval, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweep()
	q, err := a.find(id)
	if err != nil {
		return Approval{}, err
	}
	if q.State != Pending {
		return q.Approval, &sandbox.Error{Code: CodeApprovalResolved, Op: "approval", Message: "this question is already " + string(q.State)}
	}
	if by == "" {
		by = "a person"
	}
	answered := q.Approval
	answered.State, answered.By, answered.Note = Refused, by, note
	if grant {
		answered.State = Granted
	}
	answered.Expires = a.now().Add(a.opts.TTL)
	if err := a.save(Kept{Approval: answered, Key: q.key}); err != nil {
		return q.Approval, err
	}
	q.Approval = answered
	close(q.done)
	return q.Approval, nil
}

// Wait waits until a question is answered or has expired. After a grant, Judge allows the same request once.
func (a *Approvals) Wait(ctx context.Context, id string) (Approval, error) {
	a.mu.Lock()
	a.sweep()
	q, err := a.find(id)
	if err != nil {
		a.mu.Unlock()
		return Approval{}, err
	}
	left := q.Expires.Sub(a.now())
	done := q.done
	a.mu.Unlock()
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
		return Approval{}, &sandbox.Error{Code: sandbox.CodeCancelled, Op: "wait for approval", Message: "the caller gave up", Err: ctx.Err()}
	}
	return a.Get(id)
}

// use spends a grant for this request, and gives who granted it. One that cannot be spent for good is not used: it would be good twice.
func (a *Approvals) use(req *Request) (by string, ok bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweep()
	k := key(req)
	for _, q := range a.all {
		if q.State == Granted && !q.used && q.key == k {
			if err := a.save(Kept{Approval: q.Approval, Key: q.key, Used: true}); err != nil {
				return "", false, err
			}
			q.used = true
			return q.By, true, nil
		}
	}
	return "", false, nil
}
