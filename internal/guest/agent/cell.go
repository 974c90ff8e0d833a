//go:build linux

package agent

import (
	"github.com/recluse-dev/recluse/internal/guest/interpreter"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// cell runs one Cell and sends its verdict. It reports whether the stream can carry another call. With input it cannot,
// because the host may still be sending.
func (a *Agent) cell(st *wire.Stream, req *wire.Cell, epoch uint64) (reusable bool) {
	if req.Options == nil {
		req.Options = &wire.RunOptions{}
	}
	answered := a.runCell(st, req, epoch)
	return answered && !req.Options.Stdin
}

func (a *Agent) runCell(st *wire.Stream, req *wire.Cell, epoch uint64) (answered bool) {
	c := interpreter.Cell{
		Context: req.Context,
		Code:    req.Code,
		Args:    req.Argv,
		Options: req.Options,
		Input: func() (*wire.Input, error) {
			f := &wire.Frame{}
			err := st.Receive(f)
			return f.GetInput(), err
		},
	}
	if req.CodeFollows {
		var bad *wire.Error
		if c.Code, bad = receiveCode(st, c.Code); bad != nil {
			if bad.Code == "" {
				return false
			}
			return answer(st, bad) && false // the rest of the code is still in transit
		}
	}
	u, bad := a.user(req.Options.User)
	if bad != nil {
		return answer(st, bad)
	}
	c.Profile = interpreter.Profile{Language: req.Language, User: u}
	if c.Context == "" {
		c.Context = interpreter.DefaultContext
	}
	if !operation.ValidName(c.Context) {
		return answer(st, wire.Errorf("invalid_request",
			"invalid context name %q: letters, digits, dot, dash and underscore, at most 64", wire.Clip(c.Context, 80)))
	}
	o, bad := a.ops.Add(operation.Request{
		Kind:    "cell",
		Command: firstLine(c.Code),
		Context: c.Context,
		Epoch:   epoch,
	}.Options(req.Options))
	if bad != nil {
		return answer(st, bad)
	}
	var listener *operation.Listener
	if req.Options.Stream {
		listener = o.Listen(st)
	}
	v, bad := a.contexts.Run(o, c)
	o.EndOutput()
	if bad != nil {
		o.Finish(&wire.Verdict{Ending: wire.Ending_ENDING_START, ExitCode: 126, StartError: bad.Message})
		return answer(st, bad)
	}
	o.Finish(v)
	o.Flush(listener)
	return last(st, &wire.Frame{Body: &wire.Frame_Verdict{Verdict: v}})
}

// receiveCode appends the data frames of a call to code, until eof. If the stream ends early, the error has no code.
func receiveCode(st *wire.Stream, code []byte) ([]byte, *wire.Error) {
	for {
		f := &wire.Frame{}
		if err := st.Receive(f); err != nil {
			return nil, &wire.Error{}
		}
		if f.GetEof() {
			return code, nil
		}
		if len(code)+len(f.GetData()) > wire.MaxCode {
			return nil, wire.Errorf("too_large", "code exceeds the limit of %d bytes", wire.MaxCode)
		}
		code = append(code, f.GetData()...)
	}
}

func firstLine(code []byte) string {
	for i, c := range code {
		if c == '\n' || i > 200 {
			return string(code[:i])
		}
	}
	return string(code)
}
