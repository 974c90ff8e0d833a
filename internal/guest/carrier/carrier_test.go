package carrier

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is a remote process with a service around it that loses what nobody reads, and breaks connections.
type process struct {
	in     *io.PipeWriter
	budget func() int // bytes until the next connection breaks

	mu   sync.Mutex
	pipe *lossy // guarded by mu; the connection that gets the output
	cuts int    // guarded by mu
}

var errCut = errors.New("the connection was cut")

// lossy is a connection that breaks after a number of bytes, in either direction.
type lossy struct {
	p      *process
	out    chan []byte
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex
	left int // guarded by mu
}

func (p *process) dial(context.Context) (Pipe, error) {
	l := &lossy{p: p, out: make(chan []byte, 4), closed: make(chan struct{}), left: p.budget()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pipe = l
	return l, nil
}

// take returns how many of n bytes pass before the connection breaks.
func (l *lossy) take(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, l.left)
	l.left -= n
	return n
}

func (l *lossy) Send(_ context.Context, b []byte) error {
	n := l.take(len(b))
	select {
	case <-l.closed:
		return errCut
	default:
	}
	if n == len(b) {
		_, err := l.p.in.Write(b)
		return err
	}
	// What a service does with input whose sender disconnects: nothing, all of it, or a part.
	switch rand.IntN(3) {
	case 0:
		_, _ = l.p.in.Write(b)
	case 1:
		_, _ = l.p.in.Write(b[:n])
	}
	_ = l.Close()
	return errCut
}

func (l *lossy) Receive() ([]byte, error) {
	select {
	case b := <-l.out:
		return b, nil
	case <-l.closed:
		return nil, errCut
	}
}

func (l *lossy) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.p.mu.Lock()
		l.p.cuts++
		l.p.mu.Unlock()
	})
	return nil
}

// Write receives the output of the process. Without a reader it is lost.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	l := p.pipe
	p.mu.Unlock()
	if l == nil {
		return len(b), nil
	}
	n := l.take(len(b))
	select {
	case l.out <- bytes.Clone(b[:n]):
	case <-l.closed:
	}
	if n < len(b) {
		_ = l.Close()
	}
	return len(b), nil
}

var token = bytes.Repeat([]byte{7}, 32)

func newProcess(budget func() int) (*process, *Guest, func()) {
	r, w := io.Pipe()
	p := &process{in: w, budget: budget}
	g := NewGuest(r, p, token)
	return p, g, func() { _ = w.Close() }
}

func unlimited() int { return 1 << 60 }

// stream sends n bytes in pieces of different sizes.
func stream(w io.Writer, n int, sum hash.Hash) error {
	r := rand.NewChaCha8([32]byte{1})
	for n > 0 {
		b := make([]byte, min(n, 1+rand.IntN(100_000)))
		_, _ = r.Read(b)
		if rand.IntN(10) == 0 {
			copy(b, magic) // as code inside might print it
		}
		sum.Write(b)
		if _, err := w.Write(b); err != nil {
			return err
		}
		n -= len(b)
	}
	return nil
}

func TestABrokenConnectionLosesNothing(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	p, g, end := newProcess(func() int { return 50_000 + rand.IntN(800_000) })
	defer end()
	s := Open(Options{Token: token, Number: 1, Dial: p.dial}, nil)
	defer s.Close()
	if _, err := s.Write([]byte{1}); err != nil { // what a guest writes before its host attaches is dropped
		t.Fatal(err)
	}
	if _, err := g.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	check := func(name string, w io.Writer, r io.Reader) {
		sent, got := sha256.New(), sha256.New()
		wg.Go(func() {
			if err := stream(w, size, sent); err != nil {
				t.Error(name, err)
			}
		})
		wg.Go(func() {
			if _, err := io.CopyN(got, r, size); err != nil {
				t.Error(name, err)
			}
		})
		t.Cleanup(func() {
			if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
				t.Error(name, "differs")
			}
		})
	}
	check("to the guest", s, g)
	check("to the host", g, s)
	wg.Wait()
	p.mu.Lock() // another connection may break now
	defer p.mu.Unlock()
	if p.cuts < 5 {
		t.Errorf("the connection broke %d times only", p.cuts)
	}
}

// forgetful is a connection to a process whose service keeps little of what nobody has read.
type forgetful struct {
	in     *io.PipeWriter
	out    chan []byte
	closed chan struct{}
	once   sync.Once
	lost   atomic.Int64
}

func (f *forgetful) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		n := min(len(rest), 4096) // as a pipe is read
		select {
		case f.out <- bytes.Clone(rest[:n]):
		default:
			f.lost.Add(int64(n))
		}
		rest = rest[n:]
	}
	return len(b), nil
}

func (f *forgetful) Send(_ context.Context, b []byte) error {
	_, err := f.in.Write(b)
	return err
}

func (f *forgetful) Receive() ([]byte, error) {
	select {
	case b := <-f.out:
		return b, nil
	case <-f.closed:
		return nil, errCut
	}
}

func (f *forgetful) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

func TestAServiceThatLosesOutput(t *testing.T) {
	testneed.Slow(t, "it sends 4 MB again and again")
	t.Parallel()
	const size = 4 << 20
	r, w := io.Pipe()
	defer w.Close()
	f := &forgetful{in: w, out: make(chan []byte, 16), closed: make(chan struct{})}
	g := NewGuest(r, f, token)
	s := Open(Options{Token: token, Number: 1, Dial: func(context.Context) (Pipe, error) { return nil, errCut }}, f)
	defer s.Close()
	if _, err := s.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	sent, got := sha256.New(), sha256.New()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := stream(g, size, sent); err != nil {
			t.Error(err)
		}
	})
	if _, err := io.CopyN(got, s, size); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) || f.lost.Load() == 0 {
		t.Errorf("the stream differs, or nothing was lost: %d", f.lost.Load())
	}
}

func TestALaterHostReplacesAnEarlierOne(t *testing.T) {
	t.Parallel()
	p, g, end := newProcess(unlimited)
	defer end()
	first := Open(Options{Token: token, Number: 1, Dial: p.dial}, nil)
	if _, err := first.Write([]byte("half a mess")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 11)
	if _, err := io.ReadFull(g, b); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Write([]byte("nobody reads this")); err != nil {
		t.Fatal(err)
	}
	_ = first.Close() // as after kill -9: nothing was said to the guest
	second := Open(Options{Token: token, Number: 2, Dial: p.dial}, nil)
	defer second.Close()
	if _, err := second.Write([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(g, b[:3]); err != nil || string(b[:3]) != "new" {
		t.Fatalf("%q %v", b[:3], err)
	}
	if _, err := g.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(second, b[:6]); err != nil || string(b[:6]) != "answer" {
		t.Fatalf("%q %v", b[:6], err)
	}
}

func TestTheEndOfTheProcessEndsTheStream(t *testing.T) {
	t.Parallel()
	gone := errors.New("the process has ended")
	why := make(chan error, 1)
	s := Open(Options{
		Token: token, Number: 1, Dial: func(context.Context) (Pipe, error) { return nil, gone },
		Final: func(err error) bool { return errors.Is(err, gone) }, Ended: func(err error) { why <- err },
	}, nil)
	defer s.Close()
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if err := <-why; !errors.Is(err, gone) {
		t.Error(err)
	}
}

// TestASilentConnectionIsReplaced has a first connection that neither answers nor breaks.
func TestASilentConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	p, g, end := newProcess(unlimited)
	defer end()
	silent := &lossy{p: &process{in: p.in}, out: make(chan []byte), closed: make(chan struct{})}
	silent.left = 1 << 60
	s := Open(Options{Token: token, Number: 1, Dial: p.dial, Silence: 20 * time.Millisecond}, silent)
	defer s.Close()
	if _, err := g.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("request")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 7)
	if _, err := io.ReadFull(g, b); err != nil || string(b) != "request" {
		t.Fatalf("%q %v", b, err)
	}
	if _, err := g.Write([]byte("answer!")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, b); err != nil {
		t.Fatal(err)
	}
}

// TestAHostileProcessCannotFillTheMemory sends frames that break the rules, and bytes that are no frames.
func TestAHostileProcessCannotFillTheMemory(t *testing.T) {
	t.Parallel()
	e := newEnd(token, fromHost)
	c := newCodec(token, fromGuest)
	d := decoder{codec: c}
	handle := func(f frame) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.handle(f)
	}
	payload := make([]byte, maxPayload)
	for i := range uint64(100) {
		d.write(c.encode(nil, frame{kind: data, offset: i * maxPayload, payload: payload}), handle)
		d.write(c.encode(nil, frame{kind: data, offset: 1<<64 - 1, consumed: 1<<64 - 1, payload: payload}), handle)
		d.write(c.encode(nil, frame{kind: resume, offset: 1<<64 - 1, consumed: i}), handle)
		d.write(payload, handle)
		d.write(magic, handle)
	}
	if len(e.inbox) > window || len(d.buf) > 2*maxPayload {
		t.Errorf("%d bytes of input, %d of frames", len(e.inbox), len(d.buf))
	}
}

func FuzzDecoder(f *testing.F) {
	c := newCodec(token, fromGuest)
	f.Add(c.encode(nil, frame{kind: data, conn: 1, payload: []byte("payload")}), 3)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		d := decoder{codec: c}
		good := c.encode(nil, frame{kind: data, conn: 1, offset: 5, payload: []byte("good")})
		d.write(b[:max(0, min(at, len(b)))], func(frame) {})
		d.write(b, func(frame) {})
		found := false
		d.write(good, func(f frame) { found = string(f.payload) == "good" })
		if !found {
			t.Error("a valid frame was not found")
		}
	})
}
