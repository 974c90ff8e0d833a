package gate

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/gate/terms"
)

const benchTerms = 100_000

// words returns a generator of random words that look like natural language.
func words(rng *rand.Rand) func() string {
	syllables := strings.Fields("ba con de fi gra ho in ju ker lo mi net or pre qua re so ter un vi xa zo")
	return func() string {
		var b strings.Builder
		for range 2 + rng.IntN(3) {
			b.WriteString(syllables[rng.IntN(len(syllables))])
		}
		return b.String()
	}
}

// benchThesaurus returns a thesaurus of 100,000 terms as JSON.
func benchThesaurus() []byte {
	rng := rand.New(rand.NewPCG(1, 1))
	word := words(rng)
	var b strings.Builder
	b.WriteString(`{"name": "bench", "data": {`)
	seen := map[string]bool{}
	for len(seen) < benchTerms {
		term := word()
		for range rng.IntN(3) {
			term += " " + word()
		}
		if seen[term] {
			continue
		}
		if len(seen) > 0 {
			b.WriteByte(',')
		}
		seen[term] = true
		fmt.Fprintf(&b, `%q: {"id": %d, "nterm": "concept %d", "url": "https://example.com/%d"}`, term, len(seen), len(seen)/3, len(seen))
	}
	b.WriteString("}}")
	return []byte(b.String())
}

// benchCode returns 1 MiB of text in which about every second word is known.
func benchCode() string {
	word := words(rand.New(rand.NewPCG(2, 2)))
	var b strings.Builder
	for b.Len() < 1<<20 {
		fmt.Fprintf(&b, "%s = %s(%q, other_%s)\n", word(), word(), word(), word())
	}
	return b.String()
}

func BenchmarkThesaurusLoad(b *testing.B) {
	data := benchThesaurus()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var th *terms.Thesaurus
	for b.Loop() {
		var err error
		if th, err = terms.Parse("bench.json", data); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MB-held")
	b.ReportMetric(float64(after.Sys)/(1<<20), "MB-process")
	runtime.KeepAlive(th)
}

func BenchmarkJudge1MB(b *testing.B) {
	th, err := terms.Parse("bench.json", benchThesaurus())
	if err != nil {
		b.Fatal(err)
	}
	code := benchCode()
	for _, strictness := range []terms.Strictness{terms.Permissive, terms.Normal, terms.Strict} {
		b.Run(string(strictness), func(b *testing.B) {
			g, err := terms.NewGraph(th, terms.GraphOptions{Strictness: strictness})
			if err != nil {
				b.Fatal(err)
			}
			c, err := New(Options{Graphs: map[string]*terms.Graph{"": g}})
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(code)))
			for b.Loop() {
				if _, err := c.Judge(b.Context(), Request{Language: Python, Code: code}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// snippet returns the first piece of harmless code of a file.
func snippet(b *testing.B, name string) string {
	b.Helper()
	data, err := os.ReadFile("rules/testdata/benign/" + name)
	if err != nil {
		b.Fatal(err)
	}
	code, _, _ := strings.Cut(string(data), "\n-----8<-----\n")
	return code
}

func BenchmarkRules(b *testing.B) {
	c := defaultChecker(b, Options{})
	for name, req := range map[string]Request{
		"bash":   {Language: Bash, Code: snippet(b, "bash.txt")},
		"python": {Language: Python, Code: snippet(b, "python.txt")},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := c.Judge(b.Context(), req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
