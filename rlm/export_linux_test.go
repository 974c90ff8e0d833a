//go:build linux

package rlm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

// officialLayout returns the schema of the lines of an export.
func officialLayout(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	text, err := os.ReadFile("testdata/official.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

// exported returns the turns in the export of a run, which must have the official layout.
func (d *desk) exported(run string) (head exportHead, turns []exportIteration) {
	d.t.Helper()
	var out bytes.Buffer
	if err := d.engine().Export(run, &out); err != nil {
		d.t.Fatal(err)
	}
	layout := officialLayout(d.t)
	for i, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		var any any
		err := json.Unmarshal([]byte(line), &any)
		if err == nil {
			err = layout.Validate(any)
		}
		if err != nil {
			d.t.Fatalf("line %d: %v\n%s", i+1, err, line)
		}
		if i == 0 {
			if err := json.Unmarshal([]byte(line), &head); err != nil || head.Type != "metadata" {
				d.t.Fatalf("%v %s", err, line)
			}
			continue
		}
		var turn exportIteration
		if err := json.Unmarshal([]byte(line), &turn); err != nil || turn.Type != "iteration" || turn.Number != i {
			d.t.Fatalf("line %d: %v %s", i+1, err, line)
		}
		turns = append(turns, turn)
	}
	return head, turns
}

func answerOf(answer *string) string {
	if answer == nil {
		return "(none)"
	}
	return *answer
}

func TestExportHasTheOfficialLayout(t *testing.T) {
	form := "ghp_" + strings.Repeat("x1", 20)
	d := newDesk(t,
		block("a = llm_query('first ' + '"+form+"')\nprint(a)")+"and then\n",
		block("b = rlm_query('count to two', context='one two')\ntry:\n    llm_query('fail')\nexcept Exception as e:\n    print(type(e).__name__)"),
		block("FINAL(b)"))
	price := &llm.Price{Input: 1, Output: 1}
	d.root.price, d.sub.price = price, price
	d.opts.Limits.Depth = new(3)
	sub := d.sub.answer
	d.sub.answer = func(ctx context.Context, n int, req llm.Request) (string, error) {
		switch {
		case req.Messages[0].Content == "fail":
			return "", errors.New("the server is away")
		case len(req.Messages) == 1:
			return sub(ctx, n, req)
		case req.Tags["depth"] == "2":
			return block("FINAL(llm_query('deepest'))"), nil
		case req.Tags["turn"] == "1":
			return block("c = rlm_query('a grandchild')\nprint(c)"), nil
		}
		return block("FINAL(c)"), nil
	}
	res := d.answered(Question{Query: "what?", Inputs: []Input{Text("the text")}})
	head, turns := d.exported(res.Run)
	if head.Model != "fake/root" || head.Depth != 3 || head.Turns != 30 || len(turns) != 3 {
		t.Fatalf("%+v, %d turns", head, len(turns))
	}
	first := turns[0]
	if len(first.Prompt) != 2 || first.Prompt[0].Role != llm.System || !strings.Contains(first.Prompt[1].Content, "what?") || first.Answer != nil || first.Duration <= 0 {
		t.Errorf("%+v", first)
	}
	if strings.Contains(first.Response+first.Blocks[0].Code+first.Blocks[0].Result.Stdout+first.Blocks[0].Result.Calls[0].Prompt, form) {
		t.Errorf("a key is exported: %+v", first)
	}
	same(t, "locals", first.Blocks[0].Result.Locals["a"], "str")
	call := first.Blocks[0].Result.Calls[0]
	if call.Prompt != "first [secret]" || !strings.HasPrefix(call.Response, "read: first ") || call.Trajectory != nil || call.Usage.Models["fake/sub"].Calls != 1 || call.Usage.Cost <= 0 || call.Input <= 0 {
		t.Errorf("%+v", call)
	}
	calls := turns[1].Blocks[0].Result.Calls
	if len(calls) != 2 || calls[1].Prompt != "fail" || !strings.Contains(calls[1].Error, "the server is away") {
		t.Fatalf("%+v", calls)
	}
	child := calls[0]
	if child.Prompt != "count to two" || child.Response != "read: deepest" || child.Time <= 0 || len(child.Trajectory.Iterations) != 2 || child.Trajectory.Run.Depth != 2 {
		t.Fatalf("%+v", child)
	}
	// The two turns of the child, the turn of its child and the call of that one.
	if used := child.Usage.Models["fake/sub"]; used.Calls != 4 || used.Input != child.Input || child.Usage.Cost <= 0 {
		t.Errorf("usage of the child: %+v", child.Usage)
	}
	grandchild := child.Trajectory.Iterations[0].Blocks[0].Result.Calls[0]
	deepest := grandchild.Trajectory.Iterations[0]
	if grandchild.Prompt != "a grandchild" || grandchild.Usage.Models["fake/sub"].Calls != 2 || len(deepest.Prompt) < 2 ||
		deepest.Blocks[0].Result.Calls[0].Prompt != "deepest" || answerOf(deepest.Answer) != "read: deepest" {
		t.Errorf("%+v", grandchild)
	}
	last := turns[2]
	if answerOf(last.Answer) != "read: deepest" || answerOf(last.Blocks[0].Result.Answer) != "read: deepest" || len(last.Prompt) != 6 {
		t.Errorf("%+v", last)
	}
	var all int64
	for _, n := range []int64{3, call.Usage.Models["fake/sub"].Calls, child.Usage.Models["fake/sub"].Calls, calls[1].Usage.Models["fake/sub"].Calls} {
		all += n
	}
	if want := res.Usage.Calls; all != want {
		t.Errorf("the export has %d calls, the run %d", all, want)
	}
}

func TestExportOfOtherRuns(t *testing.T) {
	t.Run("a plain call", func(t *testing.T) {
		d := newDesk(t, "Anna")
		d.opts.PlainBelow = 0
		res := d.answered(Question{Query: "Who?", Inputs: []Input{Text("Anna did it.")}})
		_, turns := d.exported(res.Run)
		if len(turns) != 1 || answerOf(turns[0].Answer) != "Anna" || turns[0].Response != "Anna" || !strings.Contains(turns[0].Prompt[0].Content, "Anna did it.") {
			t.Errorf("%+v", turns)
		}
	})
	t.Run("without an answer", func(t *testing.T) {
		d := newDesk(t, block("x = 1"), "so far: 1")
		d.opts.Limits.Turns = new(1)
		res, err := d.run(Question{Query: "?", Inputs: []Input{Text("text")}})
		same(t, "code", v1.CodeOf(err), v1.CodeBudget)
		_, turns := d.exported(res.Run)
		if len(turns) != 2 || turns[0].Answer != nil || answerOf(turns[1].Answer) != "so far: 1" || len(turns[1].Blocks) != 0 || len(turns[1].Prompt) != 5 {
			t.Errorf("%+v", turns)
		}
	})
	t.Run("samples", func(t *testing.T) {
		d := newDesk(t)
		d.root.answer = byNode(map[string][]string{"0/s1": {block("FINAL('a')")}, "0/s2": {block("FINAL('b')")}, "0/s3": {block("FINAL('b')")}})
		res := d.answered(Question{Query: "Which?", Inputs: []Input{Text("text")}, Samples: 3})
		_, turns := d.exported(res.Run)
		if len(turns) != 1 || answerOf(turns[0].Answer) != "b" || len(turns[0].Blocks) != 1 {
			t.Fatalf("%+v", turns)
		}
		for _, c := range turns[0].Blocks[0].Result.Calls {
			if c.Prompt != "Which?" || len(c.Trajectory.Iterations) != 1 || answerOf(c.Trajectory.Iterations[0].Answer) != c.Response {
				t.Errorf("%+v", c)
			}
		}
	})
	t.Run("without stored prompts", func(t *testing.T) {
		d := newDesk(t, block("FINAL(llm_query('first'))"))
		d.opts.MaxPrompts = -1
		res := d.answered(Question{Query: "what?", Inputs: []Input{Text("text")}})
		if _, turns := d.exported(res.Run); len(turns) != 1 || turns[0].Blocks[0].Result.Calls[0].Prompt != "first" {
			t.Errorf("%+v", turns)
		}
	})
}

func TestTheSchemaOfTheOfficialLayoutIsStrict(t *testing.T) {
	layout := officialLayout(t)
	for name, line := range map[string]string{
		"no type":              `{"root_model":"m"}`,
		"another type":         `{"type":"event"}`,
		"an unknown field":     `{"type":"iteration","iteration":1,"timestamp":"t","prompt":[{"role":"user","content":"c"}],"response":"r","code_blocks":[],"final_answer":null,"iteration_time":1,"more":1}`,
		"no prompt":            `{"type":"iteration","iteration":1,"timestamp":"t","prompt":[],"response":"r","code_blocks":[],"final_answer":null,"iteration_time":1}`,
		"calls that are null":  `{"type":"iteration","iteration":1,"timestamp":"t","prompt":[{"role":"user","content":"c"}],"response":"r","code_blocks":[{"code":"","result":{"stdout":"","stderr":"","locals":{},"execution_time":0,"rlm_calls":null,"final_answer":null}}],"final_answer":null,"iteration_time":1}`,
		"metadata without all": `{"type":"metadata","timestamp":"t","root_model":"m"}`,
	} {
		var doc any
		if err := json.Unmarshal([]byte(line), &doc); err != nil {
			t.Fatal(err)
		}
		if layout.Validate(doc) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
