package remoteguest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/guest/carrier"
	"github.com/recluse-dev/recluse/internal/guest/launch"
)

const (
	uploadDir = "/tmp/.recluse"
	stateDir  = uploadDir + "/run"
	// exitDamaged is the status of the script if the guest is missing or damaged.
	exitDamaged = 113
)

// script starts the guest, if its file is complete.
func script(hash string) string {
	return fmt.Sprintf(`umask 022
mkdir -p %[5]s 2>/dev/null
f=%[2]s
[ "$(sha256sum < "$f" | cut -d' ' -f1)" = %[1]s ] || { echo "the uploaded guest is damaged" >&2; exit %[4]d; }
chmod +x "$f" && exec "$f" %[3]s
`, hash, GuestPath(hash), launch.RemoteArg, exitDamaged, v1.DefaultHome)
}

// GuestPath returns the path of an uploaded guest.
func GuestPath(hash string) string { return uploadDir + "/recluse-guest-" + hash }

// launch uploads the guest if it is missing, starts it, and sends its configuration.
func (b *Backend) launch(ctx context.Context, st state, guest bundle.Program) (carrier.Pipe, error) {
	c := backendkit.GuestConfig(st.Record, stateDir, backendkit.ImageConfig{})
	c.CPUs = 0 // the processors that the service gives
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	if err := b.upload(ctx, st.Ref, guest); err != nil {
		return nil, fmt.Errorf("upload the guest: %w", err)
	}
	p, err := b.p.Start(ctx, st.Ref, script(guest.Hash))
	if err != nil {
		return nil, err
	}
	if err := p.Send(ctx, append(config, '\n')); err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

func (b *Backend) upload(ctx context.Context, ref Ref, guest bundle.Program) error {
	f, err := os.Open(guest.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	i, err := f.Stat()
	if err != nil {
		return err
	}
	return b.p.Upload(ctx, ref, GuestPath(guest.Hash), f, i.Size())
}

// machine is one attachment.
type machine struct {
	*backendkit.Machine
	b      *Backend
	ref    Ref
	lock   lockOf
	stream *stream
	cancel context.CancelFunc // ends the extension of the timeout
	once   sync.Once
}

// stream is the stream of an attachment. Closing it gives up the attachment.
type stream struct {
	*carrier.Stream
	m *machine
}

// Close implements io.Closer.
func (s *stream) Close() error {
	err := s.Stream.Close()
	s.m.forget()
	return err
}

// Stream implements sandbox.Machine.
func (m *machine) Stream() io.ReadWriteCloser { return m.stream }

// Cost implements backend.CostReporter.
func (m *machine) Cost() float64 { return m.b.ledger.Cost(m.ID()) }

// forget ends what belongs to the attachment.
func (m *machine) forget() {
	m.once.Do(func() {
		m.cancel()
		m.b.mu.Lock()
		if m.b.machines[m.ID()] == m {
			delete(m.b.machines, m.ID())
		}
		m.b.mu.Unlock()
		m.lock.release()
	})
}

// end records that the sandbox has ended.
func (m *machine) end(cause error) {
	m.End(cause)
	m.stream.Fail(io.EOF)
	m.forget()
}

// connect opens the stream. The machine takes the lock.
func (b *Backend) connect(st *state, lock *filelock.Lock, first carrier.Pipe) (*machine, error) {
	b.mu.Lock()
	b.number = max(b.number+1, st.Number+1, uint64(time.Now().UnixNano()))
	st.Number = b.number
	closed := b.closed
	b.mu.Unlock()
	err := b.store.Save(st.ID, st) // with the owner and the number
	if closed {
		err = &v1.Error{Code: v1.CodeClosing, Op: "connect", Message: "the backend is closed"}
	}
	if err != nil {
		if first != nil {
			_ = first.Close()
		}
		return nil, err
	}
	m := &machine{Machine: backendkit.NewMachine(st.Record), b: b, ref: st.Ref, lock: lockOf{lock: lock}}
	ctx, cancel := context.WithCancel(b.ctx)
	m.cancel = cancel
	m.stream = &stream{m: m}
	ready := make(chan struct{})
	m.stream.Stream = carrier.Open(carrier.Options{
		Token:    m.Token(),
		Number:   st.Number,
		Patience: b.opts.Patience,
		Dial: func(ctx context.Context) (carrier.Pipe, error) {
			return b.p.Connect(ctx, m.ref)
		},
		Final: final,
		Ended: func(err error) {
			<-ready
			if final(err) {
				m.End(cause(err))
				m.forget()
			}
		},
	}, first)
	b.mu.Lock()
	b.machines[st.ID] = m
	b.mu.Unlock()
	close(ready)
	if !b.background(func(context.Context) { m.keep(ctx) }) {
		_ = m.stream.Close()
		return nil, &v1.Error{Code: v1.CodeClosing, Op: "connect", Message: "the backend is closed"}
	}
	return m, nil
}

// final reports whether an error means that the sandbox or the guest has ended.
func final(err error) bool {
	return errors.Is(err, ErrExited) || v1.CodeOf(err) == v1.CodeNotFound
}

// cause returns the cause of an end.
func cause(err error) error {
	if e, ok := errors.AsType[*ExitError](err); ok {
		return &v1.Error{Code: v1.CodeGuestLost, Message: e.Error(), Remedy: "make a new sandbox"}
	}
	return &v1.Error{
		Code:    v1.CodeSandboxLost,
		Message: "the service has no such sandbox any more: it reached its timeout, was ended, or was lost",
		Remedy:  "make a new sandbox",
		Err:     err,
	}
}

// keep moves the service-side end of the sandbox away while this program is attached, if the service can.
func (m *machine) keep(ctx context.Context) {
	p, ok := m.b.p.(Extender)
	if !ok {
		return
	}
	timeout := m.b.opts.Timeout
	for wait := timeout / 3; ; {
		select {
		case <-ctx.Done():
			return
		case <-m.Gone():
			return
		case <-time.After(wait):
		}
		if err := m.b.ledger.Extend(m.ID(), timeout, m.b.perHour(m.Spec())); v1.CodeOf(err) == v1.CodeQuotaExceeded {
			m.expire(err)
			return
		}
		call, cancel := context.WithTimeout(ctx, timeout/3)
		err := p.Extend(call, m.ref, timeout)
		cancel()
		switch wait = timeout / 3; {
		case v1.CodeOf(err) == v1.CodeNotFound:
			m.end(cause(err))
			return
		case err != nil:
			wait = timeout / 20
		}
	}
}

// expire ends the sandbox at a limit of its cost or age. Its record stays until Stop, which ends it if this fails.
func (m *machine) expire(limit error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.b.ctx), cleanLimit)
	defer cancel()
	err := m.b.p.Kill(ctx, m.ref)
	m.end(&v1.Error{Code: v1.CodeSandboxLost, Message: "the sandbox was ended: " + limit.Error(), Err: err})
}
