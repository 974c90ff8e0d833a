package sandbox

import (
	"context"
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Compile-time check: the limit that callers see equals the limit that the guest enforces.
var _ = [1]struct{}{}[v1.MaxCode-wire.MaxCode]

// Cell runs code and waits for its end. A failure of the code is in the verdict; err is not nil
// only if the machinery failed. When ctx ends, the cell is interrupted.
func (s *Sandbox) Cell(ctx context.Context, c Cell) (*Verdict, error) {
	if len(c.Code) > v1.MaxCode {
		return nil, &v1.Error{
			Code:    v1.CodeTooLarge,
			Op:      "run cell",
			Message: fmt.Sprintf("code has %d bytes, the limit is %d MiB", len(c.Code), v1.MaxCode>>20),
			Remedy:  "write it to a file and import the file",
		}
	}
	c.Metadata = withTrace(ctx, c.Metadata)
	if err := checkRequest("run cell", c.Args, c.Env, c.Metadata, c.Context, c.Language, c.ID); err != nil {
		return nil, err
	}
	opts, err := s.wireOptions(c.RunOptions, "x", v1.DefaultInterruptGrace)
	if err != nil {
		return nil, err
	}
	opts.Stream = opts.Stream || c.Display != nil
	req := &wire.Cell{
		Options:  opts,
		Context:  c.Context,
		Language: c.Language,
		Code:     []byte(c.Code),
		Argv:     byteSlices(c.Args),
	}
	conv := conversation{
		RunOptions: c.RunOptions,
		op:         "run cell",
		opts:       opts,
		req:        &wire.Request{Call: &wire.Request_Cell{Cell: req}},
		display:    c.Display,
		input:      opts.Stdin,
	}
	if len(c.Code) > wire.MaxInlineCode {
		rest := req.Code
		req.Code, req.CodeFollows = nil, true
		conv.more = func(st *wire.Stream) error {
			for len(rest) > 0 {
				n := min(len(rest), wire.Chunk)
				if err := st.Send(&wire.Frame{Body: &wire.Frame_Data{Data: rest[:n]}}); err != nil {
					return err
				}
				rest = rest[n:]
			}
			return st.Send(&wire.Frame{Body: &wire.Frame_Eof{Eof: true}})
		}
	}
	return s.converse(ctx, conv)
}

// Contexts lists the live interpreters.
func (s *Sandbox) Contexts(ctx context.Context) ([]Context, error) {
	f, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Contexts{Contexts: &wire.Contexts{}}})
	if err != nil {
		return nil, s.explain("list contexts", err)
	}
	var out []Context
	for _, c := range f.GetContexts().GetContexts() {
		out = append(out, Context{
			Name:     c.Name,
			PID:      int(c.Pid),
			Language: c.Language,
			Version:  c.Version,
			Busy:     c.Busy,
		})
	}
	return out, nil
}

// CloseContext ends an interpreter and all processes that its cells left running.
func (s *Sandbox) CloseContext(ctx context.Context, name string) error {
	_, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Contexts{Contexts: &wire.Contexts{Close: name}}})
	return s.explain("close context", err)
}
