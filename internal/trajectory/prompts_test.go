package trajectory

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func conversation(texts ...string) []v1.Message {
	var out []v1.Message
	for i, text := range texts {
		role := v1.Role("user")
		if i%2 == 1 {
			role = "assistant"
		}
		out = append(out, v1.Message{Role: role, Content: text})
	}
	return out
}

func openPrompts(t *testing.T, dir string, limit int64) *Prompts {
	t.Helper()
	p, err := OpenPrompts(dir, limit, func(s string) string { return strings.ReplaceAll(s, "hunter2", "[secret]") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// stored returns the texts of a stored prompt, and the number of those that are left out.
func stored(t *testing.T, dir, id string) (texts []string, leftOut int) {
	t.Helper()
	all, err := ReadPrompts(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all.Messages(id) {
		texts = append(texts, m.Content)
		if m.LeftOut > 0 {
			leftOut++
		}
	}
	return texts, leftOut
}

func TestEachTextIsStoredOnce(t *testing.T) {
	dir := t.TempDir()
	p := openPrompts(t, dir, 1<<20)
	chunk := strings.Repeat("a chunk of the context; ", 400)
	var turns []string
	var ids []string
	for i := range 20 {
		turns = append(turns, fmt.Sprintf("reply %d", i), chunk)
		ids = append(ids, p.Put(conversation(turns...)))
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if id := p.Put(conversation(chunk)); id == "" || slices.Contains(ids, id) {
				t.Errorf("id %q", id)
			}
		})
	}
	all.Wait()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, PromptsName))
	if err != nil || bytes.Count(data, []byte(chunk)) != 1 || len(data) > 2*len(chunk) {
		t.Errorf("%d bytes, the chunk %d times, %v", len(data), bytes.Count(data, []byte(chunk)), err)
	}
	for i, id := range ids {
		if got, left := stored(t, dir, id); !slices.Equal(got, turns[:2*i+2]) || left > 0 {
			t.Fatalf("prompt %d: %d messages, %d left out", i, len(got), left)
		}
	}
}

func TestPromptsContinueAfterACrash(t *testing.T) {
	dir := t.TempDir()
	first := openPrompts(t, dir, 1<<20).Put(conversation("one", "two"))
	f, err := os.OpenFile(filepath.Join(dir, PromptsName), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString(`{"id":"torn","content":"thr`)
	_ = f.Close()
	before, _ := os.ReadFile(filepath.Join(dir, PromptsName))
	p := openPrompts(t, dir, 1<<20)
	if again := p.Put(conversation("one", "two")); again != first {
		t.Errorf("the same prompt is %s and %s", first, again)
	}
	after, _ := os.ReadFile(filepath.Join(dir, PromptsName))
	if !bytes.HasPrefix(before, after) || len(after) >= len(before) {
		t.Errorf("%d bytes before, %d after", len(before), len(after))
	}
	if got, _ := stored(t, dir, p.Put(conversation("one", "two", "three"))); !slices.Equal(got, []string{"one", "two", "three"}) {
		t.Errorf("%q", got)
	}
}

func TestPromptsAreBoundedAndMarked(t *testing.T) {
	dir := t.TempDir()
	p := openPrompts(t, dir, 100)
	text := strings.Repeat("x", 80)
	first, second := p.Put(conversation(text)), p.Put(conversation(text, "short", strings.Repeat("y", 80), "end"))
	if got, left := stored(t, dir, first); left != 0 || !slices.Equal(got, []string{text}) {
		t.Errorf("%q", got)
	}
	if got, left := stored(t, dir, second); left != 1 || !slices.Equal(got, []string{text, "short", "", "end"}) {
		t.Errorf("%q, %d left out", got, left)
	}
	all, err := ReadPrompts(dir)
	if err != nil || all.Messages(second)[2].LeftOut != 80 {
		t.Errorf("%+v %v", all, err)
	}
	_ = p.Close()
	// The limit is one for all programs that work on the run.
	if got, left := stored(t, dir, openPrompts(t, dir, 100).Put(conversation(strings.Repeat("z", 30)))); left != 1 {
		t.Errorf("%q", got)
	}
}

func TestPromptsHaveNoSecrets(t *testing.T) {
	dir := t.TempDir()
	id := openPrompts(t, dir, 1<<20).Put(conversation("the password is hunter2"))
	if got, _ := stored(t, dir, id); !slices.Equal(got, []string{"the password is [secret]"}) {
		t.Errorf("%q", got)
	}
	data, _ := os.ReadFile(filepath.Join(dir, PromptsName))
	if bytes.Contains(data, []byte("hunter2")) {
		t.Errorf("%s", data)
	}
}

func TestCopyPrompts(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	p := openPrompts(t, from, 1<<20)
	one, _ := p.Put(conversation("a", "b")), p.Put(conversation("a", "b", "c", "d"))
	if err := CopyPrompts(from, to, []string{one, one, "unknown"}); err != nil {
		t.Fatal(err)
	}
	if got, _ := stored(t, to, one); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%q", got)
	}
	if data, _ := os.ReadFile(filepath.Join(to, PromptsName)); bytes.Count(data, []byte("\n")) != 4 {
		t.Errorf("%s", data)
	}
}

func TestNoPrompts(t *testing.T) {
	var p *Prompts
	if id := p.Put(conversation("a")); id != "" || p.Close() != nil {
		t.Errorf("id %q", id)
	}
	if all, err := ReadPrompts(t.TempDir()); err != nil || len(all.Messages("x")) != 0 {
		t.Errorf("%+v %v", all, err)
	}
	circle := v1.RunPrompts{Prompts: map[string]v1.PromptEnd{"a": {Before: "b"}, "b": {Before: "a"}}}
	if got := circle.Messages("a"); len(got) != 2 {
		t.Errorf("%d messages", len(got))
	}
}
