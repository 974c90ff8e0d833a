package rlm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/llm"
)

// askCache uses a cache as a run does: it makes a call if the reply is not cached.
func askCache(t *testing.T, c *Cache, key, pay string) (string, bool) {
	t.Helper()
	r, err := c.get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if r != nil {
		return r.Text, true
	}
	c.put(key, &llm.Reply{Text: pay, Finish: llm.FinishStop})
	return pay, false
}

func TestACacheOnDiskIsFoundByTheNextProgram(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "replies")
	open := func() *Cache {
		c, err := OpenCache(dir, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := open()
	if _, known := askCache(t, first, "q", "one"); known {
		t.Fatal("an empty cache returned a reply")
	}
	next := open()
	text, known := askCache(t, next, "q", "two")
	same(t, "text", text, "one")
	same(t, "known", known, true)
	_, known = askCache(t, next, "other", "x")
	same(t, "another question is known", known, false)

	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.WriteFile(f, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, known = askCache(t, open(), "q", "three")
	same(t, "what stands in for a damaged reply", text, "three")
	same(t, "a damaged reply is known", known, false)
}

func TestWhatAFallBackSaidIsNotKeptForWhoAsksTheFirstModelAlone(t *testing.T) {
	a, b := llm.NewScripted("a"), llm.NewScripted("b")
	place := func(m llm.Model) string { return (&modelCall{model: m}).cacheKey("key") }
	same(t, "the same model", place(llm.NewScripted("a")), place(a))
	same(t, "the same list", place(llm.Fallback(a, b)), place(llm.Fallback(a, b)))
	for name, m := range map[string]llm.Model{"the first": a, "the second": b, "another order": llm.Fallback(b, a), "a longer list": llm.Fallback(a, b, a)} {
		if place(m) == place(llm.Fallback(a, b)) {
			t.Errorf("%s gets the reply of the fallback list", name)
		}
	}
}

func TestACacheOnDiskStaysWithinItsSize(t *testing.T) {
	dir := t.TempDir()
	c, err := OpenCache(dir, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 4<<10)
	askCache(t, c, "used again", long)
	used := c.disk.path("used again")
	for i := range 100 {
		askCache(t, c, string(rune('a'+i%26))+strings.Repeat("k", i), long)
		// As if the reply had been used now.
		soon := time.Now().Add(time.Hour)
		if err := os.Chtimes(used, soon, soon); err != nil {
			t.Fatalf("a reply that is used again and again was removed after %d others: %v", i, err)
		}
	}
	var sum int64
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	if sum > 64<<10 || len(files) < 5 {
		t.Errorf("%d bytes in %d files", sum, len(files))
	}
}
