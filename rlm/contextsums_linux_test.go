//go:build linux

package rlm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// edit writes a text into a file in place, and keeps the file's time.
func edit(t *testing.T, file, text string) {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = os.Chtimes(file, time.Time{}, info.ModTime())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAContextEditedInPlaceIsNoticed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mails")
	one := filepath.Join(dir, "2026", "one.txt")
	alone := filepath.Join(t.TempDir(), "notes.txt")
	for _, file := range []string{one, alone} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("the password is swordfish"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := newDesk(t, block("x = 1"), block("FINAL(x)"))
	l := v1.RunLimits{Turns: new(1)}
	res, err := d.run(Question{Inputs: []Input{File(alone), File(dir)}, Limits: l})
	same(t, "code", v1.CodeOf(err), v1.CodeBudget)
	e := d.engine()
	more := ContinueOptions{Limits: v1.RunLimits{Turns: new(5)}}
	all := map[string]func() (*Run, error){
		"resume": func() (*Run, error) { return e.Resume(t.Context(), res.Run, more) },
		"fork":   func() (*Run, error) { return e.Fork(t.Context(), res.Run, 1, more) },
		"replay": func() (*Run, error) { return e.Replay(t.Context(), res.Run) },
	}
	before, err := os.ReadDir(d.opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{alone, one} {
		edit(t, file, "the password is starfish ")
		for what, begin := range all {
			r, err := begin()
			if v1.CodeOf(err) != v1.CodeContextChanged || !strings.Contains(err.Error(), "context changed: ") || !strings.Contains(err.Error(), filepath.Base(file)) {
				t.Errorf("%s after %s was edited: %v %v", what, file, r, err)
			}
		}
		edit(t, file, "the password is swordfish")
	}
	if after, err := os.ReadDir(d.opts.Dir); err != nil || len(after) != len(before) {
		t.Errorf("directories were left: %v %v", after, err)
	}
	// A file that is written with the same content is unchanged. So is one that is replaced: the run has the old one.
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(one, later, later); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(alone); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"replay", "fork", "resume"} {
		r, err := all[what]()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if res, err := r.Wait(); what != "replay" && (err != nil || res.Answer != "1") {
			t.Errorf("%s: %+v %v", what, res, err)
		}
	}
}

func TestAnEditOfALargeContextShowsInItsTime(t *testing.T) {
	file, run := filepath.Join(t.TempDir(), "big.txt"), t.TempDir()
	if err := os.WriteFile(file, bytes.Repeat([]byte("text\n"), sumBytes/5+1), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := stage(t.Context(), filepath.Join(run, contextDir), []Input{File(file)})
	if err == nil {
		err = errors.Join(s.beginSurvey(run), s.endSurvey())
	}
	if err == nil {
		_, err = readContext(run)
	}
	if err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Second)
	if err := os.Chtimes(file, later, later); err != nil {
		t.Fatal(err)
	}
	_, err = readContext(run)
	same(t, "code", v1.CodeOf(err), v1.CodeContextChanged)
}

// The survey runs in the background: what it reads may be newer than the beginning of the run.
func TestAFileThatChangesBeforeItsChecksumHasNone(t *testing.T) {
	dir := t.TempDir()
	sums, paths := map[string]fileSum{}, map[string]string{}
	for _, name := range []string{"same", "changed"} {
		paths[name] = filepath.Join(dir, name)
		if err := os.WriteFile(paths[name], []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(paths[name])
		if err != nil {
			t.Fatal(err)
		}
		sums[name] = fileSum{Bytes: info.Size(), Modified: info.ModTime().UnixNano()}
	}
	later := time.Now().Add(time.Second)
	if err := os.Chtimes(paths["changed"], later, later); err != nil {
		t.Fatal(err)
	}
	v := survey{lines: map[string]int64{}}
	if err := v.sum(sums, paths); err != nil {
		t.Fatal(err)
	}
	same(t, "same has a sum", sums["same"].HasSum, true)
	same(t, "changed has a sum", sums["changed"].HasSum, false)
	why, err := sums["changed"].changed(paths["changed"])
	if why == "" || err != nil {
		t.Errorf("the change is not noticed: %q %v", why, err)
	}
}

func TestThePromptHasTheLinesOfLargeTexts(t *testing.T) {
	d := newDesk(t)
	const line = "a line of a text that is so large that the host counts its lines\n"
	long := strings.Repeat(line, linesFrom/len(line)+1)
	count := strings.Count(long, "\n")
	file := func(name, text string) Input {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return File(path)
	}
	wide := "\xff\xfe" + strings.Join(strings.Split(long, ""), "\x00") + "\x00"
	more := sumBytes/len(long) + 1
	messages, err := d.engine().Prompt(t.Context(), Question{Query: "?", Inputs: []Input{
		Text(long),
		file("without-line-end.txt", long+"the end"),
		file("cp1252.txt", long+"caf\xe9\nand\nmore\n"),
		file("utf-16.txt", wide),
		Text("small\ntext"),
		file("without-checksum.txt", strings.Repeat(long, more)),
	}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range regexp.MustCompile(` in (\d+) lines`).FindAllStringSubmatch(messages[1].Content, -1) {
		got = append(got, m[1])
	}
	same(t, "lines", fmt.Sprint(got), fmt.Sprint([]int{count, count + 1, count + 3, count, 2, count * more}))
}
