//go:build linux

// Command bench measures how fast recluse is on this machine. Each figure is next to a baseline from the same run:
// measurement and baseline alternate, so that other load on the machine slows both.
//
//	go run ./bench [--quick] [--only NAME,…] [--json] [--profile FILE]
//
// It builds the engine and the guest, unless RECLUSE_ENGINE and RECLUSE_GUEST are set. It keeps everything in a
// temporary directory, which it removes.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	programs "github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

// row is one figure.
type row struct {
	Name     string  `json:"name"`
	What     string  `json:"what"`
	Measured float64 `json:"measured"`
	Unit     string  `json:"unit"`
	Baseline float64 `json:"baseline,omitempty"` // in the same unit; 0: no baseline
	Against  string  `json:"against,omitempty"`  // name of the baseline
	Ratio    float64 `json:"ratio,omitempty"`
	Target   string  `json:"target,omitempty"`
	Reached  *bool   `json:"reached,omitempty"` // nil: there is no target
	Note     string  `json:"note,omitempty"`
	// Rounds is the number of rounds, if there was more than one. The rest of the row is that of the median round.
	Rounds int `json:"rounds,omitempty"`
	// Lowest and Highest are the extremes of the ratios of all rounds, or of Measured if there is no baseline.
	Lowest  float64 `json:"lowest,omitempty"`
	Highest float64 `json:"highest,omitempty"`
}

// value returns the value by which rounds are compared.
func (r row) value() float64 { return cmp.Or(r.Ratio, r.Measured) }

// missed reports whether the row has a target and did not reach it.
func (r row) missed() bool { return r.Reached != nil && !*r.Reached }

// rounds is how often a part is measured if one of its rows misses its target in the first round: on a busy machine, a
// single round is not reliable.
const rounds = 3

// median joins the rounds of a part: each row is that of its median round.
func median(measured [][]row) []row {
	if len(measured) == 1 {
		return measured[0]
	}
	var out []row
	for _, first := range measured[0] {
		var all []row
		for _, round := range measured {
			for _, r := range round {
				if r.Name == first.Name {
					all = append(all, r)
				}
			}
		}
		slices.SortFunc(all, func(a, b row) int { return cmp.Compare(a.value(), b.value()) })
		r := all[len(all)/2]
		r.Rounds, r.Lowest, r.Highest = len(all), all[0].value(), all[len(all)-1].value()
		out = append(out, r)
	}
	return out
}

// reached returns a value for row.Reached.
func reached(ok bool) *bool { return &ok }

// part measures some rows. Parts whose names have the same prefix up to a dot can be selected together.
type part struct {
	name string
	run  func(context.Context, *bench)
}

// among reports whether names contains the part or its prefix.
func (p part) among(names []string) bool {
	family, _, _ := strings.Cut(p.name, ".")
	return slices.Contains(names, p.name) || slices.Contains(names, family)
}

var parts = []part{
	{"cell", cells},
	{"command", commands},
	{"create", creates},
	{"pool", pooled},
	{"fork", forks},
	{"disk.fork", diskForks},
	{"disk.io", diskIO},
	{"disk.pip", diskPip},
	{"memory", memory},
	{"output", outputs},
	{"crowd", crowd},
	{"session.http", overHTTP},
	{"session.restart", restart},
	{"session.wake", wake},
	{"session.soak", soak},
	{"session.asleep", asleep},
	{"rlm.turn", turns},
	{"rlm.batch", batches},
	{"rlm.context", bigContext},
	{"rlm.subcalls", subCalls},
	{"rlm.runs", runsAtOnce},
	{"rlm.tasks", tasks},
	{"gate", gates},
	{"hook", hooks},
	{"docker", dockers},
	{"network.transfer", networks((*networkBench).transfers)},
	{"network.request", networks((*networkBench).requests)},
	{"network.inbound", networks((*networkBench).inbound)},
	{"network.cell", networks((*networkBench).cellBeside)},
	{"network.memory", networks((*networkBench).memory)},
	{"network.create", networks((*networkBench).creation)},
	{"vm", machines},
	{"e2b.create", sdkCreate},
	{"e2b.cold", sdkCold},
	{"e2b.calls", sdkCalls},
	{"e2b.transfers", sdkTransfers},
	{"cloud", cloud},
}

// bench is the state that all parts share.
type bench struct {
	quick   bool
	dir     string // temporary directory of everything
	engine  programs.Program
	floor   programs.Program // replaces the guest
	backend *gvisor.Backend
	bare    *gvisor.Backend // the same backend, with floor as its guest
	log     func(format string, args ...any)
	rows    []row // of the part that is being measured
}

// times returns the number of repetitions.
func (b *bench) times(full, quick int) int {
	if b.quick {
		return quick
	}
	return full
}

func main() {
	if dirs := os.Getenv(serverEnv); dirs != "" {
		if err := attempt(func() { serverMain(dirs) }); err != nil {
			fmt.Fprintln(os.Stderr, "bench: server:", err)
			os.Exit(1)
		}
		return
	}
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	quick := flag.Bool("quick", false, "repeat less, and make long parts smaller")
	only := flag.String("only", "", "`parts` to measure, separated by commas (default all): "+strings.Join(names, ", "))
	asJSON := flag.Bool("json", false, "print JSON")
	profile := flag.String("profile", "", "write a CPU profile of this program to a `file`")
	flag.Parse()
	chosen := names
	if *only != "" {
		chosen = strings.Split(*only, ",")
	}
	for _, c := range chosen {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.among([]string{c}) }) {
			fmt.Fprintf(os.Stderr, "bench: unknown part %q; the parts are %s\n", c, strings.Join(names, ", "))
			os.Exit(2)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rows, err := profiled(*profile, func() ([]row, error) { return measure(ctx, *quick, chosen) })
	if *asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		if e := enc.Encode(map[string]any{"cpus": runtime.NumCPU(), "time": time.Now().UTC(), "rows": rows}); e != nil {
			err = errors.Join(err, e)
		}
	} else {
		table(rows)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

// profiled calls do, and writes a CPU profile to the file name if it is not empty.
func profiled(name string, do func() ([]row, error)) (_ []row, err error) {
	if name == "" {
		return do()
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	defer pprof.StopCPUProfile()
	return do()
}

// failure is the error with which a check ended a part.
type failure struct{ error }

// check ends the current part if err is not nil, in the way Fatal ends a test: deferred functions run.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// checkf is check for a condition.
func checkf(ok bool, format string, args ...any) {
	if !ok {
		check(fmt.Errorf(format, args...))
	}
}

// must returns v. If err is not nil, it ends the part.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// must2 is must for two values.
func must2[T, U any](v T, w U, err error) (T, U) {
	check(err)
	return v, w
}

// closing is check for deferred functions. If the part is already ending with an error, that error comes first.
func closing(f func() error) {
	err := recoveredError(recover())
	check(errors.Join(err, f()))
}

// attempt calls f, and returns the error of the check that ended it.
func attempt(f func()) (err error) {
	defer func() { err = recoveredError(recover()) }()
	f()
	return nil
}

// recoveredError returns the error of a value returned by recover. It panics again if the value is not a failure.
func recoveredError(recovered any) error {
	switch r := recovered.(type) {
	case nil:
		return nil
	case failure:
		return r.error
	}
	panic(recovered)
}

// measure runs the selected parts. If a part fails, the others are still measured. A part with a row that misses its
// target is measured again.
func measure(ctx context.Context, quick bool, chosen []string) (rows []row, err error) {
	b := &bench{quick: quick, log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }}
	if b.dir, err = os.MkdirTemp("", "recluse-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		b.unmountNetns()
		err = errors.Join(err, os.RemoveAll(b.dir))
	}()
	if err := attempt(func() { b.prepare(ctx) }); err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range parts {
		if !p.among(chosen) || ctx.Err() != nil {
			continue
		}
		began := time.Now()
		var measured [][]row
		for len(measured) == 0 || len(measured) < rounds && slices.ContainsFunc(measured[0], row.missed) {
			b.rows = nil
			err := attempt(func() { p.run(ctx, b) })
			measured = append(measured, b.rows)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
				break
			}
		}
		rows = append(rows, median(measured)...)
		b.log("%s: %.1f s, %d rounds", p.name, time.Since(began).Seconds(), len(measured))
	}
	return rows, errors.Join(append(errs, ctx.Err())...)
}

// report adds rows to the result.
func (b *bench) report(rows []row) {
	for _, r := range rows {
		if r.Baseline > 0 {
			r.Ratio = r.Measured / r.Baseline
		}
		b.rows = append(b.rows, r)
	}
}

// prepare builds the programs and makes the backends.
func (b *bench) prepare(ctx context.Context) {
	for name, variable := range map[string]string{
		module + "cmd/" + programs.EngineName: "RECLUSE_ENGINE",
		module + "cmd/" + programs.GuestName:  "RECLUSE_GUEST",
		module + "bench/floor":                "",
	} {
		if variable != "" && os.Getenv(variable) != "" {
			continue
		}
		path := build(ctx, filepath.Join(b.dir, "bin"), name)
		if variable == "" {
			// The backend mounts the whole directory of the guest, so floor has its own directory.
			b.floor = programs.Program{Path: path, Hash: strings.Repeat("0", 64)}
		} else {
			check(os.Setenv(variable, path))
		}
	}
	cache := filepath.Join(b.dir, "cache")
	b.engine = must(must(programs.Open(cache)).Choose(ctx, "", programs.EngineName))
	b.backend = must(gvisor.New(gvisor.Options{
		DataDir:  filepath.Join(b.dir, "data"),
		CacheDir: cache,
		Network:  networkOptions(),
	}))
	b.bare = must(gvisor.New(gvisor.Options{
		DataDir:     filepath.Join(b.dir, "bare"),
		CacheDir:    cache,
		Guest:       b.floor.Path,
		NoTemplates: true,
	}))
}

// pause waits for d, or ends the part if ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
		check(ctx.Err())
	case <-time.After(d):
	}
}

// open makes a sandbox with the default spec.
func (b *bench) open(ctx context.Context) *sandbox.Sandbox {
	return must(sandbox.Open(ctx, b.backend, sandbox.Spec{}))
}

const module = "github.com/recluse-dev/recluse/"

// build builds a program of this module or of a dependency, each into its own directory, and returns its path.
func build(ctx context.Context, dir, name string) string {
	path := filepath.Join(dir, filepath.Base(name), filepath.Base(name))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	checkf(err == nil, "build %s: %w: %s", name, err, out)
	return path
}

// table prints the rows as a table.
func table(rows []row) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tMEASURED\tBASELINE\tRATIO\tTARGET\tREACHED")
	for _, r := range rows {
		baseline, ratio, ok := "-", "-", "-"
		if r.Baseline > 0 {
			baseline, ratio = figure(r.Baseline, r.Unit)+"  "+r.Against, fmt.Sprintf("%.2f", r.Ratio)
		}
		if r.Rounds > 1 {
			ratio += fmt.Sprintf(" (%.4g to %.4g in %d rounds)", r.Lowest, r.Highest, r.Rounds)
		}
		if r.Reached != nil {
			ok = map[bool]string{true: "yes", false: "NO"}[*r.Reached]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.What, figure(r.Measured, r.Unit), baseline, ratio, r.Target, ok)
	}
	_ = w.Flush()
	for _, r := range rows {
		if r.Note != "" {
			fmt.Printf("%s: %s\n", r.What, r.Note)
		}
	}
}

func figure(v float64, unit string) string {
	switch {
	case unit == "":
		return fmt.Sprintf("%.0f", v)
	case v < 10:
		return fmt.Sprintf("%.3f %s", v, unit)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

// samples are durations of repetitions of the same operation.
type samples []time.Duration

// at returns a percentile in milliseconds.
func (s samples) at(percent float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := min(int(percent/100*float64(len(sorted))), len(sorted)-1)
	return float64(sorted[i].Nanoseconds()) / 1e6
}

func (s samples) median() float64 { return s.at(50) }
