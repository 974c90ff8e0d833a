//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/remoteguest/remotetest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/e2b"
)

const (
	// cloudDelay is what the link of cloud adds to a round trip.
	cloudDelay = 20 * time.Millisecond
	// cloudRate is the rate of the link for output in bytes per second: 100 Mbit/s. Without one, it is loopback.
	cloudRate   = 100e6 / 8
	cloudOutput = 10_000_000
)

// cloud compares a sandbox of the e2b backend through a slow link with one without the link, in turn. The service is
// our own server with the API of E2B.
func cloud(ctx context.Context, b *bench) {
	env, stop := b.e2bServer(ctx, "RECLUSE_POOL_ENABLED=false")
	defer closing(stop)
	setting := func(name string) string {
		for _, v := range slices.Backward(env) {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value
			}
		}
		return ""
	}
	backend := func(name, at string) *e2b.Backend {
		return must(e2b.New(e2b.Options{
			URL: at, Key: setting("E2B_API_KEY"), Remote: remoteguest.Options{Dir: filepath.Join(b.dir, name)},
		}))
	}
	through := func(l *remotetest.Link, to string) (string, func() error) {
		near, stop, err := l.Start(to)
		check(err)
		return near, func() error { stop(); return nil }
	}
	direct := backend("cloud-direct", setting("E2B_API_URL"))
	defer closing(direct.Close)
	slow := &remotetest.Link{Delay: cloudDelay}
	address, end := through(slow, setting("E2B_API_URL"))
	defer closing(end)
	far := backend("cloud-far", address)
	defer closing(far.Close)
	near, _ := firstCell(ctx, func() (*sandbox.Sandbox, error) { return sandbox.Open(ctx, direct, sandbox.Spec{}) })
	defer closing(near.Close)
	sb, _ := firstCell(ctx, func() (*sandbox.Sandbox, error) { return sandbox.Open(ctx, far, sandbox.Spec{}) })
	defer closing(func() error { return sb.Close() })

	plain, linked := samples{}, samples{}
	for range b.times(50, 10) {
		for _, side := range []struct {
			in   *sandbox.Sandbox
			took *samples
		}{{near, &plain}, {sb, &linked}} {
			began := time.Now()
			want(ctx, side.in, "1+1", "2")
			*side.took = append(*side.took, time.Since(began))
		}
	}
	added := float64(cloudDelay.Milliseconds())
	b.report([]row{{
		Name: "cloud_cell", What: "e2b: warm cell through a link that adds 20 ms to a round trip",
		Measured: linked.median(), Unit: "ms", Baseline: plain.median(), Against: "without the link",
		Target: "≤ 20 ms + 1.5 ×", Reached: reached(linked.median() <= added+1.5*plain.median()),
		Note: fmt.Sprintf("%.1f ms above the added round trip; medians of %d pairs", linked.median()-added, len(linked)),
	}})

	// Another program attaches through the link again, which uploads nothing.
	size := must(os.Stat(os.Getenv("RECLUSE_GUEST"))).Size()
	id := sb.ID()
	sb.Detach()
	sb = must(sandbox.Attach(ctx, far, id))
	want(ctx, sb, "1+1", "2")
	uploads := float64(slow.Sent.Load()) / float64(size)
	b.report([]row{{
		Name: "cloud_uploads", What: "e2b: uploads of the guest for a sandbox that is attached to twice",
		Measured: uploads, Unit: "×", Target: "1", Reached: reached(uploads >= 1 && uploads < 1.5),
		Note: fmt.Sprintf("%d bytes were sent over the link, all calls included; the guest has %d", slow.Sent.Load(), size),
	}})
	sb.Detach()
	for _, rate := range []float64{cloudRate, 0} {
		b.cloudOutput(ctx, backend, through, setting("E2B_API_URL"), id, rate)
	}
	sb = must(sandbox.Attach(ctx, far, id)) // to end it
}

// cloudOutput compares output of a sandbox through a link with the same bytes from a TCP server through such a link.
func (b *bench) cloudOutput(
	ctx context.Context, backend func(name, at string) *e2b.Backend,
	through func(*remotetest.Link, string) (string, func() error), service, id string, rate float64,
) {
	server := must(net.Listen("tcp", "127.0.0.1:0"))
	defer closing(server.Close)
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			one := make([]byte, 1)
			for {
				if _, err := io.ReadFull(c, one); err != nil {
					_ = c.Close()
					break
				}
				_, _ = c.Write(make([]byte, cloudOutput)) // the reader counts
			}
		}
	}()
	raw, end := through(&remotetest.Link{Delay: cloudDelay, Rate: rate}, "http://"+server.Addr().String())
	defer closing(end)
	conn := must(net.Dial("tcp", strings.TrimPrefix(raw, "http://")))
	defer closing(conn.Close)
	address, endFar := through(&remotetest.Link{Delay: cloudDelay, Rate: rate}, service)
	defer closing(endFar)
	far := backend("cloud-far", address)
	defer closing(far.Close)
	sb := must(sandbox.Attach(ctx, far, id))
	defer sb.Detach()

	ours, plain := samples{}, samples{}
	// Zeros would be compressed on the way.
	v := must(sb.Run(ctx, sandbox.Command{Shell: fmt.Sprintf("head -c %d /dev/urandom > /tmp/output", cloudOutput)}))
	checkf(v.OK(), "%v", v)
	argv := []string{"/usr/bin/cat", "/tmp/output"}
	for i := range b.times(10, 3) + 1 {
		began := time.Now()
		must(conn.Write([]byte{1}))
		must(io.CopyN(io.Discard, conn, cloudOutput))
		took := time.Since(began)
		mine, _ := runCounted(ctx, sb, argv, cloudOutput)
		if i > 0 { // the first ones make the connections
			plain, ours = append(plain, took), append(ours, mine)
		}
	}
	speed := func(s samples) float64 { return cloudOutput / 1e6 / (s.median() / 1e3) }
	r := row{
		Name: "cloud_output", What: "e2b: 10 MB of output through a link with 20 ms and 100 Mbit/s",
		Measured: speed(ours), Unit: "MB/s", Baseline: speed(plain), Against: "TCP through the link",
		Target: "≥ 0.5 ×", Reached: reached(speed(ours) >= 0.5*speed(plain)),
	}
	if rate == 0 {
		r.Name, r.What, r.Target, r.Reached = "cloud_output_fast", "e2b: 10 MB of output through a link with 20 ms and any rate", "", nil
	}
	b.report([]row{r})
}
