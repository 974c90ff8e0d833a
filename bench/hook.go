//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/agents"
	"github.com/recluse-dev/recluse/sandbox"
)

// hooks measures how much longer an agent waits for each of its commands because of us, with a warm session of its
// project: the hook, and the program that replaces the command, minus the same command through an existing client.
func hooks(ctx context.Context, b *bench) {
	p := b.hookProgram(ctx)
	defer closing(p.end)
	call := must(json.Marshal(map[string]any{
		"hook_event_name": "PreToolUse",
		"tool_name":       "Bash",
		"cwd":             p.project,
		"tool_input":      map[string]any{"command": "true"},
	}))
	inside := []string{"hook", "run", "--project", p.project, "--", "true"}
	p.run(ctx, "", inside...) // makes the session
	c := must(client.New(client.Options{Socket: p.socket()}))
	defer c.Close()
	s, _ := must2(c.Get(ctx, agents.SessionName(p.project)))
	var own, bare samples
	for range b.times(100, 10) {
		hook := p.run(ctx, string(call), "hook", "--agent", string(agents.ClaudeCode), "--project", p.project)
		run := p.run(ctx, "", inside...)
		began := time.Now()
		v := must(s.Run(ctx, sandbox.Command{Shell: "true", Dir: p.project}))
		direct := time.Since(began)
		checkf(v.OK(), "true: %v", v)
		own, bare = append(own, hook+run-direct), append(bare, direct)
	}
	b.report([]row{{
		Name:     "hook",
		What:     "added time of a hook on a warm session, p50",
		Measured: own.median(),
		Unit:     "ms",
		Baseline: bare.median(),
		Against:  "the command through a client",
		Target:   "≤ 20 ms",
		Reached:  reached(own.median() <= 20),
		Note:     fmt.Sprintf("a hook starts two programs; p99 %.1f ms", own.at(99)),
	}})
}

// hookProgram is an installed recluse with its own server and project.
type hookProgram struct{ path, home, project string }

func (b *bench) hookProgram(ctx context.Context) *hookProgram {
	home := filepath.Join(b.dir, "hook")
	p := &hookProgram{path: filepath.Join(home, "program"), home: home}
	build := exec.CommandContext(ctx,
		"go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", p.path, "./cmd/recluse")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	checkf(err == nil, "build recluse: %w: %s", err, out)
	p.project = must(os.MkdirTemp("/srv", "recluse-project-")) // not in /tmp, which is a tmpfs inside
	check(os.Chmod(p.project, 0o755))                          // the user inside is not root
	return p
}

func (p *hookProgram) socket() string { return filepath.Join(p.home, "api.sock") }

func (p *hookProgram) run(ctx context.Context, stdin string, args ...string) time.Duration {
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Env = append(os.Environ(),
		"XDG_DATA_HOME="+p.home, "XDG_CONFIG_HOME="+p.home, "XDG_RUNTIME_DIR="+p.home,
		"RECLUSE_POOL_ENABLED=false", "RECLUSE_SERVER_SOCKET="+p.socket())
	cmd.Stdin = strings.NewReader(stdin)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	checkf(err == nil, "%v: %w: %s", args, err, out)
	return time.Since(began)
}

func (p *hookProgram) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ended := attempt(func() { p.run(ctx, "", "session", "end", "--all") })
	stopped := attempt(func() { p.run(ctx, "", "server", "stop") })
	return errors.Join(ended, stopped, os.RemoveAll(p.project))
}
