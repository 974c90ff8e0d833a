//go:build unix

package llm

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// shellModel returns a model of type cli that runs a shell script.
func shellModel(t *testing.T, script string, change ...func(*Provider)) Model {
	t.Helper()
	p := Provider{Type: TypeCLI, Commands: map[string][]string{"x": {"/bin/sh", "-c", script}}}
	for _, f := range change {
		f(&p)
	}
	m, err := openSet(t, Config{Providers: map[string]Provider{"cli": p}, Retry: Retry{Attempts: 2, Backoff: v1.Duration(time.Millisecond)}}).Model("cli/x")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAgentsAnswer(t *testing.T) {
	r := mustReply(t, shellModel(t, "tr a-z A-Z; printf ' \\303'; printf '\\266'; ls"), ask("hello"), "HELLO ö")
	if r.Model != "cli/x" || !r.Usage.Estimated || !r.Usage.Unpriced || r.Usage.Output != Count("HELLO ö") {
		t.Errorf("%+v", r)
	}
	many := Request{Messages: []Message{{Role: System, Content: "be brief"}, {Role: User, Content: "hi"}, {Role: Assistant, Content: "hello"}, {Role: User, Content: "more"}}}
	mustReply(t, shellModel(t, "cat"), many, "be brief\n\n[user]\nhi\n\n[you]\nhello\n\n[user]\nmore\n\nReply with your next message only.\n")
	mustReply(t, shellModel(t, "printf 'a\\377b\\303'"), ask("x"), "a�b�")
	stop := ask("x")
	stop.Stop = []string{"END"}
	mustReply(t, shellModel(t, "echo one EN; echo two END three"), stop, "one EN\ntwo ")
}

func TestAgentsThatFail(t *testing.T) {
	_, err := shellModel(t, "echo 'please log in' >&2; exit 3").Complete(t.Context(), ask("x"))
	if e := wantCode(t, err, v1.CodeModelRefused); !strings.Contains(e.Message, "please log in") || !strings.Contains(e.Message, "3") {
		t.Errorf("%v", err)
	}
	m := shellModel(t, "", func(p *Provider) { p.Commands["x"] = []string{"no-such-agent-here"} })
	_, err = m.Complete(t.Context(), ask("x"))
	if e := wantCode(t, err, v1.CodeModelUnknown); !strings.Contains(e.Remedy, "install") {
		t.Errorf("%v", err)
	}
	m = shellModel(t, "sleep 1000", func(p *Provider) { p.Timeout = v1.Duration(30 * time.Millisecond) })
	_, err = m.Complete(t.Context(), ask("x"))
	wantCode(t, err, v1.CodeModelTimeout)
}

// awaitDeath waits until the process whose pid is in a file has ended.
func awaitDeath(t *testing.T, pidFile string) {
	t.Helper()
	data, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	for _, c := range strings.TrimSpace(string(data)) {
		pid = pid*10 + int(c-'0')
	}
	for t.Context().Err() == nil {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(data)) + "/stat")
		if syscall.Kill(pid, 0) != nil || (err == nil && strings.Contains(string(stat), ") Z ")) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestAgentsEndWithTheirCall(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	script := "sleep 1000 & echo $! > " + pid + "; echo ready; wait"

	ctx, cancel := context.WithCancel(t.Context())
	req := ask("x")
	req.Delta = func(string) bool { cancel(); return true }
	r, err := shellModel(t, script).Complete(ctx, req)
	wantCode(t, err, v1.CodeCancelled)
	if r == nil || r.Text != "ready\n" {
		t.Errorf("%+v", r)
	}
	awaitDeath(t, pid)

	req.Delta = func(string) bool { return false }
	r, err = shellModel(t, script).Complete(t.Context(), req)
	if err != nil || r.Finish != FinishCut || r.Text != "ready\n" {
		t.Errorf("%+v, %v", r, err)
	}
	awaitDeath(t, pid)

	endless := ask("x")
	endless.MaxTokens = 10
	r, err = shellModel(t, "yes").Complete(t.Context(), endless)
	if err != nil || r.Finish != FinishLength || len(r.Text) > 1024*32 {
		t.Errorf("%d bytes, %v", len(r.Text), err)
	}
}

func TestProgramsOfThisMachineAreKnownByAllTheirNames(t *testing.T) {
	program := Provider{Type: TypeCLI, Commands: map[string][]string{"x": {"true"}, "claude-x": {"true"}}}
	s := openSet(t, Config{Providers: map[string]Provider{"agent": program, "anthropic": program}})
	s.Add(NewScripted("root"))
	for name, want := range map[string]bool{
		"agent/x": true, "anthropic/x": true, "claude-x": true, " claude-x ": true, "scripted/root, claude-x": true, "scripted/root,agent/x": true,
		"scripted/root": false, "gpt-6": false, "openai/agent/x": false, "": false, "agent": false,
	} {
		if got := s.RunsHere(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
