package carrier

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// Pipe is one connection to the standard input and output of the remote process.
type Pipe interface {
	// Send sends input. It returns when the service has accepted it.
	Send(ctx context.Context, p []byte) error
	// Receive returns the next output. Bytes may be missing before it.
	Receive() ([]byte, error)
	// Close ends the connection and unblocks Receive. The process continues.
	Close() error
}

// Options configure the host's end.
type Options struct {
	Token []byte
	// Number is the number of the connection: higher than those of all earlier hosts.
	Number uint64
	// Dial opens a connection to the process. An error that Final reports ends the stream.
	Dial func(ctx context.Context) (Pipe, error)
	// Final reports whether an error means that the process has ended, or can never be reached again.
	Final func(error) bool
	// Patience is how long connections may fail before the stream ends. 0: two minutes.
	Patience time.Duration
	// Ended, if set, receives the error that ended the stream, unless Close did.
	Ended func(error)
	// Silence replaces the default in tests.
	Silence time.Duration
}

const (
	defaultPatience = 2 * time.Minute
	firstPause      = 50 * time.Millisecond
	maxPause        = 5 * time.Second
)

// Stream is the host's end. It opens a new connection whenever one breaks.
type Stream struct {
	opts   Options
	end    *end
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
}

// Open returns the host's end. first, if set, is a connection that is open already.
func Open(opts Options, first Pipe) *Stream {
	if opts.Patience == 0 {
		opts.Patience = defaultPatience
	}
	if opts.Silence == 0 {
		opts.Silence = silence
	}
	s := &Stream{opts: opts, end: newEnd(opts.Token, fromHost), done: make(chan struct{})}
	s.end.conn = opts.Number
	s.ctx, s.cancel = context.WithCancel(context.Background())
	go s.run(first)
	return s
}

// Read implements io.Reader.
func (s *Stream) Read(p []byte) (int, error) { return s.end.read(p) }

// Write implements io.Writer.
func (s *Stream) Write(p []byte) (int, error) { return s.end.write(p) }

// Close implements io.Closer. The process continues.
func (s *Stream) Close() error {
	s.end.fail(os.ErrClosed)
	s.cancel()
	<-s.done
	return nil
}

// Fail ends the stream with an error.
func (s *Stream) Fail(err error) {
	s.end.fail(err)
	s.cancel()
}

// run serves one connection after another.
func (s *Stream) run(p Pipe) {
	defer close(s.done)
	pause, since := firstPause, time.Now()
	for s.ctx.Err() == nil {
		var err error
		if p == nil {
			p, err = s.opts.Dial(s.ctx)
		}
		if err == nil {
			var heard bool
			if heard, err = s.serve(p); heard {
				pause, since = firstPause, time.Now()
			}
			p = nil
		}
		switch {
		case s.ctx.Err() != nil:
			return
		case s.opts.Final != nil && s.opts.Final(err), time.Since(since) > s.opts.Patience:
			s.end.fail(io.EOF)
			if s.opts.Ended != nil {
				s.opts.Ended(err)
			}
			return
		}
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
		}
		pause = min(2*pause, maxPause)
	}
}

var errSilent = errors.New("the guest has not answered for some time")

// serve uses a connection until it breaks. It reports whether the guest has sent something.
func (s *Stream) serve(p Pipe) (heard bool, err error) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	var wg sync.WaitGroup
	defer func() {
		cancel(nil)
		_ = p.Close() // it is broken, or no longer needed
		s.end.mu.Lock()
		s.end.changed.Broadcast()
		s.end.mu.Unlock()
		wg.Wait()
	}()
	e := s.end
	e.mu.Lock()
	before := e.signs
	e.urgent, e.asked = []kind{hello}, 0
	e.changed.Broadcast()
	e.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = p.Close() })
	defer stop()
	wg.Go(func() {
		for {
			b := e.batch(func() bool { return ctx.Err() != nil })
			if b == nil {
				return
			}
			if err := p.Send(ctx, b); err != nil {
				cancel(err)
				return
			}
		}
	})
	wg.Go(func() { s.watch(ctx, cancel) })
	d := decoder{codec: newCodec(s.opts.Token, fromGuest)}
	for {
		b, err := p.Receive()
		if len(b) > 0 {
			d.write(b, func(f frame) {
				e.mu.Lock()
				defer e.mu.Unlock()
				if f.conn == e.conn {
					e.handle(f)
				}
			})
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && s.ctx.Err() == nil {
				err = cause
			}
			e.mu.Lock()
			heard = e.signs != before
			e.mu.Unlock()
			return heard, err
		}
	}
}

// watch ends a connection on which nothing arrives.
func (s *Stream) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	t := time.NewTicker(s.opts.Silence)
	defer t.Stop()
	again := time.NewTicker(repair)
	defer again.Stop()
	e := s.end
	last, asked := uint64(0), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			e.mu.Lock()
			if e.asked == e.received+1 {
				e.send(resume)
			}
			if e.consumed()-e.told >= minWindow {
				e.send(ack) // the guest's request for it may be lost
			}
			e.mu.Unlock()
			continue
		case <-t.C:
		}
		e.mu.Lock()
		now := e.signs
		switch {
		case now != last:
			asked = false
		case asked:
			e.mu.Unlock()
			cancel(errSilent)
			return
		default:
			asked = true
			e.send(ping)
		}
		last = now
		e.mu.Unlock()
	}
}
