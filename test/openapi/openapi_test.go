package openapi

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The npm packages of the tools.
const (
	linterPackage    = "@redocly/cli@2.73.0"
	generatorPackage = "openapi-typescript@7.13.0"
	clientPackage    = "openapi-fetch@0.17.0"
	compilerPackage  = "typescript@5.9.3"
)

// toolTimeout is the timeout of one tool.
const toolTimeout = 4 * time.Minute

func TestDocument(t *testing.T) {
	testneed.Slow(t, "it installs packages from npm")
	tools := testneed.NPM(t, linterPackage, generatorPackage, clientPackage, compilerPackage)
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(tools, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	document, err := server.Document("1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "openapi.json"), document, 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, program string, args ...string) []byte {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), toolTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(tools, "node_modules", ".bin", program), args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true", "NO_COLOR=1")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s%s", program, err, out, &stderr)
		}
		return out
	}
	t.Run("the linter has nothing to say", func(t *testing.T) {
		out := run(t, "redocly", "lint", "--extends=recommended", "--format=json", "openapi.json")
		var report struct {
			Totals   struct{ Errors, Warnings, Ignored int }
			Version  string
			Problems []any
		}
		if err := json.Unmarshal(out, &report); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if report.Version == "" || report.Totals.Errors+report.Totals.Warnings+report.Totals.Ignored+len(report.Problems) > 0 {
			t.Errorf("%s", out)
		}
	})
	t.Run("a TypeScript client compiles", func(t *testing.T) {
		run(t, "openapi-typescript", "openapi.json", "-o", "api.d.ts")
		run(t, "tsc", "--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler", "--target", "es2022", "--lib", "es2022,dom", "client.ts")
	})
}
