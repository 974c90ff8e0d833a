//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// e2bProgram measures the SDK in Node.js.
//
//go:embed e2b.mjs
var e2bProgram []byte

// The packages of the SDK, as in test/e2b.
var e2bPackages = []string{"e2b@2.51.0", "@e2b/code-interpreter@2.8.0"}

// e2bTimes are times in milliseconds, by what was measured.
type e2bTimes map[string]struct{ SDK, Plain []float64 }

// sdks compares calls of E2B's SDK with the same calls of our API, both from one Node.js process over fetch, in turn.
func sdks(ctx context.Context, b *bench) {
	if _, err := exec.LookPath("npm"); err != nil {
		b.log("e2b: npm is missing, so nothing is measured")
		return
	}
	dir := must(os.MkdirTemp(b.dir, "e2b-"))
	check(os.WriteFile(filepath.Join(dir, "e2b.mjs"), e2bProgram, 0o600))
	npm := exec.CommandContext(ctx, "npm", append([]string{"install", "--prefix", dir, "--no-audit", "--no-fund"}, e2bPackages...)...)
	npm.Dir = dir
	out, err := npm.CombinedOutput()
	checkf(err == nil, "npm install: %w: %s", err, out)
	program := build(ctx, filepath.Join(b.dir, "bin"), module+"cmd/recluse")

	pool := b.e2bRun(ctx, program, dir, "RECLUSE_POOL_ENABLED=true")
	cold := b.e2bRun(ctx, program, dir, "RECLUSE_POOL_ENABLED=false", "FIRST=1")
	compare := func(name, what string, t e2bTimes, key string, most float64) row {
		sdk, plain := medianOf(t[key].SDK), medianOf(t[key].Plain)
		r := row{
			Name: "e2b_" + name, What: what, Measured: sdk, Unit: "ms", Baseline: plain, Against: "our API over fetch",
			Ratio: sdk / plain, Note: fmt.Sprintf("medians of %d pairs", len(t[key].SDK)),
		}
		if most > 0 {
			r.Target, r.Reached = fmt.Sprintf("≤ %.0f ×", most), reached(r.Ratio <= most)
		}
		return r
	}
	b.report([]row{
		compare("create", "Sandbox.create() to the first result of runCode, from the pool", pool, "create", 2),
		compare("create_cold", "the same without a pool", cold, "create", 0),
		compare("cell", "a warm runCode('1+1')", pool, "cell", 3),
		compare("command", "commands.run('true')", pool, "command", 0),
		compare("upload", "100 MB to a sandbox", pool, "upload", 2),
		compare("download", "100 MB from a sandbox", pool, "download", 2),
	})
}

// e2bRun starts a server of the program and measures it.
func (b *bench) e2bRun(ctx context.Context, program, dir string, env ...string) (out e2bTimes) {
	home := must(os.MkdirTemp(b.dir, "home-"))
	env = append(append(os.Environ(), "HOME="+home, "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "XDG_CACHE_HOME=", "XDG_RUNTIME_DIR=",
		"RECLUSE_ENV=", "RECLUSE_BACKEND_ORDER=gvisor"), env...)
	serve := exec.CommandContext(ctx, program, "serve", "--listen", "127.0.0.1:0", "--e2b")
	serve.Env = env
	serve.Cancel = func() error { return serve.Process.Signal(syscall.SIGTERM) }
	stderr := must(serve.StderrPipe())
	check(serve.Start())
	defer closing(func() error {
		end := exec.Command(program, "session", "end", "--all") // sessions outlive the server
		end.Env = env
		err := end.Run()
		_ = serve.Process.Signal(syscall.SIGTERM)
		if e := serve.Wait(); serve.ProcessState.ExitCode() != 128+int(syscall.SIGTERM) {
			err = errors.Join(err, e)
		}
		return err
	})
	lines := bufio.NewScanner(stderr)
	for vars := 0; vars < 3 && lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), "export "); ok {
			env = append(env, v)
			vars++
		}
	}
	go func() {
		for lines.Scan() { // until the server ends
		}
	}()
	node := exec.CommandContext(ctx, "node", "e2b.mjs")
	node.Dir = dir
	node.Env = append(env, "PAIRS="+strconv.Itoa(b.times(50, 5)), "SETTLE="+strconv.Itoa(b.times(1000, 300)))
	var failed bytes.Buffer
	node.Stderr = &failed
	text, err := node.Output()
	checkf(err == nil, "node: %w: %s", err, failed.String())
	check(json.Unmarshal(text, &out))
	return out
}
