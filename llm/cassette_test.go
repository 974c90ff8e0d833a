package llm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// recordCassette records the calls that f makes to m, and returns the path of the cassette.
func recordCassette(t *testing.T, m Model, f func(Model)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "calls.jsonl")
	c, err := Record(path)
	if err != nil {
		t.Fatal(err)
	}
	f(c.Recorded(m))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// openCassette opens a cassette for replay, and returns it with its only model.
func openCassette(t *testing.T, path string) (*Cassette, Model) {
	t.Helper()
	c, err := Replay(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Models()) != 1 {
		t.Fatalf("%d models", len(c.Models()))
	}
	m, err := c.Model(c.Models()[0].Info().Name)
	if err != nil {
		t.Fatal(err)
	}
	return c, m
}

func TestCassetteGivesBackWhatWasSaid(t *testing.T) {
	busy := &v1.Error{Code: v1.CodeModelOverloaded, Message: "busy", Remedy: "wait", Retry: true}
	live := NewScripted("live",
		Rule{Match: "fail", Error: busy}, Rule{Match: "half", Reply: "half of", Error: busy},
		Rule{Match: "same", Nth: 1, Reply: "first"}, Rule{Match: "same", Nth: 2, Reply: "second"},
		Rule{Reply: "one two three", Chunk: 4},
	).WithInfo(Info{Window: 777, Price: &Price{Input: 1, Output: 2}})
	var then, now []string
	session := func(m Model, log *[]string) {
		for _, text := range []string{"hello", "fail", "half", "same", "same"} {
			var pieces []string
			req := ask(text)
			req.Delta = func(s string) bool { pieces = append(pieces, s); return s != "two " }
			r, err := m.Complete(t.Context(), req)
			if r != nil {
				r.Wall = 0
			}
			*log = append(*log, fmt.Sprintf("%q %+v %v %v", pieces, r, err, v1.CodeOf(err)))
		}
	}
	path := recordCassette(t, live, func(m Model) { session(m, &then) })
	c, m := openCassette(t, path)
	if m.Info().Name != live.Info().Name || m.Info().Window != 777 || m.Info().Price.Output != 2 {
		t.Errorf("%+v", m.Info())
	}
	if c.Unused() != 5 {
		t.Errorf("%d unused", c.Unused())
	}
	session(m, &now)
	for i := range then {
		if then[i] != now[i] {
			t.Errorf("then %s\nnow  %s", then[i], now[i])
		}
	}
	if c.Unused() != 0 {
		t.Errorf("%d unused", c.Unused())
	}
}

func TestCassetteIsStrict(t *testing.T) {
	warm := 0.5
	recorded := Request{Messages: []Message{{Role: System, Content: "be brief"}, {Role: User, Content: "what is in chapter seven of the book?"}}, MaxTokens: 10, Stop: []string{"x"}, Schema: []byte(`{"type": "object"}`)}
	path := recordCassette(t, NewScripted("live", Rule{Reply: "yes"}), func(m Model) { mustReply(t, m, recorded, "yes") })
	for _, tc := range []struct {
		name   string
		change func(*Request)
		shows  []string
	}{
		{"another text", func(r *Request) {
			r.Messages = []Message{{Role: System, Content: "be brief"}, {Role: User, Content: "what is in chapter eight of the book?"}}
		}, []string{"message 2", "byte 19", "seven", "eight"}},
		{"another role", func(r *Request) {
			r.Messages = []Message{{Role: User, Content: "be brief"}, {Role: User, Content: "what is in chapter seven of the book?"}}
		}, []string{"message 1", "system", "user"}},
		{"a message more", func(r *Request) { r.Messages = append(r.Messages, Message{Role: User, Content: "and?"}) }, []string{"2 messages, now 3"}},
		{"another limit", func(r *Request) { r.MaxTokens = 11 }, []string{"max_tokens was 10, now 11"}},
		{"another stop word", func(r *Request) { r.Stop = nil }, []string{"stop was"}},
		{"another temperature", func(r *Request) { r.Temperature = &warm }, []string{"not set, now 0.5"}},
		{"another schema", func(r *Request) { r.Schema = []byte(`{"type":"array"}`) }, []string{"schema"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, m := openCassette(t, path)
			req := recorded
			req.Messages = append([]Message{}, recorded.Messages...)
			tc.change(&req)
			_, err := m.Complete(t.Context(), req)
			e := wantCode(t, err, v1.CodeModelCassette)
			for _, s := range tc.shows {
				if !strings.Contains(e.Message, s) {
					t.Errorf("%q does not contain %q", e.Message, s)
				}
			}
			mustReply(t, m, recorded, "yes") // the mismatch did not use it up
			_, err = m.Complete(t.Context(), recorded)
			if e := wantCode(t, err, v1.CodeModelCassette); !strings.Contains(e.Message, "once more") {
				t.Errorf("%v", e)
			}
			_, err = m.Complete(t.Context(), req)
			if e := wantCode(t, err, v1.CodeModelCassette); !strings.Contains(e.Message, "already") {
				t.Errorf("%v", e)
			}
		})
	}
	t.Run("the same schema written otherwise", func(t *testing.T) {
		_, m := openCassette(t, path)
		req := recorded
		req.Schema = []byte("{\n\"type\":\"object\"\n}")
		mustReply(t, m, req, "yes")
	})
	t.Run("tags are not asked", func(t *testing.T) {
		_, m := openCassette(t, path)
		req := recorded
		req.Tags = map[string]string{"run": "2"}
		mustReply(t, m, req, "yes")
	})
}

func TestCassetteUnderLoad(t *testing.T) {
	live := NewScripted("live", Rule{Match: `q(\d+)`, Reply: "a{{1}}"}, Rule{Respond: func(context.Context, Request) (string, error) { return "same", nil }})
	many := func(m Model) {
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				r, err := m.Complete(t.Context(), ask(fmt.Sprint("q", i)))
				if err != nil || r.Text != fmt.Sprint("a", i) {
					t.Errorf("%+v, %v", r, err)
				}
			})
			wg.Go(func() {
				if r, err := m.Complete(t.Context(), ask("same")); err != nil || r.Text != "same" {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
		wg.Wait()
	}
	path := recordCassette(t, live, many)
	c, m := openCassette(t, path)
	many(m)
	if c.Unused() != 0 {
		t.Errorf("%d unused", c.Unused())
	}
}

func TestCassetteAfterACrash(t *testing.T) {
	live := NewScripted("live", Rule{Reply: "fine"})
	path := recordCassette(t, live, func(m Model) {
		mustReply(t, m, ask("one"), "fine")
		mustReply(t, m, ask("two"), "fine")
	})
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first := strings.IndexByte(string(whole), '\n') + 1
	for cut := first; cut < len(whole); cut++ { // the second line is incomplete, at every length
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if c, _ := openCassette(t, path); c.Unused() != 1 {
			t.Fatalf("cut at %d: %d calls", cut, c.Unused())
		}
	}
	c, err := Record(path)
	if err != nil {
		t.Fatal(err)
	}
	mustReply(t, c.Recorded(live), ask("three"), "fine")
	c.Close()
	_, m := openCassette(t, path)
	mustReply(t, m, ask("one"), "fine")
	mustReply(t, m, ask("three"), "fine")
	_, err = c.Recorded(live).Complete(t.Context(), ask("after the end"))
	wantCode(t, err, v1.CodeModelCassette)
}

func TestCassettesThatAreWrong(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"garbage": "what\n", "another file": `{"a": 1}` + "\n", "damaged in the middle": "{\n{}\n"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Replay(path)
		wantCode(t, err, v1.CodeModelCassette)
		_, err = Record(path)
		wantCode(t, err, v1.CodeModelCassette)
		if after, _ := os.ReadFile(path); string(after) != text {
			t.Errorf("%s: the file was changed", name)
		}
	}
	_, err := Replay(filepath.Join(dir, "missing"))
	wantCode(t, err, v1.CodeModelCassette)
}

func TestCassetteLeavesOutWhatWasGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	path := recordCassette(t, NewScripted("live", Rule{Match: "never", Respond: func(context.Context, Request) (string, error) { cancel(); return "x", nil }}, Rule{Reply: "fine"}), func(m Model) {
		_, err := m.Complete(ctx, ask("never"))
		wantCode(t, err, v1.CodeCancelled)
		mustReply(t, m, ask("hi"), "fine")
	})
	if c, _ := openCassette(t, path); c.Unused() != 1 {
		t.Errorf("%d calls recorded", c.Unused())
	}
}
