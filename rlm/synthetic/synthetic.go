// Package synthetic makes tasks: questions with known answers over contexts of any size. Scripted models solve them
// through a real engine and real sandboxes. The tasks test that no part of a context is lost or invented at any size.
// They do not test the quality of a model.
//
// A scripted root model writes the code that a good model would write. A scripted sub-model answers only from its
// prompt, so that a piece that does not reach it is missing in the answer.
package synthetic

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// Task is a question with a known answer.
type Task struct {
	Name   string
	Query  string
	Answer string // the exact answer
	Size   int64  // approximate characters of the context
	// ReadsAll is set if the root model sends all of the context to sub-models.
	ReadsAll bool

	Root, Sub *llm.Scripted

	docs  []string // the context; nil: write writes it
	write func(w *bufio.Writer)
}

// All returns one task of each kind with contexts of about size characters.
func All(size int64, seed uint64) []*Task {
	return []*Task{
		Needle(size, seed),
		Needles(size, 100, seed),
		Aggregate(size, seed),
		Pairs(size, seed),
		MultiHop(size, 1000, 6, seed),
	}
}

// Input returns the context of the task. It writes a large one to a file in dir.
func (t *Task) Input(dir string) (rlm.Input, error) {
	if t.docs != nil {
		return rlm.List(t.docs), nil
	}
	path := filepath.Join(dir, t.Name+".txt")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return rlm.Input{}, fmt.Errorf("write the context of %s: %w", t.Name, err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	t.write(w)
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		return rlm.Input{}, fmt.Errorf("write the context of %s: %w", t.Name, err)
	}
	return rlm.File(path), nil
}

// Report is the outcome of a task.
type Report struct {
	Task     string        `json:"task"`
	Size     int64         `json:"size"`
	Correct  bool          `json:"correct"`
	Answer   string        `json:"answer"`
	Calls    int64         `json:"calls"`
	Turns    int           `json:"turns"`
	Wall     time.Duration `json:"wall_ns"`
	Coverage float64       `json:"coverage_percent"`
}

// Solve runs the task with an engine with the given options. It overrides Models, Limits and PlainBelow.
func (t *Task) Solve(ctx context.Context, o rlm.Options, dir string) (*Report, error) {
	in, err := t.Input(dir)
	if err != nil {
		return nil, err
	}
	o.Models = func(depth int, _ string) (llm.Model, error) {
		if depth == 0 {
			return t.Root, nil
		}
		return t.Sub, nil
	}
	o.Limits = v1.RunLimits{
		Tokens: new(int64(v1.NoLimit)),
		Time:   new(v1.Duration(v1.NoLimit)),
		Reply:  new(int64(v1.NoLimit)),
	}
	o.PlainBelow = -1
	e, err := rlm.New(o)
	if err != nil {
		return nil, err
	}
	res, err := e.Run(ctx, rlm.Question{Query: t.Query, Inputs: []rlm.Input{in}})
	if err != nil {
		return nil, fmt.Errorf("solve %s: %w", t.Name, err)
	}
	r := &Report{
		Task:    t.Name,
		Size:    t.Size,
		Correct: res.Answer == t.Answer,
		Answer:  res.Answer,
		Calls:   res.Usage.Calls,
		Turns:   res.Turns,
		Wall:    res.Wall,
	}
	if res.Coverage != nil {
		r.Coverage = res.Coverage.Percent
	}
	return r, nil
}

// --- words ---

var (
	words = strings.Fields(
		"river stone window garden letter morning bridge candle forest hammer island jacket kettle ladder mirror needle orchard pencil quarry ribbon saddle temple umbrella valley whistle",
	)
	names = strings.Fields(
		"Ada Bela Chen Dora Emil Faye Goran Hana Ivo Jana Kofi Lena Milo Nora Omar Pia Quin Rosa Sven Tara",
	)
	kindOf = map[string]string{
		"apple":  "fruit",
		"pear":   "fruit",
		"plum":   "fruit",
		"saw":    "tool",
		"drill":  "tool",
		"wrench": "tool",
		"novel":  "book",
		"atlas":  "book",
		"diary":  "book",
	}
	products = slices.Sorted(maps.Keys(kindOf))
)

func pick(r *rand.Rand, list []string) string { return list[r.IntN(len(list))] }

// filler returns a line without information. The number makes each line unique.
func filler(r *rand.Rand, n int64) string {
	return fmt.Sprintf("%09d The %s by the %s kept a %s and a %s.\n",
		n, pick(r, words), pick(r, words), pick(r, words), pick(r, words))
}

// newRand returns a generator that depends only on the seed and a name.
func newRand(seed uint64, what string) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, b := range []byte(what) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(seed, h)) //nolint:gosec // a task must be reproducible
}

// scriptedRoot returns a root model that replies with the cells one after the other.
func scriptedRoot(name string, cells ...string) *llm.Scripted {
	rules := make([]llm.Rule, len(cells))
	for i, c := range cells {
		rules[i] = llm.Rule{Nth: i + 1, Reply: "```repl\n" + strings.TrimSpace(c) + "\n```\n"}
	}
	// Nth counts the calls that match a rule, and these rules match every call.
	return llm.NewScripted(name, rules...)
}

// scriptedSub returns a sub-model that answers only from its prompt.
func scriptedSub(name string, answer func(prompt string) string) *llm.Scripted {
	return llm.NewScripted(name, llm.Rule{Respond: func(_ context.Context, req llm.Request) (string, error) {
		return answer(req.Messages[len(req.Messages)-1].Content), nil
	}}).WithInfo(llm.Info{Window: 1 << 22, Output: 1 << 20})
}

func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // impossible: only maps of strings and numbers are passed
	}
	return string(data)
}

// readAllCell is a cell that sends every piece of the context to a sub-model and collects the replies.
const readAllCell = `
import json
parts = chunks(context, 200000)
found = [json.loads(r) for r in llm_query_batched(["Answer as JSON. " + question + "\n\n" + p for p in parts])]
print(len(parts), "parts")`

// --- tasks ---

// Needle returns a task that asks for one sentence hidden in the context.
func Needle(size int64, seed uint64) *Task {
	r := newRand(seed, "needle")
	code, at := fmt.Sprint(100000+r.IntN(900000)), int64(float64(size)*r.Float64())
	t := &Task{Name: "needle", Query: "What is the access code of the vault?", Answer: code, Size: size}
	t.write = func(w *bufio.Writer) {
		r := newRand(seed, "needle text")
		var n, written int64
		hidden := false
		for written < size {
			line := filler(r, n)
			if !hidden && written >= at {
				line, hidden = fmt.Sprintf("%09d The access code of the vault is %s.\n", n, code), true
			}
			n, written = n+1, written+writeLine(w, line)
		}
		if !hidden {
			writeLine(w, fmt.Sprintf("%09d The access code of the vault is %s.\n", n, code))
		}
	}
	t.Root = scriptedRoot("needle", `
hits = search("access code of the vault", window=300)
print(len(context), len(hits))`, `FINAL(llm_query("What is the access code?\n" + hits[0][1]))`)
	re := regexp.MustCompile(`access code of the vault is (\d+)`)
	t.Sub = scriptedSub("needle-sub", func(p string) string {
		if m := re.FindStringSubmatch(p); m != nil {
			return m[1]
		}
		return "not in this text"
	})
	return t
}

func writeLine(w io.StringWriter, s string) int64 {
	n, _ := w.WriteString(s) // a bufio.Writer returns its error from Flush
	return int64(n)
}

// Needles returns a task that asks for all of count hidden sentences.
func Needles(size int64, count int, seed uint64) *Task {
	r := newRand(seed, "needles")
	at, want := make([]int64, count), map[string]int{}
	text := make([]string, count)
	for i := range count {
		key, value := fmt.Sprintf("%s-%03d", pick(r, words), i), 1000+r.IntN(9000)
		at[i], want[key] = int64(float64(size)*r.Float64()), value
		text[i] = fmt.Sprintf("The magic number of %s is %d.", key, value)
	}
	slices.Sort(at)
	t := &Task{
		Name:     "needles",
		Query:    "List the magic number of everything that has one.",
		Answer:   pythonJSON(want),
		Size:     size,
		ReadsAll: true,
	}
	t.write = func(w *bufio.Writer) {
		r := newRand(seed, "needles text")
		var n, written int64
		next := 0
		for written < size || next < count {
			line := filler(r, n)
			if next < count && (written >= at[next] || written >= size) {
				line = fmt.Sprintf("%09d %s\n", n, text[next])
				next++
			}
			n, written = n+1, written+writeLine(w, line)
		}
	}
	t.Root = scriptedRoot("needles", `question = "Which magic numbers are named here?"`+readAllCell, `
merged = {}
for f in found:
    merged.update(f)
FINAL(dict(sorted(merged.items())))`)
	re := regexp.MustCompile(`magic number of (\S+) is (\d+)`)
	t.Sub = scriptedSub("needles-sub", func(p string) string {
		out := map[string]json.Number{}
		for _, m := range re.FindAllStringSubmatch(p, -1) {
			out[m[1]] = json.Number(m[2])
		}
		return asJSON(out)
	})
	return t
}

// pythonJSON returns m as JSON in the format of Python's json module, with sorted keys.
func pythonJSON(m map[string]int) string {
	parts := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s: %d", asJSON(k), m[k]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// Aggregate returns a task that asks for a count over all lines, each of which must be read.
func Aggregate(size int64, seed uint64) *Task {
	line := func(r *rand.Rand, n int64) (string, string) {
		p := pick(r, products)
		return fmt.Sprintf("%09d On that %s %s bought one %s.\n", n, pick(r, words), pick(r, names), p), kindOf[p]
	}
	t := &Task{Name: "aggregate", Query: "How many fruits, tools and books were bought?", Size: size, ReadsAll: true}
	want := map[string]int{}
	r := newRand(seed, "aggregate")
	var n, written int64
	for written < size {
		s, kind := line(r, n)
		want[kind]++
		n, written = n+1, written+int64(len(s))
	}
	t.Answer = pythonJSON(want)
	t.write = func(w *bufio.Writer) {
		r := newRand(seed, "aggregate")
		var n, written int64
		for written < size {
			s, _ := line(r, n)
			n, written = n+1, written+writeLine(w, s)
		}
	}
	t.Root = scriptedRoot("aggregate", `question = "How many of each kind of thing were bought?"`+readAllCell, `
from collections import Counter
total = Counter()
for f in found:
    total.update(f)
FINAL(dict(sorted(total.items())))`)
	re := regexp.MustCompile(`bought one (\w+)\.`)
	t.Sub = scriptedSub("aggregate-sub", func(p string) string {
		out := map[string]int{}
		for _, m := range re.FindAllStringSubmatch(p, -1) {
			out[kindOf[m[1]]]++
		}
		return asJSON(out)
	})
	return t
}

// Pairs returns a task whose answer depends on pairs of lines, wherever in the context they are.
func Pairs(size int64, seed uint64) *Task {
	type visit struct{ who, where string }
	line := func(r *rand.Rand, n int64) (string, visit) {
		v := visit{fmt.Sprintf("%s-%d", pick(r, names), r.IntN(50)), fmt.Sprintf("%s-%d", pick(r, words), r.IntN(2000))}
		return fmt.Sprintf("%09d %s was seen at the %s.\n", n, v.who, v.where), v
	}
	t := &Task{Name: "pairs", Query: "How many pairs of people were seen at the same place?", Size: size, ReadsAll: true}
	ids, at := map[string]int{}, map[string][]int{}
	r := newRand(seed, "pairs")
	var n, written int64
	for written < size {
		s, v := line(r, n)
		if _, ok := ids[v.who]; !ok {
			ids[v.who] = len(ids)
		}
		at[v.where] = append(at[v.where], ids[v.who])
		n, written = n+1, written+int64(len(s))
	}
	met, pairs := make([]bool, len(ids)*len(ids)), 0
	for _, people := range at {
		for i, a := range people {
			for _, b := range people[i+1:] {
				pair := max(a, b)*len(ids) + min(a, b)
				if a != b && !met[pair] {
					met[pair] = true
					pairs++
				}
			}
		}
	}
	t.Answer = fmt.Sprint(pairs)
	t.write = func(w *bufio.Writer) {
		r := newRand(seed, "pairs")
		var n, written int64
		for written < size {
			s, _ := line(r, n)
			n, written = n+1, written+writeLine(w, s)
		}
	}
	// There can be millions of visits. Therefore the code stores people as bits, and does not store replies.
	t.Root = scriptedRoot("pairs", `
import json
parts = chunks(context, 200000)
ids, at = {}, {}
for i in range(0, len(parts), 25):
    for reply in llm_query_batched(["Answer as JSON. Who was seen where?\n\n" + p for p in parts[i:i + 25]]):
        for where, people in json.loads(reply).items():
            for who in people:
                at[where] = at.get(where, 0) | 1 << ids.setdefault(who, len(ids))
print(len(parts), "parts")`, `
met = [0] * len(ids)
for here in at.values():
    rest = here
    while rest:
        one = rest & -rest
        met[one.bit_length() - 1] |= here
        rest ^= one
FINAL(str(sum(bin(m).count("1") - 1 for m in met) // 2))`)
	re := regexp.MustCompile(`\d{9} (\S+) was seen at the (\S+)\.`)
	t.Sub = scriptedSub("pairs-sub", func(p string) string {
		out := map[string][]string{}
		for _, m := range re.FindAllStringSubmatch(p, -1) {
			out[m[2]] = append(out[m[2]], m[1])
		}
		return asJSON(out)
	})
	return t
}

// MultiHop returns a task that asks for the end of a trail through many documents. Each document names only the next.
func MultiHop(size int64, documents, hops int, seed uint64) *Task {
	r := newRand(seed, "multihop")
	order := r.Perm(documents)
	hops = min(hops, documents-1)
	t := &Task{Name: "multihop", Size: size}
	place := func(i int) string { return fmt.Sprintf("%s-%04d", words[i%len(words)], i) }
	next := map[int]int{}
	for i := range hops {
		next[order[i]] = order[i+1]
	}
	each := size / int64(documents)
	for i := range documents {
		var b strings.Builder
		fmt.Fprintf(&b, "Document about %s.\n", place(i))
		hidden := r.Int64N(max(1, each))
		placed := false
		for n := int64(0); int64(b.Len()) < each || !placed; n++ {
			if !placed && int64(b.Len()) >= hidden {
				placed = true
				if to, ok := next[i]; ok {
					fmt.Fprintf(&b, "The trail leads from %s to %s.\n", place(i), place(to))
				} else {
					fmt.Fprintf(&b, "No trail leads on from %s.\n", place(i))
				}
			}
			b.WriteString(filler(r, int64(i)*1_000_000+n))
		}
		t.docs = append(t.docs, b.String())
	}
	t.Query = fmt.Sprintf("Where does the trail end that begins at %s?", place(order[0]))
	t.Answer = place(order[hops])
	t.Root = scriptedRoot("multihop", fmt.Sprintf(`
here, steps = %q, 0
while steps < 100:
    doc = next(d for d in context if d.startswith("Document about " + here + "."))
    reply = llm_query("Where does the trail lead from " + here + "? Say END if nowhere.\n" + doc)
    print(here, "->", reply)
    if reply == "END":
        break
    here, steps = reply, steps + 1`, place(order[0])), `FINAL(here)`)
	re := regexp.MustCompile(`The trail leads from \S+ to (\S+)\.`)
	t.Sub = scriptedSub("multihop-sub", func(p string) string {
		if m := re.FindStringSubmatch(p); m != nil {
			return m[1]
		}
		return "END"
	})
	return t
}
