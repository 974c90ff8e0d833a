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

// maxNote bounds what a person says to a decision: it goes to a model.
const maxNote = 4 << 10

// keepApprovals has the gate's questions kept beside the sessions, so that the next server knows them.
func (s *Server) keepApprovals(ctx context.Context) error {
	if s.opts.Approvals == nil {
		return nil
	}
	return s.opts.Approvals.UseStore(ctx, questions{s.opts.Store})
}

// questions keeps the gate's questions in the store.
type questions struct{ store store.Approvals }

// Save implements gate.ApprovalStore.
func (q questions) Save(ctx context.Context, k gate.StoredApproval) error {
	data, err := json.Marshal(k)
	if err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "keep approval", Err: err}
	}
	return q.store.SaveApproval(ctx, store.Approval{ID: k.ID, Expires: k.Expires, Data: data})
}

// Drop implements gate.ApprovalStore.
func (q questions) Drop(ctx context.Context, ids ...string) error {
	return q.store.DropApprovals(ctx, ids...)
}

// Load implements gate.ApprovalStore. One that cannot be read is an error: it may be a person's refusal.
func (q questions) Load(ctx context.Context) ([]gate.StoredApproval, error) {
	rows, err := q.store.FindApprovals(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]gate.StoredApproval, len(rows))
	for i, row := range rows {
		if err := json.Unmarshal(row.Data, &out[i]); err != nil {
			return nil, &v1.Error{Code: v1.CodeStoreCorrupt, Op: "read approvals", Message: "approval " + row.ID + " cannot be read", Err: err}
		}
	}
	return out, nil
}

// listApprovals gives the tenant's questions, oldest first.
func listApprovals(c *call, _ none) (v1.ApprovalPage, error) {
	var out v1.ApprovalPage
	state := gate.ApprovalState(c.query.Get("state"))
	switch state {
	case "", v1.ApprovalPending, v1.ApprovalGranted, v1.ApprovalRefused, v1.ApprovalExpired:
	default:
		return out, &v1.Error{Code: v1.CodeInvalidQuery, Op: "list approvals", Message: fmt.Sprintf("%.20q is no state of a question", state), Remedy: "say pending, granted, refused or expired"}
	}
	var list []gate.Approval
	if c.s.opts.Approvals != nil {
		list = c.s.opts.Approvals.List(c.who.tenant)
	}
	list = slices.DeleteFunc(list, func(q gate.Approval) bool { return state != "" && q.State != state })
	out.Approvals, out.Next = paged(c, list, func(q gate.Approval) string { return place("", q.Created, q.ID) })
	return out, nil
}

// approval finds the question that the path names. One of another tenant is not there.
func (c *call) approval() (gate.Approval, error) {
	id := c.r.PathValue("approval")
	unknown := &v1.Error{
		Code: v1.CodeApprovalUnknown, Op: "find approval", Message: fmt.Sprintf("there is no approval %.60q", id), Remedy: "it may have expired; run the code again to ask anew",
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

// resolveApproval takes a person's answer. It needs more than a key to run code with: a model must not grant its own.
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
		Tenant: q.Request.Tenant, Session: q.Request.Session, Action: "approval", Detail: q.Request.Text(), Gate: string(q.State), Verdict: q.ID,
	})
	return q, nil
}
