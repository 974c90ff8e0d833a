package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/rlm/mcptools"
)

// setPrompt sets the prompt of a run: a profile, or a file with a template for the system prompt. The name of a profile
// has precedence over a file.
func (o *askOptions) setPrompt(opts *client.RunOptions) error {
	profiles := rlm.PromptProfiles()
	if o.prompt == "" || slices.Contains(profiles, o.prompt) {
		opts.Prompt = o.prompt
		return nil
	}
	text, err := os.ReadFile(o.prompt)
	if errors.Is(err, fs.ErrNotExist) {
		return &v1.Error{
			Code:    v1.CodePromptUnknown,
			Op:      "choose prompt",
			Message: fmt.Sprintf("%q is neither a prompt profile nor a file", o.prompt),
			Remedy:  "name a file, or one of " + strings.Join(profiles, ", "),
		}
	}
	if err == nil && strings.TrimSpace(string(text)) == "" {
		err = errors.New("the file is empty")
	}
	if err != nil {
		return &v1.Error{Code: v1.CodePromptUnknown, Op: "read prompt", Message: "cannot use the file", Err: err}
	}
	opts.System = string(text)
	return nil
}

// showPrompt prints the messages that a run would send first. They are made in this process, and no model is called.
func (a *app) showPrompt(ctx context.Context, o *askOptions, opts client.RunOptions) error {
	remote, err := a.hasRemoteServer()
	switch {
	case err != nil:
		return err
	case o.session != "":
		return usage("--show-prompt: the prompt of a run in a session depends on the variables of the session")
	case remote:
		return usage("--show-prompt: the prompt depends on the configuration of the remote server (client.url)")
	}
	ctx = a.watch(ctx)
	set, err := a.cfg.Models.Open()
	if err != nil {
		return err
	}
	defer set.Close()
	route := llm.Route{Root: o.model, Sub: o.sub}
	if len(route.Sub) == 0 {
		route.Sub = a.cfg.Models.Sub
	}
	routing, err := set.Route(ctx, route)
	if err != nil {
		return err
	}
	options := rlm.Options{Models: rlm.Routed(routing), Limits: a.cfg.Models.Limits}
	if below := o.Host.PlainBelow; below != nil {
		options.PlainBelow = *below
		if *below == 0 {
			options.PlainBelow = -1
		}
	}
	var more []mcptools.Server
	if opts.Host != nil {
		for _, s := range opts.Host.MCP {
			more = append(more, mcptools.Server{Name: s.Name, Command: s.Command, Dir: s.Dir, URL: s.URL})
		}
	}
	servers, err := a.cfg.MCP.Open(more, thisBuild().Version, a.logger())
	if err != nil {
		return err
	}
	if servers != nil {
		defer servers.Close()
		if options.Tools, err = servers.Tools(ctx); err != nil {
			return err
		}
	}
	parts, err := a.engineParts(ctx, &o.sandboxFlags)
	if err != nil {
		return cause(ctx, err)
	}
	e, err := parts.engine(ctx, options)
	if err != nil {
		return cause(ctx, err)
	}
	q := rlm.Question{
		Query:   opts.Query,
		Schema:  opts.Schema,
		Limits:  opts.Limits,
		Samples: opts.Samples,
		Prompt:  opts.Prompt,
		System:  opts.System,
		Gate:    gate.Mode(opts.Gate),
		Role:    opts.Role,
	}
	for _, path := range o.contexts {
		if path == "-" {
			q.Inputs = append(q.Inputs, rlm.Reader("stdin", a.stdin))
			continue
		}
		q.Inputs = append(q.Inputs, rlm.File(path))
	}
	messages, err := e.Prompt(ctx, q)
	if err != nil {
		return cause(ctx, err)
	}
	var text strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&text, "=== %s ===\n%s\n\n", m.Role, m.Content)
	}
	return a.result(messages, "%s", strings.TrimSuffix(text.String(), "\n"))
}
