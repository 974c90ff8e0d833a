package client

import (
	"context"
	"net/url"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Approvals lists approvals that the gate has requested, oldest first. If state is empty, it lists all.
func (c *Client) Approvals(ctx context.Context, state v1.ApprovalState) ([]v1.Approval, error) {
	q := url.Values{}
	set(q, "state", string(state))
	r := get("list approvals", "/v1/approvals", q)
	return collect(list(ctx, c, r, 0, func(p v1.ApprovalPage) ([]v1.Approval, string) { return p.Approvals, p.Next }))
}

// ApprovalOptions are the options of Client.Approval.
type ApprovalOptions struct {
	Wait bool // wait until the approval is answered or has expired
}

// Approval returns one approval.
func (c *Client) Approval(ctx context.Context, id string, o ApprovalOptions) (v1.Approval, error) {
	q := url.Values{}
	flag(q, "wait", o.Wait)
	return callJSON[v1.Approval](ctx, c, get("find approval", "/v1/approvals/"+url.PathEscape(id), q))
}

// Answer is a person's answer to an approval.
type Answer struct {
	Grant bool   // allow this code to run once
	Note  string // text for the author of the code
}

// Resolve answers an approval. It requires a key with scope admin.
func (c *Client) Resolve(ctx context.Context, id string, a Answer) (v1.Approval, error) {
	body := v1.ResolveRequest{Grant: &a.Grant, Note: a.Note}
	return callJSON[v1.Approval](ctx, c, post("resolve approval", "/v1/approvals/"+url.PathEscape(id), body))
}
