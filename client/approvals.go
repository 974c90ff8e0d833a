package client

import (
	"context"
	"net/url"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Approvals lists the gate's questions to people, oldest first; an empty state lists all.
func (c *Client) Approvals(ctx context.Context, state v1.ApprovalState) ([]v1.Approval, error) {
	q := url.Values{}
	set(q, "state", string(state))
	return whole(list(ctx, c, get("list approvals", "/v1/approvals", q), 0, func(p v1.ApprovalPage) ([]v1.Approval, string) { return p.Approvals, p.Next }))
}

// ApprovalOptions says how Approval looks at a question.
type ApprovalOptions struct {
	Wait bool // return once the question is answered or has expired
}

// Approval returns one question.
func (c *Client) Approval(ctx context.Context, id string, o ApprovalOptions) (v1.Approval, error) {
	q := url.Values{}
	flag(q, "wait", o.Wait)
	return ask[v1.Approval](ctx, c, get("find approval", "/v1/approvals/"+url.PathEscape(id), q))
}

// Answer is a person's answer to a question.
type Answer struct {
	Grant bool // let exactly that code run once
	Note  string
}

// Resolve answers a question. It needs a key of scope admin.
func (c *Client) Resolve(ctx context.Context, id string, a Answer) (v1.Approval, error) {
	return ask[v1.Approval](ctx, c, post("resolve approval", "/v1/approvals/"+url.PathEscape(id), v1.ResolveRequest{Grant: &a.Grant, Note: a.Note}))
}
