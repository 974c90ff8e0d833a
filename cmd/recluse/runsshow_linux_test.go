package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
)

func TestARunIsWatchedFromAnotherTerminal(t *testing.T) {
	a := newAsker(t, "10m")
	ask := a.command("ask", "What is the password?", "--context", a.big, "-q")
	if err := ask.Start(); err != nil {
		t.Fatal(err)
	}
	a.await("a run works", func() bool { return strings.Contains(a.must("runs", "list"), "running") })
	a.thinking("last")

	// Ctrl-C ends the watching, and the run continues.
	watch := a.command("runs", "watch", "last")
	errs := newHeard()
	watch.Stderr = errs
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	errs.await(t, "turn 2: ok")
	if err := watch.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if got := status(t, watch.Wait()); got != 130 {
		t.Errorf("status %d after Ctrl-C", got)
	}
	if got := a.must("runs", "list"); !strings.Contains(got, "running") {
		t.Errorf("the run has ended: %s", got)
	}

	// On a terminal there is a tree. It ends with the run.
	talkInTerminal(t, a.command("runs", "watch", "last"), 1, func(_ *os.File, screen *heard) {
		screen.await(t, "thinking")
		a.must("runs", "cancel", "last")
		screen.await(t, "ended without an answer: cancelled")
	})
	_ = ask.Wait() // its status is the subject of other tests

	// A run that has ended is shown as it ended.
	got := a.run("", "runs", "watch", "last")
	if got.status != 1 || got.stdout != "half an answer\n" || !strings.Contains(got.stderr, "ended: cancelled") {
		t.Errorf("%+v", got)
	}
	a.hurry()
	a.must("runs", "resume", "last", "-q")
	if got := a.run("", "runs", "watch", "last", "-q"); got.status != 0 || got.stdout != "swordfish\n" || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	lines := strings.Split(strings.TrimSpace(a.must("runs", "watch", "last", "--json")), "\n")
	var last struct {
		Kind v1.RunEventKind `json:"kind"`
		Data rlm.Result      `json:"data"`
	}
	decodeJSON(t, lines[len(lines)-1], &last)
	if last.Kind != v1.KindRunEnded || last.Data.Answer != "swordfish" {
		t.Errorf("%+v", last)
	}
	if got := a.run("", "runs", "watch", "nothing"); got.status != statusFailure || !strings.Contains(got.stderr, "not found") {
		t.Errorf("%+v", got)
	}
}

func TestRunsShow(t *testing.T) {
	const secret = "an-environment-secret"
	a := newAsker(t, "0s")
	a.env = append(a.env, "MY_TOKEN="+secret)
	a.must("ask", "What is the password? Not "+secret, "--context", a.big, "-q")
	short, full := a.must("runs", "show", "last"), a.must("runs", "show", "last", "--full")
	for _, want := range []string{
		"Question  What is the password?", "context_0 (big.txt)", "Turn 1 · scripted/root", "hits = search('password')",
		"1 call · ", "Only the word: ", "reply  swordfish", "Answer (code)\nswordfish\n", "models have read ", "depth 1: scripted/sub: 1 call",
	} {
		if !strings.Contains(short, want) {
			t.Errorf("%q is missing in %s", want, short)
		}
	}
	if !strings.Contains(full, "prompt, system:") || strings.Contains(short, "prompt, system:") {
		t.Errorf("prompts: %s", full)
	}
	var info rlm.Info
	decodeJSON(t, a.must("runs", "show", "last", "--json"), &info)
	if info.Result == nil || info.Result.Answer != "swordfish" {
		t.Errorf("%+v", info)
	}
	file := filepath.Join(a.dir, "run.html")
	if got := a.must("runs", "show", "last", "--html", file); got != file+"\n" {
		t.Errorf("%q", got)
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<!doctype html>", "swordfish", "Only the word: ", "What is the password? Not [secret]", "You answer a question"} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("%q is missing in the page", want)
		}
	}
	if bytes.Contains(page, []byte(secret)) {
		t.Error("the secret is in the page")
	}
	var written struct{ HTML string }
	if err := json.Unmarshal([]byte(a.must("runs", "show", "last", "--html", file, "--json")), &written); err != nil || written.HTML != file {
		t.Errorf("%+v %v", written, err)
	}
	if got := a.run("", "runs", "show", "last", "--html", filepath.Join(a.dir, "none", "x")); got.status != statusFailure || !strings.Contains(got.stderr, "cannot write the page") {
		t.Errorf("%+v", got)
	}
}

var updateDocs = flag.Bool("update", false, "write the transcript in docs/RLM.md")

// The section "A small run" of docs/RLM.md has files, commands and the transcript that the last command prints. The test
// runs the commands with the files.
func TestTheRunInTheDocs(t *testing.T) {
	const path = "../../docs/RLM.md"
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "\n## A small run\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)\n(?:````\\w+\n(.*?)\n````|```\\w+\n(.*?)```)\n").FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, m[1]+m[2])
	}
	if len(blocks) != 5 {
		t.Fatalf("%d blocks in the section", len(blocks))
	}
	w := newWorld(t)
	dir := t.TempDir()
	cmd := w.command()
	recluse := "#!/bin/sh\nexec " + cmd.Path + " \"$@\"\n"
	for i, name := range []string{"notes.txt", "root.yaml", "reader.yaml"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(blocks[i]), 0o600))
	}
	if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "recluse"), []byte(recluse), 0o700)); err != nil {
		t.Fatal(err)
	}
	script := w.command()
	script.Path, script.Args = "/bin/bash", []string{"bash", "-euc", blocks[3]}
	script.Dir, script.Env = dir, append(script.Env, "PATH="+dir+":"+os.Getenv("PATH"))
	var errs bytes.Buffer
	script.Stderr = &errs
	out, err := script.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	_, got, _ := strings.Cut(string(out), "\n") // the first line is the answer
	if *updateDocs {
		updated := strings.Replace(string(doc), blocks[4]+"```\n\n## ", got+"```\n\n## ", 1)
		if err := os.WriteFile(path, []byte(updated), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, want := constant(got), constant(blocks[4]); got != want {
		t.Errorf("the transcript in docs/RLM.md is out of date; run go test ./cmd/recluse -run %s -update\ngot:\n%s\nwant:\n%s", t.Name(), got, want)
	}
}

// constant replaces what differs from run to run: ids, times, and tokens, because a prompt names the version of Python.
func constant(text string) string {
	for pattern, with := range map[string]string{
		`\d{8}-\d{6}-[0-9a-f]{8}`:        "ID",
		`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`: "DATE",
		`\b[\d.:]+ (ms|s|min)\b`:         "TIME",
		`\b[\d,]+ tokens`:                "N tokens",
		`\$\d+\.\d+`:                     "$N",
	} {
		text = regexp.MustCompile(pattern).ReplaceAllString(text, with)
	}
	return text
}
