package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/console"
)

// called returns the result of an invocation in this process.
func called(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdin: os.Stdin, stdout: &out, stderr: &errs}
	status = a.main(t.Context(), args)
	return status, out.String(), errs.String()
}

func TestAWrongCallSaysWhatToDo(t *testing.T) {
	for _, tt := range []struct {
		name    string
		args    []string
		message string
		remedy  string
	}{
		{"a flag's value", []string{"exec", "--json", "--memory", "0", "--", "true"}, "above zero", "see recluse exec --help"},
		{"a time-out of nothing", []string{"exec", "--json", "--timeout", "0", "--", "true"}, "above zero", "see recluse exec --help"},
		{"an unknown flag", []string{"exec", "--json", "--no-such"}, "unknown flag: --no-such", "see recluse exec --help"},
		{"a flag with a slip", []string{"exec", "--json", "--memroy", "1g"}, "unknown flag: --memroy", "did you mean --memory? see recluse exec --help"},
		{"the beginning of a flag", []string{"exec", "--json", "--kill"}, "unknown flag: --kill", "did you mean --kill-survivors? see recluse exec --help"},
		{"a flag of all verbs with a slip", []string{"session", "list", "--jsn", "--json"}, "unknown flag: --jsn", "did you mean --json? "},
		{"--json behind the mistake", []string{"exec", "--no-such", "--json", "--", "true"}, "unknown flag: --no-such", "see recluse exec --help"},
		{"--json=true behind it", []string{"exec", "--memory", "0", "--json=true"}, "above zero", "see recluse exec --help"},
		{"a flag without its value", []string{"exec", "--json", "--memory"}, "needs an argument", "see recluse exec --help"},
		{"flags that exclude each other", []string{"exec", "--json", "--python", "1", "--python-file", "x"}, "python-file", "see recluse exec --help"},
		{"a flag that is missing", []string{"runs", "fork", "last", "--json"}, `"at" not set`, "see recluse runs fork --help"},
		{"an unknown verb", []string{"nosuch", "--json"}, `unknown command "nosuch" for "recluse"`, "use one of ask, audit, "},
		{"a verb with a slip", []string{"exce", "--json"}, `unknown command "exce" for "recluse"`, "did you mean exec? see recluse --help"},
		{"an unknown verb with flags of its own", []string{"nosuch", "--memory", "1g", "--json"}, `unknown command "nosuch" for "recluse"`, "see recluse --help"},
		{"an unknown verb below another", []string{"session", "nosuch", "--json"}, `unknown command "nosuch" for "recluse session"`, "use one of end, events, "},
		{"an unknown verb below one that runs", []string{"demo", "nosuch", "--json"}, `unknown command "nosuch" for "recluse demo"`, "use one of rlm; "},
		{"an unknown shell", []string{"completion", "nosuch", "--json"}, `unknown command "nosuch" for "recluse completion"`, "use one of bash, fish, powershell, zsh; "},
		{"help for an unknown verb", []string{"help", "nosuch", "--json"}, `unknown command "nosuch" for "recluse"`, "see recluse help --help"},
		{"too few words", []string{"fork", "--json"}, "accepts 1 arg(s), received 0", "usage: recluse fork SESSION [flags]; see recluse fork --help"},
		{"too few of many", []string{"session", "vars", "set", "work", "--json"}, "requires at least 2", "usage: recluse session vars set NAME KEY=VALUE"},
		{"too many words", []string{"snapshot", "list", "a", "b", "--json"}, "accepts at most 1", "see recluse snapshot list --help"},
		{"a word where there is none", []string{"doctor", "nosuch", "--json"}, "nosuch", "see recluse doctor --help"},
		{"what the verb itself finds", []string{"exec", "--json"}, "nothing to run", "see recluse exec --help"},
		{"a flag of sessions without one", []string{"exec", "--json", "--spool-bytes", "1m", "--", "true"}, "--spool-bytes need --session", "see recluse exec --help"},
		{"what it finds in its words", []string{"session", "end", "--json"}, "give names of sessions", "see recluse session end --help"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, stdout, stderr := called(t, tt.args...)
			var got struct{ Error console.Failure }
			if err := json.Unmarshal([]byte(stdout), &got); err != nil {
				t.Fatalf("%v: stdout %q, stderr %q", err, stdout, stderr)
			}
			if e := got.Error; status != statusFailure || stderr != "" || e.Code != v1.CodeInvalidRequest || !strings.Contains(e.Message, tt.message) || !strings.Contains(e.Remedy, tt.remedy) {
				t.Errorf("status %d, stderr %q, %+v", status, stderr, e)
			}
		})
	}
}

func TestAWrongCallIsToldToPeople(t *testing.T) {
	for name, args := range map[string][]string{
		"no --json":                   {"exec", "--no-such", "--", "true"},
		"--json is the command's own": {"exec", "--no-such", "--", "true", "--json"},
	} {
		status, stdout, stderr := called(t, args...)
		if want := "recluse: unknown flag: --no-such\n  remedy: usage: recluse exec [flags] [--] COMMAND [ARG...]; see recluse exec --help\n"; status != statusFailure || stdout != "" || stderr != want {
			t.Errorf("%s: status %d, stdout %q, stderr %q", name, status, stdout, stderr)
		}
	}
}

// Verbs that print a file for other programs ignore --json; docs/CLI.md lists them.
func TestVerbsWithoutJSON(t *testing.T) {
	for _, args := range [][]string{{"completion", "bash"}, {"completion", "zsh"}, {"gate", "rules"}} {
		_, plain, _ := called(t, args...)
		status, got, stderr := called(t, append(args, "--json")...)
		if status != 0 || got == "" || got != plain || stderr != "" {
			t.Errorf("%q: status %d, stderr %q, %d bytes, want %d", args, status, stderr, len(got), len(plain))
		}
	}
}

func TestOutputOfTheVerdictIsBoundedOnlyWithJSON(t *testing.T) {
	if status, _, stderr := called(t, "exec", "--inline-bytes", "1k", "--", "true"); status != statusFailure || !strings.Contains(stderr, "--inline-bytes needs --json") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}
