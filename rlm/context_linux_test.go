//go:build linux

package rlm

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestContextsOfEveryKind(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	wide := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune("zwölf €")) {
		wide = append(wide, byte(u), byte(u>>8))
	}
	write("tree/a.txt", []byte("alpha"))
	write("tree/sub/b.md", []byte("beta"))
	write("tree/picture.png", []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"))
	secret := write("secret.txt", []byte("only mine"))
	if err := os.Chmod(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	d := newDesk(t, block(`
assert context == context_0 == "plain\ntext ä"
assert context_1 == {"k": [1, None]}
assert context_2 == ["one", "", "drei ä"], context_2
assert context_3[0] == {"role": "user", "content": "hi"}
assert context_4 == {"from": "file"}
assert context_5 == "{broken", context_5
assert context_6 == "zwölf €", context_6
assert context_7 == "caf\u00e9", context_7
assert context_8 == "with BOM", context_8
assert list(context_9) == ["a.txt", "sub/b.md"] and context_9["sub/b.md"] == "beta" and len(context_9) == 2
assert context_9.size("a.txt") == 5 and "picture.png" not in context_9
assert context_10 == "only mine"
assert context_11 == "from a reader"
assert search("BETA", context_9)[0][0] == "sub/b.md"
try:
    open("/context/x", "w")
except OSError:
    pass
FINAL("all")`))
	res := d.answered(Question{Inputs: []Input{
		Text("plain\ntext ä"), JSON(map[string]any{"k": []any{1, nil}}), List([]string{"one", "", "drei ä"}),
		Messages([]llm.Message{{Role: llm.User, Content: "hi"}}), File(write("ok.json", []byte(`{"from": "file"}`))), File(write("bad.json", []byte(`{broken`))),
		File(write("wide.txt", wide)), File(write("latin.txt", []byte("caf\xe9"))), File(write("bom.txt", []byte("\xef\xbb\xbfwith BOM"))),
		File(filepath.Join(dir, "tree")), File(secret), Reader("r", strings.NewReader("from a reader")),
	}})
	same(t, "answer", res.Answer, "all")
	first := d.root.asked[0].Messages[1].Content
	contains(t, "the first prompt", first, "context_9 (tree): Directory of 2 files, 9 bytes (1 .txt: 5, 1 .md: 4); a mapping of paths to texts, first a.txt, "+
		"sub/b.md; 1 files that are not text are left out; for example context_9['a.txt'][:1000]")
	contains(t, "the first prompt", first, "context_2: list of 3 items, 9 characters")
}

// pdf returns a PDF with one page and the text Hello.
const pdf = `%PDF-1.4
1 0 obj <</Type/Catalog/Pages 2 0 R>> endobj
2 0 obj <</Type/Pages/Kids[3 0 R]/Count 1>> endobj
3 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>> endobj
4 0 obj <</Length 41>> stream
BT /F1 24 Tf 20 100 Td (Hello) Tj ET     
endstream endobj
5 0 obj <</Type/Font/Subtype/Type1/BaseFont/Helvetica>> endobj
trailer <</Root 1 0 R>>
`

// withoutPDF is a search path without any program.
const withoutPDF = "/nowhere"

func TestAPDFIsReadByTheRealProgram(t *testing.T) {
	if _, err := os.Stat("/usr/bin/pdftotext"); err != nil {
		testneed.Lacking(t, "no pdftotext, so that no PDF is read: install poppler-utils")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "page.pdf"), []byte(pdf), 0o644); err != nil {
		t.Fatal(err)
	}
	d := newDesk(t, block("FINAL([context.strip(), context_1.strip(), context_2['page.pdf'].strip()])"))
	res := d.answered(Question{Inputs: []Input{Text(pdf), File(filepath.Join(dir, "page.pdf")), File(dir)}})
	same(t, "answer", res.Answer, `["Hello", "Hello", "Hello"]`)
}

func TestAPDFThatCannotBeReadIsRefusedWithAReason(t *testing.T) {
	for _, c := range []struct {
		name, text, path, says string
		code                   v1.Code
	}{
		{"no program that reads it", pdf, withoutPDF, "install poppler-utils", v1.CodeContextBinary},
		{"no PDF behind its beginning", "%PDF-1.4\nnothing of it is true", "", "pdftotext failed", v1.CodeContextUnread},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := os.Stat("/usr/bin/pdftotext"); err != nil && c.path == "" {
				t.Skip("SKIPPED: no pdftotext here; install poppler-utils")
			}
			d := newDesk(t, block("FINAL(context.strip())"))
			if c.path != "" {
				d.opts.Spec.Env = map[string]string{"PATH": c.path}
			}
			res, err := d.run(Question{Inputs: []Input{Text(c.text)}})
			same(t, "code", v1.CodeOf(err), c.code)
			same(t, "reason", res.Reason, v1.ReasonContext)
			contains(t, "the error", err.Error(), c.says)
			same(t, "model calls", d.root.calls, 0)
		})
	}
}

// unshared makes sandboxes of a backend that cannot share files.
type unshared struct {
	Sandboxes
	mounts bool
}

func (u unshared) Capabilities(ctx context.Context) sandbox.Capabilities {
	c := u.Sandboxes.Capabilities(ctx)
	c.Shares, c.Mounts = false, u.mounts
	return c
}

func TestALargeContextComesInByTheBestWayThereIs(t *testing.T) {
	boxes := sandboxes(t)
	text := haystack(t, 12<<20, "here it is")
	path := filepath.Join(t.TempDir(), "big.txt")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		boxes  Sandboxes
		inside string
		linked bool
	}{
		{"linked into the shared directory", boxes, "/shared/context/", true},
		{"mounted", unshared{boxes, true}, "/context", true},
		{"streamed", unshared{boxes, false}, "/tmp/.context/", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, block("FINAL([len(context), context.count('here it is')])"))
			d.opts.Sandboxes = c.boxes
			e := d.engine()
			res, err := e.Run(t.Context(), Question{Inputs: []Input{File(path)}})
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			if err := json.Unmarshal(res.Value, &got); err != nil {
				t.Fatal(err)
			}
			same(t, "length", got[0], len(text))
			same(t, "needles", got[1], 1)
			contains(t, "where it lies", insideOf(t, e, res.Run), c.inside)
			staged, err := os.Stat(filepath.Join(res.Dir, contextDir, "context_0"))
			if err != nil || !os.SameFile(info, staged) {
				t.Errorf("the file was copied: %v", err)
			}
		})
	}
}

// insideOf returns the path of a run's context in its sandbox.
func insideOf(t *testing.T, e *Engine, run string) string {
	t.Helper()
	var box v1.SandboxReady
	for ev, err := range e.Events(run) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind == v1.KindSandbox {
			if err := ev.Decode(&box); err != nil {
				t.Fatal(err)
			}
		}
	}
	return box.Inside
}

func TestASharedContextIsReadOnlyAndTheHostsOwnFile(t *testing.T) {
	d := newDesk(t)
	path := filepath.Join(t.TempDir(), "big.txt")
	if err := os.WriteFile(path, []byte(haystack(t, 9<<20, "")), 0o644); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	d.root.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
		all, err := filepath.Glob(filepath.Join(boxesAt, "*", "sandboxes", "*", "shared", "context", req.Tags["run"], "context_0"))
		if err != nil || len(all) != 1 {
			t.Errorf("linked at %v, %v", all, err)
		} else if link, err := os.Stat(all[0]); err != nil || !os.SameFile(info, link) {
			t.Errorf("the file in the sandbox is a copy: %v", err)
		}
		return block("import os\nFINAL(os.access('/shared/context/" + req.Tags["run"] + "/context_0', os.W_OK))"), nil
	}
	res := d.answered(Question{Inputs: []Input{File(path)}})
	same(t, "writable", string(res.Value), "false")
}

func TestADirectoryOfManyFilesIsLinkedWithoutACopy(t *testing.T) {
	dir := t.TempDir()
	for i := range 2 * streamFiles {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), []byte("file "+strconv.Itoa(i)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := newDesk(t, block("FINAL([len(context), all(t == 'file ' + p for p, t in context.items())])"))
	e := d.engine()
	res, err := e.Run(t.Context(), Question{Inputs: []Input{File(dir)}})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "answer", res.Answer, "[128, true]")
	contains(t, "where it lies", insideOf(t, e, res.Run), sandbox.SharedDir)
}

func TestMemoryFollowsTheContextInSteps(t *testing.T) {
	for bytes, want := range map[int64]int64{
		0: 512 << 20, 100 << 20: 512 << 20, 110 << 20: 768 << 20, 1 << 30: 2816 << 20,
	} {
		same(t, strconv.FormatInt(bytes, 10), memoryFor(bytes), want)
	}
}

func TestAContextThatThisMachineHasNoMemoryForIsRefusedAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "huge.txt")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text := []byte(strings.Repeat("text ", 40_000))
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
	// A sparse file of a terabyte, which takes almost no space on the disk: only its beginning and end are written.
	if _, err := f.WriteAt(text, 1<<40); err != nil {
		t.Skipf("this file system does not support a sparse file of this size: %v", err)
	}
	d := newDesk(t, "FINAL(1)")
	res, err := d.run(Question{Inputs: []Input{File(path)}})
	same(t, "code", v1.CodeOf(err), v1.CodeContextUnread)
	same(t, "reason", res.Reason, v1.ReasonContext)
	contains(t, "the error", err.Error(), "MiB of memory, and this host has")
	same(t, "model calls", d.root.calls, 0)
}

func TestAContextIsMovedWhereItCanBeMountedFrom(t *testing.T) {
	d := newDesk(t, block("FINAL(len(context))"))
	d.opts.Sandboxes = unshared{sandboxes(t), true}
	d.opts.Dir = filepath.Join(t.TempDir(), ".ssh", "runs") // directories with this name cannot be mounted
	text := haystack(t, 9<<20, "")
	res := d.answered(Question{Inputs: []Input{Text(text)}})
	same(t, "answer", res.Answer, strconv.Itoa(len(text)))
	moved, err := os.Readlink(filepath.Join(res.Dir, contextDir))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.engine().Delete(t.Context(), res.Run); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(moved); err == nil {
		t.Error("the relocated context was not removed")
	}
}

func TestAContextThatCannotFitIsToldBeforeAnyModelCall(t *testing.T) {
	d := newDesk(t, "FINAL(1)")
	d.opts.Spec.Limits.Memory = 128 << 20
	path := filepath.Join(t.TempDir(), "big.txt")
	if err := os.WriteFile(path, bytes.Repeat([]byte("nothing of interest\n"), 150<<20/20), 0o644); err != nil {
		t.Fatal(err)
	}
	res, err := d.run(Question{Inputs: []Input{File(path)}})
	same(t, "reason", res.Reason, v1.ReasonContext)
	contains(t, "the error", err.Error(), "set a higher memory limit for the sandbox")
	same(t, "model calls", d.root.calls, 0)
}

func TestASmallContextIsAnsweredByAPlainCall(t *testing.T) {
	d := newDesk(t, "Bern")
	d.opts.PlainBelow = 0
	res := d.answered(Question{Query: "Which city?", Inputs: []Input{Text("The capital is Bern.")}})
	same(t, "answer", res.Answer, "Bern")
	same(t, "plain", res.Plain, true)
	same(t, "cells", res.Cells, 0)
	contains(t, "the prompt", d.seen(), "The capital is Bern.")
	same(t, "coverage", res.Coverage.Percent, 0) // too short to be recognised
	if res, err := d.run(Question{Query: "?", Inputs: []Input{Text(haystack(t, 200_000, ""))}}); err == nil || res.Plain {
		t.Error("a large context was answered by a plain call")
	}
}

const schema = `{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}`

func TestAnswersMeetTheirSchema(t *testing.T) {
	t.Run("in code", func(t *testing.T) {
		d := newDesk(t, block("FINAL('seven')"), block("SUBMIT(n='7')"), block("answer['content'] = {'m': 7}\nanswer['ready'] = True"), block("SUBMIT(n=7)"))
		res := d.answered(Question{Inputs: []Input{Text("x")}, Schema: json.RawMessage(schema)})
		same(t, "value", string(res.Value), `{"n": 7}`)
		same(t, "turns", res.Turns, 4)
		contains(t, "turn 1", d.root.asked[1].Messages[3].Content, "this is not valid JSON")
		contains(t, "turn 2", d.root.asked[2].Messages[5].Content, `has type "string", want "integer"`)
		contains(t, "turn 3", d.root.asked[3].Messages[7].Content, `unexpected additional properties ["m"]`)
		contains(t, "the first prompt", d.root.asked[0].Messages[1].Content, schema)
	})
	t.Run("in a plain call", func(t *testing.T) {
		d := newDesk(t, "It is seven.", "```json\n{\"n\": 7}\n```")
		d.opts.PlainBelow = 0
		res := d.answered(Question{Inputs: []Input{Text("x")}, Schema: json.RawMessage(schema)})
		same(t, "value", string(res.Value), `{"n": 7}`)
	})
	t.Run("never", func(t *testing.T) {
		d := newDesk(t, "It is seven.")
		d.opts.PlainBelow = 0
		res, err := d.run(Question{Inputs: []Input{Text("x")}, Schema: json.RawMessage(schema)})
		same(t, "code", v1.CodeOf(err), v1.CodeAnswerRefused)
		same(t, "reason", res.Reason, v1.ReasonFormat)
	})
}

func TestALongConversationIsSummedUp(t *testing.T) {
	d := newDesk(t)
	d.root.window = 6000
	d.root.answer = func(_ context.Context, _ int, req llm.Request) (string, error) {
		switch {
		case req.Tags["call"] == v1.CallSummary:
			return "The key is under the mat.", nil
		case strings.Contains(req.Messages[1].Content, "under the mat"):
			return block("FINAL([len(history) > 4, 'xxxxx' in history[2]['content']])"), nil
		}
		return block("print('x' * 4000)"), nil
	}
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "answer", res.Answer, "[true, true]")
	last := d.root.asked[len(d.root.asked)-1].Messages
	same(t, "messages", len(last), 2+2*keepTurns)
}

func TestFollowUpQuestionsShareMachineAndHistory(t *testing.T) {
	m, err := sandboxes(t).Open(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	d := newDesk(t, block("kept = 5\nFINAL('five')"))
	first := d.answered(Question{Query: "a", Inputs: []Input{Text("one")}, Sandbox: m})
	d.root.calls = 0
	d.root.answer = script(block("FINAL([kept, context, context_1, history[-1]['role'], llm_query('hi')])"))
	second := d.answered(Question{Query: "b", Inputs: []Input{Text("two")}, Sandbox: m, History: first.Conversation})
	same(t, "answer", second.Answer, `[5, "one", "two", "assistant", "read: hi"]`)
	if err := m.(*sandbox.Sandbox).Ping(t.Context()); err != nil {
		t.Errorf("the sandbox was closed: %v", err)
	}
}

func TestAnEarlierAnswerIsNotThatOfAFollowUpQuestion(t *testing.T) {
	m, err := sandboxes(t).Open(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	d := newDesk(t, block("answer['content'], answer['note'] = 'old', 1\nFINAL('done')"))
	d.answered(Question{Inputs: []Input{Text("one")}, Sandbox: m})
	d.root.calls, d.opts.Limits.Turns = 0, new(1)
	d.root.answer = script(block("print(dict(answer))"), "I do not know.")
	res, err := d.run(Question{Inputs: []Input{Text("two")}, Sandbox: m})
	same(t, "code", v1.CodeOf(err), v1.CodeBudget)
	if res.Answer != "I do not know." {
		t.Fatalf("partial answer: %q", res.Answer)
	}
	contains(t, "the answer as code finds it", d.root.asked[len(d.root.asked)-1].Messages[3].Content, "{'content': '', 'ready': False}")
}

func TestCommandsAndWords(t *testing.T) {
	d := newDesk(t,
		"```bash\necho $((6*7)); exit 3\n```\n",
		"RUN(echo from a word)\nQUERY_LLM(\"what?\")",
		block("x = 1"), "SNAPSHOT(early)", block("x = 2"), "ROLLBACK(early)", block("FINAL([x, llm_query('yes')])"),
	)
	d.opts.Dialect = true
	res := d.answered(Question{Inputs: []Input{Text("x")}})
	same(t, "answer", res.Answer, `[1, "read: yes"]`)
	contains(t, "turn 1", d.root.asked[1].Messages[3].Content, "42\n[exit status 3]")
	contains(t, "turn 2", d.root.asked[2].Messages[5].Content, "from a word")
	contains(t, "turn 2", d.root.asked[2].Messages[5].Content, "read: what?")
}

func TestCoverageTellsWhatModelsRead(t *testing.T) {
	text := prose(100_000, 9)
	d := newDesk(t, block("llm_query('Sum up: ' + context[1000:21000])\nprint(context[50000:51000])"), block("FINAL(1)"))
	res := d.answered(Question{Inputs: []Input{Text(text)}})
	same(t, "by calls", res.Coverage.ByCalls, 20000)
	// The prompt has the first and the last 300 characters. A line break around a quote may also be that of the text.
	if m := res.Coverage.ByModel; m < 1600 || m > 1603 {
		t.Errorf("the model read %d bytes", m)
	}
	same(t, "spans", len(res.Coverage.Spans), 4)
}

func TestALentMachineGetsLargeContextsByLinkAndWorksOnAfterTheRun(t *testing.T) {
	m, err := sandboxes(t).Open(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	text := haystack(t, 9<<20, "")
	d := newDesk(t, block("FINAL(len(context))"))
	e := d.engine()
	res, err := e.Run(t.Context(), Question{Inputs: []Input{Text(text)}, Sandbox: m})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "answer", res.Answer, strconv.Itoa(len(text)))
	contains(t, "where it lies", insideOf(t, e, res.Run), sandbox.SharedDir)
	// The host does not handle reports of cells any more. This must not make the cell fail.
	for range 2 {
		v, err := m.Cell(t.Context(), sandbox.Cell{Code: "len(context)"})
		if err != nil || !v.OK() {
			t.Fatal(v, err)
		}
		same(t, "result", v.Result.Text(), strconv.Itoa(len(text)))
	}
}
