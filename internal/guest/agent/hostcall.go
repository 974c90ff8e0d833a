//go:build linux

package agent

import (
	"os"

	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// callHost calls a function of the currently attached host.
func (a *Agent) callHost(o *operation.Operation, name string, payload []byte) ([]byte, *wire.Error) {
	a.mu.Lock()
	s := a.session
	a.mu.Unlock()
	if o.Finished() {
		return nil, wire.Errorf("cancelled", "the cell has ended")
	}
	gone := func(err error) *wire.Error { return wire.Errorf("sandbox_detached", "no host is attached: %v", err) }
	if s == nil {
		return nil, gone(os.ErrClosed)
	}
	st, err := s.Open()
	if err != nil {
		return nil, gone(err)
	}
	defer st.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-o.Done(): // the end of a cell ends its calls
			st.Close()
		case <-stop:
		}
	}()
	call := &wire.HostCall{Op: o.ID, Context: o.Context, Name: name}
	if err := st.Send(&wire.Request{Call: &wire.Request_HostCall{HostCall: call}}); err != nil {
		return nil, gone(err)
	}
	if _, err := (dataWriter{st}).Write(payload); err != nil {
		return nil, gone(err)
	}
	if err := st.Send(&wire.Frame{Body: &wire.Frame_Eof{Eof: true}}); err != nil {
		return nil, gone(err)
	}
	var reply []byte
	for {
		f := &wire.Frame{}
		if err := st.Receive(f); err != nil {
			return nil, gone(err)
		}
		if e := f.GetError(); e != nil {
			return nil, e
		}
		reply = append(reply, f.GetData()...)
		if f.Last {
			return reply, nil
		}
	}
}
