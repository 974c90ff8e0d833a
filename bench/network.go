//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/bench/load/web"
	"github.com/recluse-dev/recluse/egress"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/pool"
)

// benchName is the name of the server of the benchmarks, as sandboxes know it.
const benchName = "bench.test"

// loopback is a resolver by which all names lead to this host.
type loopback struct{}

func (loopback) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, nil
}

// networkOptions let sandboxes whose policy allows it connect to this host, without limits.
func networkOptions() sandbox.NetworkOptions {
	return sandbox.NetworkOptions{
		Resolver:    loopback{},
		FloorExcept: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
		Limits:      egress.Limits{Connections: 2048, Rate: 1e6},
	}
}

// networkBench compares the network of a sandbox with that of runsc on the network of the host, and with a network
// namespace on a bridge, as Docker makes it for a container.
type networkBench struct {
	b       *bench
	load    string // program
	port    string // of the server on this host
	sb      *sandbox.Sandbox
	inside  string // load in sb
	plain   bare
	bridged bridge
}

// networks returns a part that measures one aspect of the network.
func networks(aspect func(*networkBench, context.Context)) func(context.Context, *bench) {
	return func(ctx context.Context, b *bench) {
		load := build(ctx, filepath.Join(b.dir, "bin"), module+"bench/load")
		n := &networkBench{b: b, load: load, plain: b.runsc(ctx)}
		n.plain.flags = []string{"--network=host"}
		n.plain.programs = filepath.Dir(n.load)
		l := must(web.Listen("0.0.0.0:0"))
		served := make(chan error, 1)
		go func() { served <- web.Serve(l) }()
		defer func() { _ = l.Close(); <-served }()
		_, port := must2(net.SplitHostPort(l.Addr().String()))
		n.port = port
		n.sb = must(sandbox.Open(ctx, b.backend, n.spec()))
		defer closing(n.sb.Close)
		n.inside = v1.DefaultHome + "/load"
		program := must(os.Open(n.load))
		defer program.Close()
		must(n.sb.Files().Write(ctx, n.inside, program, sandbox.WriteOptions{Mode: 0o755}))
		n.bridged = b.bridge(ctx)
		defer n.bridged.remove(ctx)
		aspect(n, ctx)
	}
}

func (n *networkBench) spec() sandbox.Spec {
	return sandbox.Spec{Network: v1.Network{Rules: []v1.NetworkRule{"allow " + benchName + ":*"}}}
}

func durations(out string) (s samples) {
	for _, line := range strings.Fields(out) {
		ns := must(strconv.ParseInt(line, 10, 64))
		s = append(s, time.Duration(ns))
	}
	return s
}

// ours runs load in the sandbox.
func (n *networkBench) ours(ctx context.Context, action string, count int) samples {
	v := must(n.sb.Run(ctx, sandbox.Command{
		Args:       []string{n.inside, "http://" + benchName + ":" + n.port, action, strconv.Itoa(count)},
		RunOptions: sandbox.RunOptions{Timeout: 5 * time.Minute, InlineBytes: 1 << 20},
	}))
	checkf(v.OK(), "load %s: %v: %s", action, v, v.Stderr)
	return durations(v.Stdout.String())
}

// host runs load in runsc on the network of the host.
func (n *networkBench) host(ctx context.Context, action string, count int) samples {
	cmd, clean := n.b.bundle(ctx, n.plain, "/mnt/load", "http://127.0.0.1:"+n.port, action, strconv.Itoa(count))
	defer clean()
	return output(cmd)
}

// bridge runs load in a network namespace on a bridge.
func (n *networkBench) bridge(ctx context.Context, action string, count int) samples {
	url := "http://" + bridgeAddress + ":" + n.port
	return output(exec.CommandContext(ctx, "ip", "netns", "exec", bridgeName, n.load, url, action, strconv.Itoa(count)))
}

func output(cmd *exec.Cmd) samples {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	checkf(err == nil, "%v: %w: %s", cmd.Args, err, stderr.String())
	return durations(string(out))
}

// alternate runs an operation on all sides in turn, several times.
func (n *networkBench) alternate(
	ctx context.Context, rounds int, action string, count int,
) (ours, host, bridged samples) {
	for range rounds {
		ours = append(ours, n.ours(ctx, action, count)...)
		host = append(host, n.host(ctx, action, count)...)
		if n.bridged.err == nil {
			bridged = append(bridged, n.bridge(ctx, action, count)...)
		}
	}
	return ours, host, bridged
}

const hostNetwork = "runsc --network=host"

// transfers measures one large transfer in each direction.
func (n *networkBench) transfers(ctx context.Context) {
	size := n.b.times(500_000_000, 100_000_000)
	rate := func(s samples) float64 { return float64(size) / 1e3 / s.median() }
	for _, action := range []string{"download", "upload"} {
		ours, host, bridged := n.alternate(ctx, n.b.times(5, 3), action, size)
		r := row{
			Name:     "network_" + action,
			What:     fmt.Sprintf("network: %s of %d MB", action, size/1_000_000),
			Measured: rate(ours),
			Unit:     "MB/s",
			Baseline: rate(host),
			Against:  hostNetwork,
			Target:   "≥ 0.15 ×",
			Reached:  reached(rate(ours) >= 0.15*rate(host)),
			Note:     n.bridged.note("%.0f MB/s", func() float64 { return rate(bridged) }),
		}
		n.b.report([]row{r})
	}
}

// requests measures small requests.
func (n *networkBench) requests(ctx context.Context) {
	many := n.b.times(1000, 200)
	for _, r := range []struct {
		action, what string
		count        int
		most         float64 // times the baseline; 0: no target
	}{
		{"connect", "connect and GET, p50", n.b.times(200, 50), 5},
		{"kept", "GET on a kept connection, p50", n.b.times(1000, 200), 4},
		{"many", fmt.Sprintf("%d connections at once, with a request each", many), many, 0},
	} {
		ours, host, bridged := n.alternate(ctx, 3, r.action, r.count)
		out := row{
			Name:     "network_" + r.action,
			What:     "network: " + r.what,
			Measured: ours.median(),
			Unit:     "ms",
			Baseline: host.median(),
			Against:  hostNetwork,
			Note:     n.bridged.note("%.3f ms", bridged.median),
		}
		if r.most > 0 {
			out.Target = fmt.Sprintf("≤ %g ×", r.most)
			out.Reached = reached(ours.median() <= r.most*host.median())
		}
		n.b.report([]row{out})
	}
}

// inbound measures a download from a server in the sandbox.
func (n *networkBench) inbound(ctx context.Context) {
	const port = 8123
	size := n.b.times(500_000_000, 100_000_000)
	id := must(n.sb.Start(ctx, sandbox.Command{Args: []string{n.inside, "serve", strconv.Itoa(port)}}))
	defer func() { check(n.sb.Cancel(context.WithoutCancel(ctx), id)) }()
	cmd, clean := n.b.bundle(ctx, n.plain, "/mnt/load", "serve", strconv.Itoa(port))
	defer clean()
	check(cmd.Start())
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt) // the program in the sandbox ends, and with it the sandbox
		_ = cmd.Wait()
	}()
	get := func(dial func(context.Context) (net.Conn, error)) (took time.Duration, err error) {
		transport := &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		}
		defer transport.CloseIdleConnections()
		url := fmt.Sprintf("http://127.0.0.1:%d/?n=%d", port, size)
		began := time.Now()
		resp, err := (&http.Client{Transport: transport}).Do(must(http.NewRequestWithContext(ctx, http.MethodGet, url, nil)))
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		got, err := io.Copy(io.Discard, resp.Body)
		if err == nil && got != int64(size) {
			err = fmt.Errorf("%d bytes, want %d", got, size)
		}
		return time.Since(began), err
	}
	ours, host := samples{}, samples{}
	for _, s := range []struct {
		took *samples
		dial func(context.Context) (net.Conn, error)
	}{
		{&ours, func(ctx context.Context) (net.Conn, error) {
			c, err := n.sb.DialPort(ctx, port)
			return portConn{PortConn: c}, err
		}},
		{&host, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		}},
	} {
		for deadline := time.Now().Add(20 * time.Second); ; {
			took, err := get(s.dial)
			if err == nil {
				if *s.took = append(*s.took, took); len(*s.took) == n.b.times(5, 3) {
					break
				}
				continue
			}
			checkf(time.Now().Before(deadline), "inbound: %w", err) // the server has not started yet
			pause(ctx, 50*time.Millisecond)
		}
	}
	rate := func(s samples) float64 { return float64(size) / 1e3 / s.median() }
	n.b.report([]row{{
		Name:     "network_inbound",
		What:     fmt.Sprintf("network: download of %d MB from a port inside", size/1_000_000),
		Measured: rate(ours),
		Unit:     "MB/s",
		Baseline: rate(host),
		Against:  hostNetwork,
		Target:   "≥ 0.15 ×",
		Reached:  reached(rate(ours) >= 0.15*rate(host)),
	}})
}

// portConn adds to a connection what net/http does not use here.
type portConn struct {
	net.Conn
	sandbox.PortConn
}

func (c portConn) Read(b []byte) (int, error)  { return c.PortConn.Read(b) }
func (c portConn) Write(b []byte) (int, error) { return c.PortConn.Write(b) }
func (c portConn) Close() error                { return c.PortConn.Close() }

// cellBeside measures a warm cell while a download runs in the same sandbox at full speed.
func (n *networkBench) cellBeside(ctx context.Context) {
	cells := func() (s samples) {
		for range n.b.times(500, 100) {
			began := time.Now()
			want(ctx, n.sb, "1+1", "2")
			s = append(s, time.Since(began))
		}
		return s
	}
	cells() // the first ones are slower
	alone, beside := samples{}, samples{}
	for range 3 {
		alone = append(alone, cells()...)
		id := must(n.sb.Start(ctx, sandbox.Command{
			Args: []string{n.inside, "http://" + benchName + ":" + n.port, "download", "100000000000"},
		}))
		pause(ctx, 200*time.Millisecond) // the download has begun
		beside = append(beside, cells()...)
		check(n.sb.Cancel(ctx, id))
	}
	n.b.report([]row{{
		Name:     "network_cell",
		What:     "network: warm cell beside a download, p50",
		Measured: beside.median(),
		Unit:     "ms",
		Baseline: alone.median(),
		Against:  "alone",
		Target:   "≤ +2 ms",
		Reached:  reached(beside.median() <= alone.median()+2),
		Note:     fmt.Sprintf("p99 %.1f ms, alone %.1f ms", beside.at(99), alone.at(99)),
	}})
}

// memory measures what the network adds to an idle sandbox, after a request.
func (n *networkBench) memory(ctx context.Context) {
	specs := []sandbox.Spec{{}, n.spec()}
	boxes := make([]*sandbox.Sandbox, n.b.times(60, 8)) // many, because one differs from the next by a megabyte
	defer closing(func() error { return closeAll(boxes) })
	for i := range boxes {
		boxes[i], _ = firstCell(ctx, func() (*sandbox.Sandbox, error) { return sandbox.Open(ctx, n.b.backend, specs[i%2]) })
		host, status := benchName, "200"
		if i%2 == 0 {
			host, status = "127.0.0.1", "refused"
		}
		v := must(boxes[i].Cell(ctx, sandbox.Cell{Code: fmt.Sprintf(`import http.client
c = http.client.HTTPConnection(%q, %s)
try:
    c.request("GET", "/"); r = c.getresponse(); r.read(); print(r.status)
except OSError: print("refused")
c.close()`, host, n.port)}))
		checkf(strings.TrimSpace(v.Stdout.String()) == status, "a request: %v %s", v, v.Stdout)
	}
	pause(ctx, idleFor)
	var total [2]usage
	for i, sb := range boxes {
		total[i%2] = total[i%2].plus(n.b.usage(sb.ID()))
	}
	mb := func(v int64) float64 { return float64(v) / 1e6 / float64(len(boxes)/2) }
	without, with := total[0], total[1]
	n.b.report([]row{{
		Name:     "network_memory",
		What:     "network: memory of an idle sandbox after a request, PSS",
		Measured: mb(with.all()),
		Unit:     "MB",
		Baseline: mb(without.all()),
		Against:  "policy none",
		Target:   "≤ +1 MB",
		Reached:  reached(mb(with.all()-without.all()) <= 1),
		Note: fmt.Sprintf("sentry %+.1f, gofer %+.1f, processes inside %+.1f MB",
			mb(with.sentry-without.sentry), mb(with.gofer-without.gofer), mb(with.stubs-without.stubs)),
	}})
}

// creation measures what the network adds to a new sandbox, and to one of a warm pool.
func (n *networkBench) creation(ctx context.Context) {
	p := pool.New(n.b.backend, pool.Options{})
	defer p.Close()
	specs := []sandbox.Spec{{}, n.spec()}
	for _, s := range specs {
		check(p.Warm(ctx, s))
	}
	for _, r := range []struct {
		name, what string
		most       float64
		pairs      int
		open       func(sandbox.Spec) (*sandbox.Sandbox, error)
	}{
		{"network_create", "create to first cell", 3, n.b.times(100, 20), func(s sandbox.Spec) (*sandbox.Sandbox, error) {
			return sandbox.Open(ctx, n.b.backend, s)
		}},
		{"network_pool", "pool to first cell", 3, n.b.times(100, 10), func(s sandbox.Spec) (*sandbox.Sandbox, error) {
			for st := p.Stats(); st.Making > 0; st = p.Stats() {
				pause(ctx, 10*time.Millisecond)
			}
			return p.Get(ctx, s)
		}},
	} {
		var took [2]samples
		for range r.pairs {
			for i, s := range specs {
				sb, first := firstCell(ctx, func() (*sandbox.Sandbox, error) { return r.open(s) })
				check(sb.Close())
				took[i] = append(took[i], first)
			}
		}
		with, without := took[1].median(), took[0].median()
		n.b.report([]row{{
			Name:     r.name,
			What:     "network: " + r.what + ", p50",
			Measured: with,
			Unit:     "ms",
			Baseline: without,
			Against:  "policy none",
			Target:   fmt.Sprintf("≤ +%g ms", r.most),
			Reached:  reached(with <= without+r.most),
		}})
	}
}

// bridge is a network namespace on a bridge of this host, for the duration of a part.
type bridge struct {
	err error // why there is none
}

const (
	bridgeName    = "recluse-bench" // of the bridge, the namespace, and the start of the names of the link between them
	bridgeAddress = "169.254.77.1"  // of the bridge; link-local, so that no route of the host is hidden
)

func (b *bench) bridge(ctx context.Context) (out bridge) {
	for _, line := range []string{
		"link add " + bridgeName + " type bridge",
		"addr add " + bridgeAddress + "/30 dev " + bridgeName,
		"link set " + bridgeName + " up",
		"netns add " + bridgeName,
		"link add recluse-bench-h type veth peer name recluse-bench-c",
		"link set recluse-bench-h master " + bridgeName + " up",
		"link set recluse-bench-c netns " + bridgeName,
		"-n " + bridgeName + " addr add 169.254.77.2/30 dev recluse-bench-c",
		"-n " + bridgeName + " link set recluse-bench-c up",
	} {
		text, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput()
		if err != nil {
			out.err = fmt.Errorf("ip %s: %w: %s", line, err, bytes.TrimSpace(text))
			return out
		}
	}
	return out
}

func (bridge) remove(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	_ = exec.CommandContext(ctx, "ip", "netns", "delete", bridgeName).Run() // it may not exist
	_ = exec.CommandContext(ctx, "ip", "link", "delete", bridgeName).Run()
}

// note returns the figure of the bridge, or why there is none.
func (b bridge) note(format string, value func() float64) string {
	if b.err != nil {
		return "no bridge to compare with: " + b.err.Error()
	}
	return "a network namespace on a bridge, as Docker makes it: " + fmt.Sprintf(format, value())
}
