//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/vm"
)

// rootEnv names a directory with a system for machines. Without it, the host's /usr is packed, which takes minutes.
const rootEnv = "RECLUSE_BENCH_ROOTFS"

// machines compares sandboxes in virtual machines with what their monitor needs for the same machine alone. It uses
// KVM, or emulation where there is none.
func machines(ctx context.Context, b *bench) {
	dir := filepath.Join(b.dir, "machines")
	m := must(vm.New(vm.Options{
		DataDir: dir, CacheDir: filepath.Join(dir, "cache"), AllowEmulation: true,
		Accelerator: os.Getenv("RECLUSE_VM_ACCELERATOR"),
	}))
	defer closing(m.Close)
	must(m.Setup(ctx, vm.SetupOptions{
		RootFS: os.Getenv(rootEnv), Report: func(line string) { b.log("vm: %s", line) },
	}))
	how := m.Health(ctx)
	checkf(how.OK, "the vm backend does not work: %s", how.Reason)
	emulated := m.Capabilities(ctx).Emulated
	check(b.firstMachine(ctx, m))

	warm, cold := sandbox.Spec{}.WithDefaults(), sandbox.Spec{Cold: true}.WithDefaults()
	both := func(spec sandbox.Spec, n int) (ours, bare samples) {
		for range n {
			bare = append(bare, must(m.Bare(ctx, must(sandbox.Resolve(m, spec)))))
			sb, first := firstCell(ctx, func() (*sandbox.Sandbox, error) { return sandbox.Open(ctx, m, spec) })
			ours = append(ours, first)
			check(sb.Close())
		}
		return ours, bare
	}
	boot, bareBoot := both(cold, b.times(6, 2))
	restore, bareRestore := both(warm, b.times(12, 4))
	pooled := fromPool(ctx, b, m)
	cell, ping, fork, idle := b.inMachine(ctx, m)
	limits := func(emulation, kvm string, ms, other, of float64) (string, *bool) {
		if emulated {
			return emulation, reached(of <= ms)
		}
		return kvm, reached(of <= other)
	}
	rows := []row{
		{
			Name: "vm.boot", What: "cold start to first cell, p50", Measured: boot.median(), Unit: "ms",
			Baseline: bareBoot.median(), Against: "the monitor's boot", Note: how.Version,
		},
		{
			Name: "vm.template", What: "template to first cell, p50", Measured: restore.median(), Unit: "ms",
			Baseline: bareRestore.median(), Against: "the monitor's restore",
		},
		{Name: "vm.pool", What: "pool to first cell, p50", Measured: pooled.median(), Unit: "ms"},
		{
			Name: "vm.cell", What: "warm cell 1+1, p50", Measured: cell.median(), Unit: "ms",
			Baseline: ping.median(), Against: "ping through the guest",
			Note: "2 × a ping and the time of the interpreter, which is not known, would be good",
		},
		{
			Name: "vm.fork", What: "fork to first cell, p50", Measured: fork.median(), Unit: "ms",
			Baseline: bareRestore.median(), Against: "the monitor's restore",
		},
		{Name: "vm.memory", What: "memory of an idle machine, PSS of its monitor", Measured: idle, Unit: "MB"},
	}
	if !emulated {
		rows[0].Target, rows[0].Reached = "≤ 2 s", reached(boot.median() <= 2000)
	}
	rows[1].Target, rows[1].Reached = limits("≤ 2 ×", "≤ 200 ms", 2*bareRestore.median(), 200, restore.median())
	rows[2].Target, rows[2].Reached = limits("≤ 60 ms", "≤ 10 ms", 60, 10, pooled.median())
	b.report(rows)
}

// firstMachine makes the template.
func (b *bench) firstMachine(ctx context.Context, m *vm.Backend) error {
	sb, first := firstCell(ctx, func() (*sandbox.Sandbox, error) { return sandbox.Open(ctx, m, sandbox.Spec{}) })
	b.log("vm: making the template took %.1f s", first.Seconds())
	return sb.Close()
}

// inMachine measures warm cells, pings and forks of one machine, and its memory.
func (b *bench) inMachine(ctx context.Context, m *vm.Backend) (cell, ping, fork samples, idle float64) {
	sb := must(sandbox.Open(ctx, m, sandbox.Spec{}))
	defer closing(sb.Close)
	for i := range b.times(400, 100) {
		began := time.Now()
		want(ctx, sb, "1+1", "2")
		took := time.Since(began)
		began = time.Now()
		check(sb.Ping(ctx))
		if i >= b.times(100, 20) { // the first ones are warmed up
			cell, ping = append(cell, took), append(ping, time.Since(began))
		}
	}
	for range b.times(6, 2) {
		copied, first := firstCell(ctx, func() (*sandbox.Sandbox, error) {
			copies, err := sb.Fork(ctx, 1)
			if err != nil {
				return nil, errors.Join(err, closeAll(copies))
			}
			return copies[0], nil
		})
		fork = append(fork, first)
		check(copied.Close())
	}
	pause(ctx, idleFor)
	for _, i := range must(m.List(ctx)) {
		if i.ID == sb.ID() {
			idle = float64(must(pss(i.PID))) / 1e6
		}
	}
	return cell, ping, fork, idle
}
