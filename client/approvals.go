package client

import (
	"context"
	"net/http"
	"net/url"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Approvals lists the gate's questions to people, oldest first; an empty state lists all.
func (c *Client) Approvals(ctx context.Context, state v1.ApprovalState) ([]v1.Approval, error) {
	return pages(func(q url.Values) ([]v1.Approval, string, error) {
		set(q, "state", string(state))
		var page v1.ApprovalPage
		err := c.call(ctx, request{op: "list approvals", method: http.MethodGet, path: "/v1/approvals", query: q, again: true}, &page)
		return page.Approvals, page.Next, err
	})
}

// ApprovalOptions says how Approval looks at a question.
type ApprovalOptions struct {
	Wait bool // return once the question is answered or has expired
}

// Approval returns one question.
func (c *Client) Approval(ctx context.Context, id string, o ApprovalOptions) (v1.Approval, error) {
	q := url.Values{}
	flag(q, "wait", o.Wait)
	var out v1.Approval
	err := c.call(ctx, request{op: "find approval", method: http.MethodGet, path: "/v1/approvals/" + url.PathEscape(id), query: q, again: true}, &out)
	return out, err
}

// Answer is a person's answer to a question.
type Answer struct {
	Grant bool // let exactly that code run once
	Note  string
}

// Resolve answers a question. It needs a key of scope admin.
func (c *Client) Resolve(ctx context.Context, id string, a Answer) (v1.Approval, error) {
	var out v1.Approval
	err := c.call(ctx, request{
		op: "resolve approval", method: http.MethodPost, path: "/v1/approvals/" + url.PathEscape(id), body: v1.ResolveRequest{Grant: &a.Grant, Note: a.Note},
	}, &out)
	return out, err
}
