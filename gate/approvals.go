package gate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/ids"
)

// Sentinels for errors.Is.
var (
	ErrApprovalUnknown  = &v1.Error{Code: v1.CodeApprovalUnknown}
	ErrApprovalResolved = &v1.Error{Code: v1.CodeApprovalResolved}
)

const (
	// DefaultApprovalTTL is how long a question can be answered, and how long a grant can be used.
	DefaultApprovalTTL = 15 * time.Minute
	// maxPending limits the unanswered questions; a person could not answer more.
	maxPending = 1000
	// maxPendingSession limits the unanswered questions of one session.
	maxPendingSession = 20
)

// Approvals holds questions to people and their answers. A grant for code allows one run of exactly this code, in the
// same session. A grant for a connection allows all connections of the session to that destination, until the grant
// expires. It is safe for concurrent use, and starts no goroutines.
type Approvals struct {
	ttl time.Duration
	now func() time.Time

	mu    sync.Mutex
	all   map[string]*question // guarded by mu; by ID
	store ApprovalStore        // guarded by mu; nil: questions are kept in memory only
}

// question is an approval and the callers that wait for it. Its fields are guarded by the Approvals' mu.
type question struct {
	StoredApproval
	done chan struct{} // closed when the question is answered or has expired
}

// NewApprovals returns an empty set of questions. ttl is how long a question can be answered, and how long a grant can
// be used; 0: DefaultApprovalTTL.
func NewApprovals(ttl time.Duration) *Approvals {
	return &Approvals{ttl: cmp.Or(max(ttl, 0), DefaultApprovalTTL), now: time.Now, all: map[string]*question{}}
}

// codeKey returns the hash of what a grant allows: this code, in this session.
func codeKey(req *Request) [32]byte {
	return hashParts(append([]string{req.Tenant, req.Session, string(req.Language), req.Code}, req.Args...)...)
}

func hashParts(parts ...string) (k [32]byte) {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part) // raw bytes: JSON would replace invalid UTF-8
	}
	h.Sum(k[:0])
	return k
}

// askCode asks whether code may run once. After a refusal it does not ask again until the refusal expires.
func (a *Approvals) askCode(req *Request, d *Decision) (Approval, error) {
	about := Approval{Kind: v1.ApprovalCode, Request: *req, Decision: *d}
	q, _, err := a.ask(about, codeKey(req), v1.ApprovalRefused)
	return q, err
}

// Connection is a connection that needs an approval.
type Connection struct {
	Tenant, Session string
	SessionID       string // a grant is only for the session with this id, not for a later one of the same name
	To              v1.ApprovalConnect
	Reason          string // why a person is asked
}

// Connect returns the approval of a connection. It asks a person, unless that question is pending, or was answered and
// the answer has not expired. asked reports whether it has asked now. The connection is allowed if the state of the
// approval is granted.
func (a *Approvals) Connect(c Connection) (_ Approval, asked bool, err error) {
	about := Approval{
		Kind:     v1.ApprovalConnection,
		Request:  Request{Tenant: c.Tenant, Session: c.Session},
		Connect:  &c.To,
		Decision: Decision{Action: v1.GateAsk, Reason: c.Reason},
	}
	key := hashParts("connection", c.Tenant, c.SessionID, c.To.Host, strconv.Itoa(c.To.Port))
	return a.ask(about, key, v1.ApprovalRefused, v1.ApprovalGranted)
}

// ask asks a question. If the question is pending, or its answer is one of known and has not expired, ask returns the
// existing approval, and asked is false.
func (a *Approvals) ask(about Approval, key [32]byte, known ...ApprovalState) (_ Approval, asked bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweep()
	pending, own := 0, 0
	for _, q := range a.all {
		if q.Key == key && (q.State == v1.ApprovalPending || slices.Contains(known, q.State)) {
			return q.Approval, false, nil
		}
		if q.State != v1.ApprovalPending {
			continue
		}
		pending++
		if q.Request.Session == about.Request.Session && q.Request.Tenant == about.Request.Tenant {
			own++
		}
	}
	if pending >= maxPending || own >= maxPendingSession {
		return Approval{}, false, &v1.Error{
			Code:    v1.CodeTooMany,
			Op:      "ask for approval",
			Message: "too many pending approvals",
			Remedy:  "grant or refuse the pending approvals",
			Retry:   true,
		}
	}
	now := a.now()
	about.ID, about.State, about.Created, about.Expires = ids.Hex(16), v1.ApprovalPending, now, now.Add(a.ttl)
	q := &question{StoredApproval: StoredApproval{Approval: about, Key: key}, done: make(chan struct{})}
	if err := a.save(q.StoredApproval); err != nil {
		return Approval{}, false, err
	}
	a.all[q.ID] = q
	return about, true, nil
}

// sweep marks overdue questions as expired, and removes answered and expired questions after their TTL.
// Preconditions: mu is held.
func (a *Approvals) sweep() {
	now := a.now()
	var removed []string
	for id, q := range a.all {
		if now.Before(q.Expires) {
			continue
		}
		if q.State == v1.ApprovalPending {
			q.State = v1.ApprovalExpired
			q.Expires = now.Add(a.ttl) // until then, Get reports it as expired
			close(q.done)
			continue
		}
		delete(a.all, id)
		removed = append(removed, id)
	}
	a.remove(removed)
}

// List returns the questions of a tenant, oldest first. An empty tenant means all tenants.
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

// Get returns a question.
func (a *Approvals) Get(id string) (Approval, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q, err := a.find(id)
	if err != nil {
		return Approval{}, err
	}
	return q.Approval, nil
}

// find returns a question by its ID. Preconditions: mu is held.
func (a *Approvals) find(id string) (*question, error) {
	a.sweep()
	if q, ok := a.all[id]; ok {
		return q, nil
	}
	return nil, &v1.Error{
		Code:    v1.CodeApprovalUnknown,
		Op:      "approval",
		Message: fmt.Sprintf("unknown approval %q", id),
		Remedy:  "it may have expired; run the code again to ask anew",
	}
}

// Answer is a person's answer to a question.
type Answer struct {
	Grant bool   // allow exactly that code to run once, or the connections
	By    string // name of the person who answers; empty: "a person"
	Note  string
}

// Resolve stores the answer to a question. A second answer is an error.
func (a *Approvals) Resolve(id string, answer Answer) (Approval, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q, err := a.find(id)
	if err != nil {
		return Approval{}, err
	}
	if q.State != v1.ApprovalPending {
		return q.Approval, &v1.Error{
			Code:    v1.CodeApprovalResolved,
			Op:      "approval",
			Message: "the approval is already " + string(q.State),
		}
	}
	answered := q.StoredApproval
	answered.State, answered.By, answered.Note = v1.ApprovalRefused, cmp.Or(answer.By, "a person"), answer.Note
	if answer.Grant {
		answered.State = v1.ApprovalGranted
	}
	answered.Expires = a.now().Add(a.ttl)
	if err := a.save(answered); err != nil {
		return q.Approval, err
	}
	q.StoredApproval = answered
	close(q.done)
	return q.Approval, nil
}

// Wait waits until a question is answered or has expired. After a grant, Judge allows the same request once.
func (a *Approvals) Wait(ctx context.Context, id string) (Approval, error) {
	a.mu.Lock()
	q, err := a.find(id)
	if err != nil {
		a.mu.Unlock()
		return Approval{}, err
	}
	timer := time.NewTimer(q.Expires.Sub(a.now()))
	a.mu.Unlock()
	defer timer.Stop()
	select {
	case <-q.done:
	case <-timer.C:
	case <-ctx.Done():
		return Approval{}, &v1.Error{
			Code:    v1.CodeCancelled,
			Op:      "wait for approval",
			Message: "cancelled by the caller",
			Err:     ctx.Err(),
		}
	}
	return a.Get(id)
}

// spend uses up a grant for a request, and returns the name of the person who granted it. If the use cannot be stored,
// spend returns an error, because the grant could be used again after a restart.
func (a *Approvals) spend(req *Request) (by string, ok bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweep()
	key := codeKey(req)
	for _, q := range a.all {
		if q.State != v1.ApprovalGranted || q.Used || q.Key != key {
			continue
		}
		used := q.StoredApproval
		used.Used = true
		if err := a.save(used); err != nil {
			return "", false, err
		}
		q.Used = true
		return q.By, true, nil
	}
	return "", false, nil
}
