package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/agents"
	"github.com/recluse-dev/recluse/sandbox"
)

// BenchmarkHook is what an agent waits for our own sake at each command, with its project's session warm: the hook, and the program that
// it is told to run instead, less what the same command takes through the client of the server's API.
//
//	go test ./cmd/recluse -run '^$' -bench Hook -benchtime 100x
func BenchmarkHook(b *testing.B) {
	p := newHookBench(b)
	call, err := json.Marshal(map[string]any{"hook_event_name": "PreToolUse", "tool_name": "Bash", "cwd": p.dir, "tool_input": map[string]any{"command": "true"}})
	if err != nil {
		b.Fatal(err)
	}
	hook := func() (wall, cpu time.Duration) {
		return p.run(string(call), "hook", "--agent", string(agents.ClaudeCode), "--project", p.dir)
	}
	inside := func() (wall, cpu time.Duration) { return p.run("", "hook", "run", "--project", p.dir, "--", "true") }
	inside() // makes the session
	direct := p.direct()
	figures := map[string][]time.Duration{}
	for b.Loop() {
		h, hookCPU := hook()
		r, runCPU := inside()
		d := direct()
		for name, t := range map[string]time.Duration{"hook": h, "run": r, "client": d, "own": h + r - d, "own-cpu": hookCPU + runCPU} {
			figures[name] = append(figures[name], t)
		}
	}
	for name, all := range figures {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"-p50-ms")
	}
	b.ReportMetric(0, "ns/op") // of all three together it says nothing
}

// hookBench is a real program, built for this, with a server of its own.
type hookBench struct {
	b                  *testing.B
	program, dir, home string
}

func newHookBench(b *testing.B) *hookBench {
	b.Helper()
	home := b.TempDir()
	p := &hookBench{b: b, program: filepath.Join(home, "program"), home: home}
	build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", p.program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	var err error
	if p.dir, err = os.MkdirTemp("/srv", "recluse-project-"); err != nil { // /tmp inside is the sandbox's own
		b.Fatal(err)
	}
	if err := os.Chmod(p.dir, 0o755); err != nil { // the sandbox's user is another one than root
		b.Fatal(err)
	}
	b.Cleanup(func() {
		p.run("", "session", "end", "--all")
		p.run("", "server", "stop")
		_ = os.RemoveAll(p.dir)
	})
	return p
}

func (p *hookBench) run(stdin string, args ...string) (wall, cpu time.Duration) {
	p.b.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(p.b.Context()), p.program, args...)
	cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+p.home, "XDG_CONFIG_HOME="+p.home, "XDG_RUNTIME_DIR="+p.home, "RECLUSE_POOL_ENABLED=false", "RECLUSE_SERVER_SOCKET="+p.socket())
	cmd.Stdin = strings.NewReader(stdin)
	begun := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		p.b.Fatalf("%v: %v: %s", args, err, out)
	}
	return time.Since(begun), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

func (p *hookBench) socket() string { return filepath.Join(p.home, "api.sock") }

// direct runs the same command without any program of ours.
func (p *hookBench) direct() func() time.Duration {
	p.b.Helper()
	c, err := client.New(client.Options{Socket: p.socket()})
	if err != nil {
		p.b.Fatal(err)
	}
	p.b.Cleanup(c.Close)
	s, _, err := c.Get(p.b.Context(), agents.SessionName(p.dir))
	if err != nil {
		p.b.Fatal(err)
	}
	return func() time.Duration {
		begun := time.Now()
		if v, err := s.Run(p.b.Context(), sandbox.Command{Shell: "true", Dir: p.dir}); err != nil || !v.OK() {
			p.b.Fatalf("%+v %v", v, err)
		}
		return time.Since(begun)
	}
}
