// Package doctor reports what works on this machine, which backend is selected, and why the others are not.
package doctor

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/diskuse"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// tryTimeout is the timeout of the trial sandbox.
const tryTimeout = 20 * time.Second

// Report is the result of Diagnose.
type Report struct {
	System    string           `json:"system"`
	User      string           `json:"user"`
	Checks    []Fact           `json:"checks"`
	Chosen    string           `json:"chosen,omitempty"`
	Backends  []backend.Tried  `json:"backends"`
	Trial     *Trial           `json:"trial,omitempty"`
	Sandboxes []sandbox.Info   `json:"sandboxes,omitempty"`
	Engine    *Program         `json:"engine"`
	Guest     *Program         `json:"guest"`
	Error     *console.Failure `json:"error,omitempty"` // why no backend is selected
}

// Fact is the result of one check of this machine.
type Fact struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Trial is the result of a trial sandbox.
type Trial struct {
	OK     bool             `json:"ok"`
	Kernel string           `json:"kernel,omitempty"`
	Python string           `json:"python,omitempty"`
	First  time.Duration    `json:"first_cell_ns"` // from the start of the sandbox to the first result
	Warm   time.Duration    `json:"warm_cell_ns"`
	Error  *console.Failure `json:"error,omitempty"`
}

// Options are the options of Diagnose.
type Options struct {
	Backends []sandbox.Backend
	Require  backend.Requirements
	// Made is called with the trial sandbox, so that the program can end it when it exits at once.
	Made func(*sandbox.Sandbox)
	// Failed is called if the trial sandbox cannot be ended.
	Failed func(error)
}

// Diagnose checks this machine and all backends, and makes a trial sandbox with the selected one.
func Diagnose(ctx context.Context, o Options) *Report {
	r := &Report{
		System: systemName(),
		User:   userName(),
		Checks: append(directories(), hostChecks(ctx)...),
		Engine: FindProgram(ctx, bundle.Engine),
		Guest:  FindProgram(ctx, bundle.Guest),
	}
	o.Require.All = true
	b, tried, err := backend.Select(ctx, o.Backends, o.Require)
	r.Backends = tried
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	r.Error = console.NewFailure(err)
	if b == nil {
		return r
	}
	if k, ok := b.(backend.VolumeKeeper); ok {
		r.Checks = append(r.Checks, volumes(b.Name(), k))
	}
	r.Chosen, r.Trial = b.Name(), &Trial{}
	err = r.Trial.run(ctx, b, o)
	r.Trial.OK, r.Trial.Error = err == nil, console.NewFailure(err)
	if r.Sandboxes, err = b.List(ctx); err != nil {
		r.Checks = append(r.Checks, Fact{Name: "sandboxes", Detail: err.Error()})
	}
	return r
}

// Isolates reports whether the selected backend isolates and its trial succeeded.
func (r *Report) Isolates() bool {
	return slices.ContainsFunc(r.Backends, func(t backend.Tried) bool {
		return t.Chosen && t.Capabilities.Isolation > sandbox.IsolationNone && r.Trial.OK
	})
}

// run makes a sandbox and runs Python in it.
func (t *Trial) run(ctx context.Context, b sandbox.Backend, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	start := time.Now()
	s, err := sandbox.Open(ctx, b, sandbox.Spec{})
	if err != nil {
		return err
	}
	o.Made(s)
	defer func() {
		if err := s.Close(); err != nil {
			o.Failed(err)
		}
	}()
	g, err := s.Guest(ctx)
	if err != nil {
		return err
	}
	t.Kernel = g.Kernel
	if g.Python == "" {
		t.First = time.Since(start)
		return nil
	}
	v, err := s.Cell(ctx, sandbox.Cell{Code: "import platform; platform.python_version()"})
	if err != nil {
		return err
	}
	t.First = time.Since(start)
	if !v.OK() {
		return &v1.Error{Code: v1.CodeInternal, Op: "try a cell", Message: v.String()}
	}
	t.Python = strings.Trim(v.Result.Text(), "'")
	start = time.Now()
	if v, err = s.Cell(ctx, sandbox.Cell{Code: "1+1"}); err != nil {
		return err
	}
	t.Warm = time.Since(start)
	if got := v.Result.Text(); got != "2" {
		return &v1.Error{Code: v1.CodeInternal, Op: "try a cell", Message: fmt.Sprintf("1+1 returned %q", got)}
	}
	return nil
}

// directories returns facts about the data and cache directories.
func directories() []Fact {
	var out []Fact
	for _, d := range []struct {
		name string
		find func() (string, error)
	}{{"data", xdg.Data}, {"cache", xdg.Cache}} {
		path, err := d.find()
		if err != nil {
			f := console.NewFailure(err)
			out = append(out, Fact{Name: d.name, Detail: f.String(), Remedy: f.Remedy})
			continue
		}
		f := Fact{Name: d.name, OK: true, Detail: path}
		if s, ok := diskuse.Of(path); ok {
			f.Detail += " (" + console.Bytes(s.Free) + " free)"
			if s.Low() {
				f.OK, f.Remedy = false, "little space: recluse du shows what takes it, recluse gc removes what nothing needs"
			}
		}
		out = append(out, f)
		if c, ok := copies(path); ok && d.name == "data" {
			out = append(out, c)
		}
	}
	return out
}

// copies returns a fact about copies of files in the data directory.
func copies(dir string) (f Fact, ok bool) {
	shares, known := diskuse.SharesBlocks(dir)
	if !known {
		return f, false
	}
	f = Fact{Name: "snapshots", OK: true, Detail: "share blocks with their originals: files take neither time nor space"}
	if !shares {
		f.Detail = "copy all files: the file system of the data directory does not share blocks"
		f.Remedy = "if forks of many files take too long, put it on XFS or btrfs (docs/STORAGE.md)"
	}
	return f, true
}

// volumes returns a fact about the volumes of a backend.
func volumes(name string, k backend.VolumeKeeper) Fact {
	dir, unlimited := k.VolumeStorage()
	f := Fact{Name: "volumes", OK: true, Detail: dir + "; " + name + " limits their size"}
	if unlimited != nil {
		f.Detail = dir + "; " + name + " cannot limit their size: " + unlimited.Error()
	}
	return f
}

func userName() string {
	if runtime.GOOS == "windows" {
		return "user " + os.Getenv("USERNAME")
	}
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Sprintf("uid %d", uid)
	}
	return "root"
}

// Program is a program that belongs to recluse, or the error if it was not found.
type Program struct {
	bundle.Program
	Error *console.Failure `json:"error,omitempty"`
}

// FindProgram returns the result of find as a Program.
func FindProgram(ctx context.Context, find func(context.Context) (bundle.Program, error)) *Program {
	p, err := find(ctx)
	return &Program{p, console.NewFailure(err)}
}

// String returns one line about the program.
func (p *Program) String() string {
	if p.Error != nil {
		return "not found: " + p.Error.Message
	}
	return fmt.Sprintf("%.16s  %s", p.Hash, p.Origin)
}
