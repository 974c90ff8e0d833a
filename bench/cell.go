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

// warmCells is how many cells run before any is counted.
const warmCells = 100

// cells compares a warm cell through the library with raw frames through the bare agent.
func cells(ctx context.Context, b *bench) (_ []row, err error) {
	sb, err := sandbox.Open(ctx, b.backend, sandbox.Spec{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sb.Close()) }()
	f, err := openFloor(ctx, b)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close(ctx)) }()

	ours, floor, ping := samples{}, samples{}, samples{}
	round := func(n int, count bool) error {
		for range n {
			began := time.Now()
			v, err := sb.Cell(ctx, sandbox.Cell{Code: "1+1"})
			took := time.Since(began)
			if err != nil {
				return err
			}
			if v.Result.Text() != "2" {
				return fmt.Errorf("1+1 is %q", v.Result.Text())
			}
			if count {
				ours = append(ours, took)
			}
		}
		for range n {
			began := time.Now()
			if err := f.cell("1+1"); err != nil {
				return err
			}
			if count {
				floor = append(floor, time.Since(began))
			}
		}
		for range n / 5 {
			began := time.Now()
			if err := sb.Ping(ctx); err != nil {
				return err
			}
			if count {
				ping = append(ping, time.Since(began))
			}
		}
		return nil
	}
	if err := round(warmCells, false); err != nil {
		return nil, err
	}
	for range b.times(60, 20) {
		if err := round(50, true); err != nil {
			return nil, err
		}
	}
	rows := []row{
		{
			Name: "cell_p50", What: "warm cell 1+1, p50", Measured: ours.median(), Unit: "ms", Baseline: floor.median(), Against: "raw frames",
			Target: "≤ 1.8 × floor", Reached: reached(ours.median() <= 1.8*floor.median()),
		},
		{Name: "cell_p99", What: "warm cell 1+1, p99", Measured: ours.at(99), Unit: "ms", Baseline: floor.at(99), Against: "raw frames"},
		{Name: "ping_p50", What: "ping through the guest, p50", Measured: ping.median(), Unit: "ms"},
	}
	docker, err := dockerExec(ctx, b)
	if err != nil {
		b.log("cell: no comparison with docker exec: %v", err)
		return rows, nil
	}
	return append(rows, row{
		Name: "cell_docker", What: "warm cell against docker exec python3 -c", Measured: ours.median(), Unit: "ms", Baseline: docker.median(), Against: "docker exec",
		Target: "≥ 80 × faster", Reached: reached(docker.median() >= 80*ours.median()),
	}), nil
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

func openFloor(ctx context.Context, b *bench) (*floorAgent, error) {
	m, err := b.bare.Start(ctx, sandbox.Spec{}.WithDefaults())
	if err != nil {
		return nil, err
	}
	s := m.Stream()
	f := &floorAgent{b: b, machine: m, r: bufio.NewReader(s), w: s, buf: make([]byte, 64<<10)}
	if err := f.await(kernel.TypeHello); err != nil {
		return nil, errors.Join(err, f.close(ctx))
	}
	return f, nil
}

func (f *floorAgent) cell(code string) error {
	f.seq++
	header := []byte(`{"id":` + strconv.Itoa(f.seq) + `}`)
	frame := kernel.AppendFrame(nil, kernel.TypeExecute, []byte{byte(len(header)), 0, 0, 0}, header, []byte(code))
	if _, err := f.w.Write(frame); err != nil {
		return err
	}
	return f.await(kernel.TypeEnd)
}

func (f *floorAgent) await(want byte) error {
	for {
		typ, _, err := kernel.ReadFrame(f.r, f.buf, 64<<20)
		if err != nil || typ == want {
			return err
		}
	}
}

func (f *floorAgent) close(ctx context.Context) error {
	err := f.b.bare.Stop(context.WithoutCancel(ctx), f.machine.ID())
	return errors.Join(err, f.machine.Stream().Close())
}

// dockerExec times docker exec of a small Python program in a container that has the host's /usr, if a Docker engine answers.
func dockerExec(ctx context.Context, b *bench) (_ samples, err error) {
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
	if _, err := docker("version"); err != nil {
		return nil, err
	}
	// An image of links into /usr is enough.
	root := filepath.Join(b.dir, "docker")
	for _, d := range []string{"usr", "proc", "dev", "sys", "etc", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return nil, err
		}
	}
	for _, l := range []string{"bin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+l, filepath.Join(root, l)); err != nil {
			return nil, err
		}
	}
	tar := filepath.Join(b.dir, "docker.tar")
	if out, err := exec.CommandContext(ctx, "tar", "-C", root, "-cf", tar, ".").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("tar: %w: %s", err, out)
	}
	const image = "recluse-bench"
	if _, err := docker("import", tar, image); err != nil {
		return nil, err
	}
	defer func() { _, e := docker("rmi", "-f", image); err = errors.Join(err, e) }()
	id, err := docker("run", "-d", "--network=none", "-v", "/usr:/usr:ro", image, "/usr/bin/sleep", "600")
	if err != nil {
		return nil, err
	}
	defer func() { _, e := docker("rm", "-f", id); err = errors.Join(err, e) }()
	var took samples
	for range b.times(20, 8) {
		began := time.Now()
		if _, err := docker("exec", id, "python3", "-c", "print(1+1)"); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}
