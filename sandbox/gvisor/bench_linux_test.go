//go:build linux

package gvisor

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkBareRun is the baseline: the engine runs /bin/true and removes the sandbox.
func BenchmarkBareRun(b *testing.B) {
	h := newBench(b)
	x := h.prepare("bare", func(s *bundleSpec) { s.argv = []string{"/bin/true"} })
	for b.Loop() {
		if _, err := h.eng.call(b.Context(), "run", "--bundle="+x.dir, x.id); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRestore measures a sandbox from a checkpoint to its first answer, without limits.
func BenchmarkRestore(b *testing.B) {
	h := newBench(b)
	image := template(b, h)
	for i := 0; b.Loop(); i++ {
		x := h.mustStart("r"+itoa(i), nil, image)
		x.expect("echo ok", "ok")
		b.StopTimer()
		if err := h.eng.delete(b.Context(), x.id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkRestoreLimited is BenchmarkRestore with cgroups, and with the stubs moved into theirs.
func BenchmarkRestoreLimited(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("cgroup limits require root")
	}
	h := newBench(b)
	image := template(b, h)
	host, err := findCgroups()
	if err != nil {
		b.Fatal(err)
	}
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		b.Fatal(err)
	}
	var moving time.Duration
	defer func() { b.ReportMetric(float64(moving.Milliseconds())/float64(b.N), "adopt-ms/op") }()
	for i := 0; b.Loop(); i++ {
		id := "bench-" + itoa(os.Getpid()) + "-" + itoa(i)
		g, err := host.create(id, cgroupLimits{memory: 512 << 20, cpus: 1, pids: 4000})
		if err != nil {
			b.Fatal(err)
		}
		x := h.prepare(id, func(s *bundleSpec) { s.memory, s.cpus = 512<<20, 1 })
		h.eng.cgroups = true
		if err := x.start(b.Context(), image); err != nil {
			b.Fatal(err)
		}
		x.expect("echo ok", "ok")
		answered := time.Now()
		st, err := h.eng.state(x.id)
		if err != nil {
			b.Fatal(err)
		}
		if err := g.moveStubs(st.Sandbox.Pid, shell); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		moving += time.Since(answered)
		if err := h.eng.delete(b.Context(), x.id); err != nil {
			b.Fatal(err)
		}
		if err := g.remove(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// template makes a checkpoint of a running stand-in guest.
func template(b *testing.B, h *bench) string {
	b.Helper()
	x := h.mustStart("template", nil, "")
	x.expect("echo ok", "ok")
	image := b.TempDir()
	if err := h.eng.checkpoint(b.Context(), x.id, image, false); err != nil {
		b.Fatal(err)
	}
	if err := h.eng.delete(b.Context(), x.id); err != nil {
		b.Fatal(err)
	}
	return image
}
