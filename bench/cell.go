//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/sandbox"
)

// warmCells is the number of cells that run before the first is measured.
const warmCells = 100

// cells compares a warm cell through the library with raw frames through the bare agent.
func cells(ctx context.Context, b *bench) {
	sb := b.open(ctx)
	defer closing(sb.Close)
	f := openFloor(ctx, b)
	defer closing(func() error { return f.close(ctx) })

	ours, floor, ping := samples{}, samples{}, samples{}
	round := func(n int, count bool) {
		for range n {
			began := time.Now()
			v := must(sb.Cell(ctx, sandbox.Cell{Code: "1+1"}))
			took := time.Since(began)
			checkf(v.Result.Text() == "2", "1+1 is %q", v.Result.Text())
			if count {
				ours = append(ours, took)
			}
		}
		for range n {
			began := time.Now()
			f.cell("1+1")
			if count {
				floor = append(floor, time.Since(began))
			}
		}
		for range n / 5 {
			began := time.Now()
			check(sb.Ping(ctx))
			if count {
				ping = append(ping, time.Since(began))
			}
		}
	}
	round(warmCells, false)
	for range b.times(60, 20) {
		round(50, true)
	}
	b.report([]row{
		{
			Name:     "cell_p50",
			What:     "warm cell 1+1, p50",
			Measured: ours.median(),
			Unit:     "ms",
			Baseline: floor.median(),
			Against:  "raw frames",
			Target:   "≤ 1.8 × floor",
			Reached:  reached(ours.median() <= 1.8*floor.median()),
		},
		{
			Name:     "cell_p99",
			What:     "warm cell 1+1, p99",
			Measured: ours.at(99),
			Unit:     "ms",
			Baseline: floor.at(99),
			Against:  "raw frames",
		},
		{Name: "ping_p50", What: "ping through the guest, p50", Measured: ping.median(), Unit: "ms"},
	})
	var docker samples
	if err := attempt(func() { docker = dockerExec(ctx, b) }); err != nil {
		b.log("cell: no comparison with docker exec: %v", err)
		return
	}
	b.report([]row{{
		Name:     "cell_docker",
		What:     "warm cell against docker exec python3 -c",
		Measured: ours.median(),
		Unit:     "ms",
		Baseline: docker.median(),
		Against:  "docker exec",
		Target:   "≥ 80 × faster",
		Reached:  reached(docker.median() >= 80*ours.median()),
	}})
}

// floorAgent is the bare agent in a sandbox of the same kind.
type floorAgent struct {
	b       *bench
	machine sandbox.Machine
	r       *bufio.Reader
	w       io.Writer
	buf     []byte
	seq     int
}

func openFloor(ctx context.Context, b *bench) *floorAgent {
	m := must(b.bare.Start(ctx, sandbox.Spec{}.WithDefaults()))
	s := m.Stream()
	f := &floorAgent{b: b, machine: m, r: bufio.NewReader(s), w: s, buf: make([]byte, 64<<10)}
	if err := attempt(func() { f.await(kernel.TypeHello) }); err != nil {
		check(errors.Join(err, f.close(ctx)))
	}
	return f
}

func (f *floorAgent) cell(code string) {
	f.seq++
	header := []byte(`{"id":` + strconv.Itoa(f.seq) + `}`)
	must(f.w.Write(kernel.AppendFrame(nil, kernel.TypeExecute, []byte{byte(len(header)), 0, 0, 0}, header, []byte(code))))
	f.await(kernel.TypeEnd)
}

func (f *floorAgent) await(want byte) {
	for {
		if typ, _ := must2(kernel.ReadFrame(f.r, f.buf, 64<<20)); typ == want {
			return
		}
	}
}

func (f *floorAgent) close(ctx context.Context) error {
	err := f.b.bare.Stop(context.WithoutCancel(ctx), f.machine.ID())
	return errors.Join(err, f.machine.Stream().Close())
}

// dockerExec measures docker exec of a small Python program in a container that mounts the host's /usr. It fails if no
// Docker engine answers.
func dockerExec(ctx context.Context, b *bench) samples {
	docker := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
		text := strings.TrimSpace(string(out))
		if err != nil {
			return "", fmt.Errorf("docker %s: %w: %s", args[0], err, text)
		}
		return text, nil
	}
	remove := func(args ...string) func() error {
		return func() error {
			_, err := docker(args...)
			return err
		}
	}
	must(docker("version"))
	// An image with links into /usr is enough.
	root := filepath.Join(b.dir, "docker")
	for _, d := range []string{"usr", "proc", "dev", "sys", "etc", "tmp"} {
		check(os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	for _, l := range []string{"bin", "lib", "lib64"} {
		check(os.Symlink("usr/"+l, filepath.Join(root, l)))
	}
	tar := filepath.Join(b.dir, "docker.tar")
	out, err := exec.CommandContext(ctx, "tar", "-C", root, "-cf", tar, ".").CombinedOutput()
	checkf(err == nil, "tar: %w: %s", err, out)
	const image = "recluse-bench"
	must(docker("import", tar, image))
	defer closing(remove("rmi", "-f", image))
	id := must(docker("run", "-d", "--network=none", "-v", "/usr:/usr:ro", image, "/usr/bin/sleep", "600"))
	defer closing(remove("rm", "-f", id))
	var took samples
	for range b.times(20, 8) {
		began := time.Now()
		must(docker("exec", id, "python3", "-c", "print(1+1)"))
		took = append(took, time.Since(began))
	}
	return took
}
