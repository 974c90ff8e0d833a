//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

// dockers compares containers with plain docker run and docker exec, and with gVisor, on a private Docker engine. All
// alternate.
func dockers(ctx context.Context, b *bench) {
	e := must(dockertest.Start(ctx, b.engine.Path))
	defer closing(e.Stop)
	d := &dockerBench{b: b, host: e.Host}
	for _, r := range []struct {
		runtime string
		to      **docker.Backend
	}{{"runc", &d.runc}, {"runsc", &d.runsc}} {
		*r.to = must(docker.New(docker.Options{
			Host:     e.Host,
			Image:    dockertest.Image,
			Pull:     docker.PullNever,
			Runtime:  r.runtime,
			Dir:      filepath.Join(b.dir, "docker-"+r.runtime),
			Instance: "bench-" + r.runtime,
		}))
		defer (*r.to).Close()
	}
	check(d.runc.ImportHost(ctx, dockertest.Image))
	var errs []error
	for _, f := range []func(context.Context){d.cells, d.creates, d.crowd} {
		errs = append(errs, attempt(func() { f(ctx) }))
	}
	check(errors.Join(errs...))
}

type dockerBench struct {
	b           *bench
	host        string
	runc, runsc *docker.Backend
}

// command runs the docker command, and returns its output and its duration.
func (d *dockerBench) command(ctx context.Context, args ...string) (string, time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := time.Now()
	out, err := exec.CommandContext(ctx, "docker", append([]string{"-H", d.host}, args...)...).CombinedOutput()
	took := time.Since(began)
	text := strings.TrimSpace(string(out))
	checkf(err == nil, "docker %s: %w: %s", args[0], err, text)
	return text, took
}

// first makes a sandbox of a backend and waits for the result of its first cell.
func (d *dockerBench) first(ctx context.Context, back sandbox.Backend) (*sandbox.Sandbox, time.Duration) {
	return firstCell(ctx, func() (*sandbox.Sandbox, error) { return sandbox.Open(ctx, back, sandbox.Spec{}) })
}

// cells compares a warm cell with an exec of Python.
func (d *dockerBench) cells(ctx context.Context) {
	id, _ := d.command(ctx, "run", "-d", "--network=none", dockertest.Image, "sleep", "3600")
	defer closing(func() error {
		return attempt(func() { d.command(context.WithoutCancel(ctx), "rm", "-f", id) })
	})
	const each = 20 // cells per exec, because an exec takes about that much longer
	backends := []sandbox.Backend{d.runc, d.runsc, d.b.backend}
	took, execs := make([]samples, len(backends)), samples{}
	boxes := make([]*sandbox.Sandbox, len(backends))
	defer closing(func() error { return closeAll(boxes) })
	for i, back := range backends {
		boxes[i], _ = d.first(ctx, back)
	}
	for range d.b.times(20, 6) {
		_, one := d.command(ctx, "exec", id, "python3", "-c", "print(1+1)")
		execs = append(execs, one)
		for i, sb := range boxes {
			for range each {
				began := time.Now()
				want(ctx, sb, "1+1", "2")
				took[i] = append(took[i], time.Since(began))
			}
		}
	}
	against := "docker exec python3 -c"
	d.b.report([]row{
		{
			Name:     "docker_cell",
			What:     "docker (runc): warm cell, p50",
			Measured: took[0].median(),
			Unit:     "ms",
			Baseline: execs.median(),
			Against:  against,
			Target:   "≤ 1/80 ×",
			Reached:  reached(took[0].median()*80 <= execs.median()),
			Note:     fmt.Sprintf("%.0f times faster; p90 %.3f ms", execs.median()/took[0].median(), took[0].at(90)),
		},
		{
			Name:     "docker_cell_runsc",
			What:     "docker (runsc): warm cell, p50",
			Measured: took[1].median(),
			Unit:     "ms",
			Baseline: execs.median(),
			Against:  against,
		},
		{
			Name:     "docker_cell_gvisor",
			What:     "gvisor, for comparison: warm cell, p50",
			Measured: took[2].median(),
			Unit:     "ms",
			Baseline: execs.median(),
			Against:  against,
		},
	})
}

// creates compares a new sandbox, up to its first result, with docker run of true.
func (d *dockerBench) creates(ctx context.Context) {
	backends := []sandbox.Backend{d.runc, d.runsc, d.b.backend}
	took, runs := make([]samples, len(backends)), samples{}
	for i := range d.b.times(20, 6) + 1 {
		name := fmt.Sprintf("bench-true-%d", i)
		_, one := d.command(ctx, "run", "--name", name, "--network=none", dockertest.Image, "true")
		d.command(ctx, "rm", "-f", name)
		if i > 0 { // the first warms caches, copies the guest and makes the template
			runs = append(runs, one)
		}
		for j, back := range backends {
			sb, first := d.first(ctx, back)
			check(sb.Close())
			if i > 0 {
				took[j] = append(took[j], first)
			}
		}
	}
	against := "docker run true"
	d.b.report([]row{
		{
			Name:     "docker_create",
			What:     "docker (runc): create to first cell, p50",
			Measured: took[0].median(),
			Unit:     "ms",
			Baseline: runs.median(),
			Against:  against,
			Target:   "≤ 1.3 ×",
			Reached:  reached(took[0].median() <= 1.3*runs.median()),
		},
		{
			Name:     "docker_create_runsc",
			What:     "docker (runsc): create to first cell, p50",
			Measured: took[1].median(),
			Unit:     "ms",
			Baseline: runs.median(),
			Against:  against,
		},
		{
			Name:     "docker_create_gvisor",
			What:     "gvisor, for comparison: create to first cell, p50",
			Measured: took[2].median(),
			Unit:     "ms",
			Baseline: runs.median(),
			Against:  against,
		},
	})
}

// crowd makes many containers at once, runs a cell in each, ends them, and counts what is left.
func (d *dockerBench) crowd(ctx context.Context) {
	many := d.b.times(50, 12)
	count := func() int {
		containers, _ := d.command(ctx, "ps", "-aq")
		volumes, _ := d.command(ctx, "volume", "ls", "-q")
		return len(strings.Fields(containers)) + len(strings.Fields(volumes))
	}
	before := count()
	boxes, took, errs := make([]*sandbox.Sandbox, many), make(samples, many), make([]error, many)
	began := time.Now()
	each(many, many, func(i int) {
		errs[i] = attempt(func() { boxes[i], took[i] = d.first(ctx, d.runc) })
	})
	all := time.Since(began)
	answered := 0
	for _, err := range errs {
		if err == nil {
			answered++
		}
	}
	began = time.Now()
	errs = append(errs, closeAll(boxes))
	ending := time.Since(began)
	after := count()
	d.b.report([]row{
		{
			Name:     "docker_crowd",
			What:     fmt.Sprintf("docker (runc): answers of %d sandboxes made at once", many),
			Measured: float64(answered),
			Target:   "all",
			Reached:  reached(answered == many),
			Note: fmt.Sprintf("all in %.1f s, p50 %.0f ms; ending all took %.1f s",
				all.Seconds(), took.median(), ending.Seconds()),
		},
		{
			Name:     "docker_left",
			What:     "containers and volumes left after their end",
			Measured: float64(after - before),
			Target:   "nothing",
			Reached:  reached(after == before),
		},
	})
	check(errors.Join(errs...))
}
