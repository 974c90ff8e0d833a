package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/session"
)

// maxNote is the maximum length of the note of an answer in bytes. It is bounded because the note is sent to a model.
const maxNote = 4 << 10

// storeApprovals makes the gate keep its approvals in the server's store, so that the next server has them.
func (s *Server) storeApprovals(ctx context.Context) error {
	if s.opts.Approvals == nil {
		return nil
	}
	return s.opts.Approvals.UseStore(ctx, approvalStore{s.opts.Store})
}

// approvalStore keeps the gate's approvals in the server's store.
type approvalStore struct{ store store.Approvals }

// Save implements gate.ApprovalStore.
func (s approvalStore) Save(ctx context.Context, k gate.StoredApproval) error {
	data, err := json.Marshal(k)
	if err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "store approval", Err: err}
	}
	return s.store.SaveApproval(ctx, store.Approval{ID: k.ID, Expires: k.Expires, Data: data})
}

// Drop implements gate.ApprovalStore.
func (s approvalStore) Drop(ctx context.Context, ids ...string) error {
	return s.store.DropApprovals(ctx, ids...)
}

// Load implements gate.ApprovalStore. An approval that cannot be read is an error, because it may be a refusal.
func (s approvalStore) Load(ctx context.Context) ([]gate.StoredApproval, error) {
	rows, err := s.store.FindApprovals(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]gate.StoredApproval, len(rows))
	for i, row := range rows {
		if err := json.Unmarshal(row.Data, &out[i]); err != nil {
			return nil, &v1.Error{
				Code:    v1.CodeStoreCorrupt,
				Op:      "read approvals",
				Message: "cannot decode approval " + row.ID,
				Err:     err,
			}
		}
	}
	return out, nil
}

// listApprovals returns a page of the tenant's approvals, the oldest first.
func listApprovals(c *call, _ none) (v1.ApprovalPage, error) {
	var out v1.ApprovalPage
	state := gate.ApprovalState(c.query.Get("state"))
	switch state {
	case "", v1.ApprovalPending, v1.ApprovalGranted, v1.ApprovalRefused, v1.ApprovalExpired:
	default:
		return out, &v1.Error{
			Code:    v1.CodeInvalidQuery,
			Op:      "list approvals",
			Message: fmt.Sprintf("invalid state %.20q of an approval", state),
			Remedy:  "use pending, granted, refused or expired",
		}
	}
	var list []gate.Approval
	if c.s.opts.Approvals != nil {
		list = c.s.opts.Approvals.List(c.who.tenant)
	}
	list = slices.DeleteFunc(list, func(q gate.Approval) bool { return state != "" && q.State != state })
	out.Approvals, out.Next = paged(c, list, func(q gate.Approval) string { return pageKey("", q.Created, q.ID) })
	return out, nil
}

// approval returns the approval that the path names. Approvals of other tenants are not found.
func (c *call) approval() (gate.Approval, error) {
	id := c.r.PathValue("approval")
	unknown := &v1.Error{
		Code:    v1.CodeApprovalUnknown,
		Op:      "find approval",
		Message: fmt.Sprintf("approval %.60q not found; it may have expired", id),
		Remedy:  "run the code, or open the connection, again to create a new approval",
	}
	if c.s.opts.Approvals == nil {
		return gate.Approval{}, unknown
	}
	q, err := c.s.opts.Approvals.Get(id)
	if errors.Is(err, gate.ErrApprovalUnknown) || err == nil && q.Request.Tenant != c.who.tenant {
		return gate.Approval{}, unknown
	}
	return q, err
}

func showApproval(c *call, _ none) (gate.Approval, error) {
	q, err := c.approval()
	if err != nil {
		return q, err
	}
	if !c.flag("wait", false) || q.State != v1.ApprovalPending {
		return q, nil
	}
	return c.s.opts.Approvals.Wait(c.ctx(), q.ID)
}

// resolveApproval records a person's answer. Its route requires the scope admin: a model with a key of scope execute
// must not grant its own requests.
func resolveApproval(c *call, in v1.ResolveRequest) (gate.Approval, error) {
	if in.Grant == nil {
		return gate.Approval{}, invalid("grant must be true or false")
	}
	if len(in.Note) > maxNote {
		return gate.Approval{}, invalid("the note is longer than %d bytes", maxNote)
	}
	q, err := c.approval()
	if err != nil {
		return q, err
	}
	q, err = c.s.opts.Approvals.Resolve(q.ID, gate.Answer{Grant: *in.Grant, By: c.who.actor, Note: in.Note})
	if err != nil {
		return q, err
	}
	c.s.manager.Note(c.ctx(), session.Entry{
		Tenant:  q.Request.Tenant,
		Session: q.Request.Session,
		Action:  "approval",
		Detail:  q.Text(),
		Gate:    string(q.State),
		Verdict: q.ID,
	})
	return q, nil
}
