package mcp

import (
	"context"
	"iter"
	"path"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxCompletions is the maximum number of values that the protocol allows in an answer.
const maxCompletions = 100

// complete completes the variable parts of resource URIs: names of sessions, paths in their sandboxes and ids of runs.
func (srv *mcpServer) complete(ctx context.Context, req *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
	res := &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{}}}
	if req.Params.Ref == nil {
		return res, nil
	}
	l, err := srv.link(req.Extra, req.Session)
	if err != nil {
		return nil, forModel(err)
	}
	arg := req.Params.Argument
	var values iter.Seq[string]
	switch req.Params.Ref.URI + " " + arg.Name {
	case filesTemplate + " session":
		values = names(l.client.List(ctx, v1.SessionListOptions{}), func(s v1.Session) string { return s.Key.Name })
	case filesTemplate + " path":
		session := ""
		if c := req.Params.Context; c != nil {
			session = c.Arguments["session"]
		}
		values = l.paths(ctx, session, arg.Value)
	case runsTemplate + " run":
		values = names(l.client.Runs(ctx), func(r *v1.Run) string { return r.ID })
	default:
		return res, nil
	}
	for v := range values {
		if !strings.HasPrefix(v, arg.Value) {
			continue
		}
		if len(res.Completion.Values) == maxCompletions {
			res.Completion.HasMore = true
			break
		}
		res.Completion.Values = append(res.Completion.Values, v)
	}
	return res, nil
}

// names returns the name of each item without an error.
func names[T any](items iter.Seq2[T, error], name func(T) string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for item, err := range items {
			if err == nil && !yield(name(item)) {
				return
			}
		}
	}
}

// paths returns the entries of the directory of a path that is being typed. Directories end with a slash. It does not
// create a session.
func (l *link) paths(ctx context.Context, session, typed string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if session == "" || !path.IsAbs(typed) {
			yield("/")
			return
		}
		if _, _, err := l.client.Get(ctx, session); err != nil {
			return
		}
		dir, _ := path.Split(typed)
		for i, err := range l.client.Session(session).Files().List(ctx, dir, v1.ListOptions{}) {
			if err != nil {
				return
			}
			p := path.Join(dir, path.Base(i.Path))
			if i.Kind == "dir" {
				p += "/"
			}
			if !yield(p) {
				return
			}
		}
	}
}
