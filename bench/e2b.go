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

// sdks measures a part of the SDK: its calls beside those of our API, both from one Node.js process over fetch, in
// turn.
func sdks(part string, pool bool, rows ...e2bRow) func(context.Context, *bench) {
	return func(ctx context.Context, b *bench) {
		if _, err := exec.LookPath("npm"); err != nil {
			b.log("e2b: npm is missing, so nothing is measured")
			return
		}
		times := b.e2bRun(ctx, part, pool)
		for _, e := range rows {
			t := times[e.of]
			sdk, plain := medianOf(t.SDK), medianOf(t.Plain)
			r := row{
				Name: "e2b_" + e.name, What: e.what, Measured: sdk, Unit: "ms", Baseline: plain, Against: "our API over fetch",
				Note: fmt.Sprintf("medians of %d pairs", len(t.SDK)),
			}
			if e.most > 0 {
				r.Target, r.Reached = fmt.Sprintf("≤ %.0f ×", e.most), reached(sdk <= e.most*plain)
			}
			b.report([]row{r})
		}
	}
}

// e2bRow is a row about a call of the SDK.
type e2bRow struct {
	name, what string
	of         string  // of e2bTimes
	most       float64 // target of the ratio; 0: none
}

var (
	sdkCreate = sdks("create", true,
		e2bRow{"create", "Sandbox.create() to the first result of runCode, from the pool", "create", 2})
	sdkCold  = sdks("create", false, e2bRow{"create_cold", "the same without a pool", "create", 0})
	sdkCalls = sdks("calls", true,
		e2bRow{"cell", "a warm runCode('1+1')", "cell", 3}, e2bRow{"command", "commands.run('true')", "command", 0})
	sdkTransfers = sdks("transfers", true,
		e2bRow{"upload", "100 MB to a sandbox", "upload", 2}, e2bRow{"download", "100 MB from a sandbox", "download", 2})
)

// e2bRun installs the SDKs, starts a server and measures a part.
func (b *bench) e2bRun(ctx context.Context, part string, pool bool) (out e2bTimes) {
	dir := must(os.MkdirTemp(b.dir, "e2b-"))
	check(os.WriteFile(filepath.Join(dir, "e2b.mjs"), e2bProgram, 0o600))
	install := append([]string{"install", "--prefix", dir, "--no-audit", "--no-fund"}, e2bPackages...)
	npm := exec.CommandContext(ctx, "npm", install...)
	npm.Dir = dir
	text, err := npm.CombinedOutput()
	checkf(err == nil, "npm install: %w: %s", err, text)
	env, stop := b.e2bServer(ctx, "RECLUSE_POOL_ENABLED="+strconv.FormatBool(pool))
	defer closing(stop)
	node := exec.CommandContext(ctx, "node", "e2b.mjs")
	node.Dir = dir
	node.Env = append(env, "PART="+part, "PAIRS="+strconv.Itoa(b.times(50, 5)), "SETTLE="+strconv.Itoa(b.times(1000, 300)))
	if !pool {
		node.Env = append(node.Env, "PAIRS="+strconv.Itoa(b.times(10, 2)))
	}
	var failed bytes.Buffer
	node.Stderr = &failed
	text, err = node.Output()
	checkf(err == nil, "node: %w: %s", err, failed.String())
	check(json.Unmarshal(text, &out))
	return out
}

// e2bServer starts a server with the API of E2B, and returns its environment with the variables for the SDKs.
func (b *bench) e2bServer(ctx context.Context, settings ...string) (env []string, stop func() error) {
	program := build(ctx, filepath.Join(b.dir, "bin"), module+"cmd/recluse")
	home := must(os.MkdirTemp(b.dir, "home-"))
	env = append(append(os.Environ(), "HOME="+home, "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", "XDG_CACHE_HOME=",
		"XDG_RUNTIME_DIR=", "RECLUSE_ENV=", "RECLUSE_BACKEND_ORDER=gvisor"), settings...)
	serve := exec.CommandContext(ctx, program, "serve", "--listen", "127.0.0.1:0", "--e2b")
	serve.Env = env
	serve.Cancel = func() error { return serve.Process.Signal(syscall.SIGTERM) }
	stderr := must(serve.StderrPipe())
	check(serve.Start())
	stop = func() error {
		end := exec.CommandContext(context.WithoutCancel(ctx), program, "session", "end", "--all") // they outlive the server
		end.Env = env
		err := end.Run()
		_ = serve.Process.Signal(syscall.SIGTERM)
		if e := serve.Wait(); serve.ProcessState.ExitCode() != 128+int(syscall.SIGTERM) {
			err = errors.Join(err, e)
		}
		return err
	}
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
	return env, stop
}
