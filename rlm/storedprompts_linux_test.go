//go:build linux

package rlm

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/llm"
)

// sentAndStored returns the prompts that the models of a desk received, and those that the run has stored, as texts.
func sentAndStored(t *testing.T, d *desk, run string) (sent, stored []string) {
	t.Helper()
	all, err := d.engine().Prompts(run)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range d.engine().Events(run) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind != v1.KindCallStarted {
			continue
		}
		var c v1.CallStarted
		if err := e.Decode(&c); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for _, m := range all.Messages(c.Prompt) {
			text.WriteString(string(m.Role) + ": " + m.Content + "\n")
		}
		stored = append(stored, text.String())
	}
	for _, f := range []*fake{d.root, d.sub} {
		for _, req := range f.asked {
			var text strings.Builder
			for _, m := range req.Messages {
				text.WriteString(string(m.Role) + ": " + m.Content + "\n")
			}
			sent = append(sent, text.String())
		}
	}
	slices.Sort(sent)
	slices.Sort(stored)
	return sent, stored
}

func TestARunStoresWhatItAskedModels(t *testing.T) {
	chunk := strings.Repeat("what the fox said. ", 500)
	d := newDesk(t,
		block(`print(llm_query(context), llm_query(context), rlm_query("a question for a child"))`),
		block(`print(llm_query("again: " + context[:40]))`),
		"no code here",
		"FINAL(done)")
	d.sub.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
		if len(req.Messages) > 1 {
			return "FINAL(of the child)", nil
		}
		return "a reply", nil
	}
	res := d.answered(Question{Query: "What did the fox say?", Inputs: []Input{Text(chunk)}})
	sent, stored := sentAndStored(t, d, res.Run)
	if !slices.Equal(sent, stored) || len(sent) != 7 {
		t.Errorf("%d prompts sent, %d stored\n%s\n---\n%s", len(sent), len(stored), sent, stored)
	}
	events, err := os.ReadFile(filepath.Join(res.Dir, trajectory.FileName))
	if err != nil || bytes.Contains(events, []byte(chunk[:1000])) {
		t.Errorf("the events repeat the context: %v", err)
	}
	prompts, err := os.ReadFile(filepath.Join(res.Dir, trajectory.PromptsName))
	if err != nil || bytes.Count(prompts, []byte(chunk)) != 1 || bytes.Count(prompts, []byte("What did the fox say?")) != 1 {
		t.Errorf("%v %s", err, prompts)
	}
	cached, child := false, false
	all, err := d.engine().Prompts(res.Run)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range d.engine().Events(res.Run) {
		if err != nil {
			t.Fatal(err)
		}
		id, err := promptOf(&e)
		if err != nil {
			t.Fatal(err)
		}
		m := all.Messages(id)
		switch {
		case e.Kind == v1.KindCallEnded && id != "":
			cached = len(m) == 1 && m[0].Content == chunk
		case e.Kind == v1.KindChildStarted:
			child = len(m) == 1 && m[0].Content == "a question for a child"
		}
	}
	if !cached || !child {
		t.Errorf("the cached call has its prompt: %v; the child has its question: %v", cached, child)
	}
}

func TestResumeForkAndReplayStorePrompts(t *testing.T) {
	d := newDesk(t, block(`x = llm_query("one")`), block(`y = llm_query("two")`), block(`FINAL(x)`))
	d.opts.Limits.Turns = new(2)
	res, err := d.run(Question{Query: "?", Inputs: []Input{Text("a text")}})
	if err == nil {
		t.Fatalf("%+v", res)
	}
	d.opts.Limits.Turns = new(5)
	e := d.engine()
	check := func(what string, start func() (*Run, error), calls int) {
		t.Helper()
		r, err := start()
		if err == nil {
			_, err = r.Wait()
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		sent, stored := sentAndStored(t, d, r.ID())
		if len(stored) != calls || slices.Contains(stored, "") {
			t.Errorf("%s: %d prompts, want %d", what, len(stored), calls)
		}
		for _, s := range stored {
			if what != "replay" && !slices.Contains(sent, s) { // the prompts of a replay contain other remaining times
				t.Errorf("%s: not sent: %q", what, s)
			}
		}
	}
	again := ContinueOptions{Limits: v1.RunLimits{Turns: new(5)}}
	check("resume", func() (*Run, error) { return e.Resume(t.Context(), res.Run, again) }, 7) // the last call was made twice, because its reply was code
	check("fork", func() (*Run, error) { return e.Fork(t.Context(), res.Run, 1, again) }, 3)
	check("replay", func() (*Run, error) { return e.Replay(t.Context(), res.Run) }, 5)
}

// filesWith returns the files of a run, except for its context, that contain a text.
func filesWith(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, f fs.DirEntry, err error) error {
		if err != nil || f.IsDir() {
			if err == nil && f.Name() == contextDir {
				return fs.SkipDir
			}
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			found = append(found, f.Name())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestKeysAreNotStored(t *testing.T) {
	const known = "a key without a known form"
	form := "sk-ant-api03-" + strings.Repeat("Ab3", 20)
	d := newDesk(t, block(`print(llm_query(context), context)`), block(`FINAL("it was " + context)`))
	d.opts.Secrets = []string{known}
	d.sub.answer = func(context.Context, int, llm.Request) (string, error) { return "the key is " + known, nil }
	res := d.answered(Question{Query: "Is " + known + " a key?", Inputs: []Input{Text(known + " " + form)}})
	if res.Answer != "it was "+known+" "+form {
		t.Errorf("the caller gets %q", res.Answer)
	}
	if found := filesWith(t, res.Dir, known); len(found) > 0 {
		t.Errorf("the known key is in %v", found)
	}
	prompts, err := os.ReadFile(filepath.Join(res.Dir, trajectory.PromptsName))
	if err != nil || bytes.Contains(prompts, []byte(form)) || !bytes.Contains(prompts, []byte("[secret] [secret]")) {
		t.Errorf("%v %s", err, prompts)
	}
	for e := range d.engine().Events(res.Run) {
		var c v1.CallStarted
		if e.Kind == v1.KindCallStarted && (e.Decode(&c) != nil || strings.Contains(c.Preview, form)) {
			t.Errorf("preview %q", c.Preview)
		}
	}
}

func TestStoredPromptsAreBounded(t *testing.T) {
	ask := func(most int64) (*v1.RunPrompts, []string) {
		d := newDesk(t, block(`llm_query("x" * 50000); FINAL(llm_query("y" * 50000)[:4])`))
		d.opts.MaxPrompts = most
		res := d.answered(Question{Query: "?", Inputs: []Input{Text("a text")}})
		all, err := d.engine().Prompts(res.Run)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for e := range d.engine().Events(res.Run) {
			if id, _ := promptOf(&e); id != "" {
				ids = append(ids, id)
			}
		}
		return all, ids
	}
	all, ids := ask(80_000)
	if len(ids) != 3 || all.Messages(ids[1])[0].Content != strings.Repeat("x", 50000) || all.Messages(ids[2])[0].LeftOut != 50000 {
		t.Errorf("%v", ids)
	}
	if all, ids := ask(-1); len(ids) > 0 || len(all.Texts) > 0 {
		t.Errorf("nothing should be stored: %v", ids)
	}
}
