//go:build linux

package operation

import (
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// slowHost is a listener that receives nothing until the gate opens.
type slowHost struct {
	entered chan struct{}
	gate    chan struct{}

	mu    sync.Mutex
	heard []string // guarded by mu
}

func (h *slowHost) RoomFor(n int) bool { return n < 1<<20 }

func (h *slowHost) Send(ms ...proto.Message) error {
	h.entered <- struct{}{}
	<-h.gate
	h.mu.Lock()
	defer h.mu.Unlock()
	if f, ok := ms[0].(*wire.Frame); ok && f.GetOutput() != nil {
		h.heard = append(h.heard, "output")
	} else {
		h.heard = append(h.heard, "verdict")
	}
	return nil
}

// Survivors of a command still write while its verdict is sent. That output must not reach a stream that serves the
// next call.
func TestNothingIsSaidBehindTheVerdict(t *testing.T) {
	for name, size := range map[string]int{"a little output": 10, "more than there is room for": 2 << 20} {
		t.Run(name, func(t *testing.T) {
			ops := NewTable(t.TempDir())
			o, bad := ops.Add(Request{ID: "o", Inline: 1000, Spool: -1})
			if bad != nil {
				t.Fatal(bad)
			}
			host := &slowHost{entered: make(chan struct{}, 10), gate: make(chan struct{})}
			heard := o.Listen(host)
			emitted := make(chan struct{})
			go func() {
				defer close(emitted)
				o.Emit(1, make([]byte, size))
			}()
			<-host.entered
			o.Finish(&wire.Verdict{}) // must not wait for a host that does not read
			answered := make(chan error, 1)
			go func() {
				o.Flush(heard)
				answered <- host.Send(&wire.Frame{Body: &wire.Frame_Verdict{}})
			}()
			select {
			case <-host.entered:
				t.Error("the verdict was sent together with output")
			case <-time.After(2 * DrainWait):
			}
			if !host.RoomFor(size) {
				<-emitted // the writer continues, although the host does not read
			}
			close(host.gate)
			if err := <-answered; err != nil {
				t.Error(err)
			}
			<-emitted
			o.Emit(2, []byte("late"))
			host.mu.Lock()
			defer host.mu.Unlock()
			if want := []string{"output", "verdict"}; !slices.Equal(host.heard, want) {
				t.Errorf("received %v, want %v", host.heard, want)
			}
		})
	}
}
