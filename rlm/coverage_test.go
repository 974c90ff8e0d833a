package rlm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// prose returns a text in which no passage occurs twice.
func prose(size int, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	for b.Len() < size {
		fmt.Fprintf(&b, "%x went to %x. ", r.Uint64(), r.Uint32())
	}
	return b.String()[:size]
}

func coverageOf(t *testing.T, inputs ...Input) *coverage {
	t.Helper()
	return coverageWithin(t, maxCoverFiles, maxCoverBytes, inputs...)
}

func coverageWithin(t *testing.T, files int, bytes int64, inputs ...Input) *coverage {
	t.Helper()
	s, err := stage(t.Context(), t.TempDir()+"/context", inputs)
	if err != nil {
		t.Fatal(err)
	}
	c := newCoverage(s, files, bytes)
	t.Cleanup(c.close)
	<-c.indexed
	return c
}

func TestCoverageFindsWhatWasRead(t *testing.T) {
	text, other := prose(1<<20, 1), prose(1<<16, 2)
	c := coverageOf(t, Text(text), List([]string{other[:1000], other[1000:]}))
	same(t, "at first", c.report(t.Context()).Read, 0)

	c.record("Read this:\n"+text[5000:9000]+"\nWhat is it?", readByCall)
	got := c.report(t.Context())
	same(t, "one piece", got.Read, 4000)
	same(t, "its start", got.Spans[0].Start, 5000)
	same(t, "its end", got.Spans[0].End, 9000)

	c.record(text[8000:10000]+" and "+text[200000:201000], readByCall)
	c.record(other[500:900], readByModel)
	got = c.report(t.Context())
	same(t, "pieces", got.Read, 5000+1000+400)
	same(t, "by the model", got.ByModel, 400)
	same(t, "spans", len(got.Spans), 3)
	same(t, "the file of the last", got.Spans[2].File, "context_1")

	c.record(prose(1<<16, 3), readByModel)
	same(t, "what is not of the context", c.report(t.Context()).Read, 6400)

	c.record(text, readByCall)
	same(t, "everything", c.report(t.Context()).ByCalls, int64(len(text)))
}

func TestCoverageOfManyPiecesAddsUp(t *testing.T) {
	text := prose(1<<20, 4)
	c := coverageOf(t, Text(text))
	for at := 0; at < len(text); at += 1 << 14 {
		c.record("chunk: "+text[at:min(len(text), at+1<<14)], readByCall)
	}
	if p := c.report(t.Context()).Percent; p < 99.9 {
		t.Errorf("%f percent of a context that was read whole", p)
	}
	same(t, "spans", len(c.report(t.Context()).Spans), 1)
}

func TestCoverageNamesWhatIsNotCounted(t *testing.T) {
	text := prose(1<<14, 5)
	dir := t.TempDir()
	write := func(name, data string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	wide := "\xff\xfe" + strings.Join(strings.Split(text[:500], ""), "\x00") + "\x00"
	pdf, utf16, plain := write("a.pdf", "%PDF-1.4\n"+text[:91]), write("b.txt", wide), write("c.txt", text)
	more := File(write("d.txt", text[:300]))
	of := func(why OmittedWhy, files int, bytes int64) string {
		return fmt.Sprint([]Omitted{{Why: why, Files: files, Bytes: bytes}})
	}
	ofAll := fmt.Sprint([]Omitted{{Why: v1.OmittedPDF, Files: 1, Bytes: 100}, {Why: v1.OmittedEncoding, Files: 1, Bytes: 1002}, {Why: v1.OmittedBound, Files: 1, Bytes: 300}})
	for _, c := range []struct {
		name    string
		files   int
		bytes   int64
		inputs  []Input
		counted int64
		omitted string
	}{
		{"nothing", maxCoverFiles, maxCoverBytes, []Input{File(plain)}, 1 << 14, "[]"},
		{"a PDF", maxCoverFiles, maxCoverBytes, []Input{File(plain), File(pdf)}, 1 << 14, of(v1.OmittedPDF, 1, 100)},
		{"nothing but a PDF", maxCoverFiles, maxCoverBytes, []Input{File(pdf)}, 0, of(v1.OmittedPDF, 1, 100)},
		{"UTF-16", maxCoverFiles, maxCoverBytes, []Input{File(plain), File(utf16)}, 1 << 14, of(v1.OmittedEncoding, 1, 1002)},
		{"too many files", 1, maxCoverBytes, []Input{File(plain), more, more}, 1 << 14, of(v1.OmittedBound, 2, 600)},
		{"too many bytes", maxCoverFiles, 1<<14 + 299, []Input{File(plain), more}, 1 << 14, of(v1.OmittedBound, 1, 300)},
		{"a directory with some of all", 1, maxCoverBytes, []Input{File(dir)}, 1 << 14, ofAll},
	} {
		t.Run(c.name, func(t *testing.T) {
			cover := coverageWithin(t, c.files, c.bytes, c.inputs...)
			cover.record(text, readByCall)
			got := cover.report(t.Context())
			same(t, "counted", got.Bytes, c.counted)
			same(t, "read", got.Read, c.counted)
			same(t, "omitted", fmt.Sprint(got.Omitted), c.omitted)
		})
	}
}

func TestTextThatIsNotUTF8IsFoundAnywhere(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		valid bool
	}{
		"empty":                       {"", true},
		"ASCII":                       {strings.Repeat("x", 3*readSize), true},
		"characters across reads":     {strings.Repeat("x€", readSize), true},
		"the same, one byte later":    {"y" + strings.Repeat("x€😀", readSize), true},
		"cp1252 at the beginning":     {"\xe9" + strings.Repeat("x", readSize), false},
		"cp1252 at the end":           {strings.Repeat("x€", readSize) + "caf\xe9", false},
		"cp1252 at the end of a read": {strings.Repeat("x", readSize-1) + "\xe9 and more", false},
		"an incomplete character":     {strings.Repeat("x", readSize) + "\xe2\x82", false},
	} {
		file := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		valid, ok := (&coverage{}).indexFile(coverFile{file: f, size: int64(len(c.text))}, map[uint64]int64{}, make([]byte, readSize))
		if valid != c.valid || !ok {
			t.Errorf("%s: valid %v, %v", name, valid, ok)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// repetitive returns a text of lines of which many occur several times.
func repetitive(rng *rand.Rand, lines int) string {
	var b strings.Builder
	for range lines {
		switch rng.IntN(4) {
		case 0:
			fmt.Fprintf(&b, "%016x went to %08x and came back\n", rng.Uint64(), rng.Uint32())
		case 1:
			fmt.Fprintf(&b, "INFO connection %d of the server was accepted from the network\n", rng.IntN(3))
		default:
			b.WriteString("DEBUG nothing happened, which is what we expected to happen here\n")
		}
	}
	return b.String()
}

// Of a context with passages that occur several times, coverage reports only bytes that are in a text, and not more of
// them than are in the text.
func TestCoverageNeverReportsMoreThanWasRead(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 9))
		context := repetitive(rng, 20+rng.IntN(400))
		slice := func() string {
			at := rng.IntN(len(context))
			return context[at:min(len(context), at+rng.IntN(3000))]
		}
		texts := []string{context, slice(), slice() + slice(), "before " + slice() + " between " + slice() + " after"}
		inContext := map[string]bool{}
		for at := 0; at+hashWindow <= len(context); at++ {
			inContext[context[at:at+hashWindow]] = true
		}
		for i, text := range texts {
			c := coverageOf(t, Text(context))
			c.record(text, readByCall)
			got := c.report(t.Context())
			inText, most, end := map[string]bool{}, int64(0), 0
			for at := 0; at+hashWindow <= len(text); at++ {
				window := text[at : at+hashWindow]
				inText[window] = true
				if inContext[window] {
					most, end = most+int64(at+hashWindow-max(end, at)), at+hashWindow
				}
			}
			if got.Read > most {
				t.Errorf("seed %d, text %d: %d bytes reported, and %d of the text are in the context", seed, i, got.Read, most)
			}
			if i == 0 && got.Read != int64(len(context)) {
				t.Errorf("seed %d: %d of %d bytes of a context that was read whole", seed, got.Read, len(context))
			}
			known := make([]bool, len(context))
			for at := 0; at+hashWindow <= len(context); at++ {
				if inText[context[at:at+hashWindow]] {
					for j := range hashWindow {
						known[at+j] = true
					}
				}
			}
			for _, s := range got.Spans {
				for at := s.Start; at < s.End; at++ {
					if !known[at] {
						t.Fatalf("seed %d, text %d: byte %d is reported, and is not in the text", seed, i, at)
					}
				}
			}
		}
	}
}

// In a text whose pieces each match a longer passage of the context, matches are extended backward again and again. There
// is a bound, after which a match does not extend over the one before it.
func TestCoverageBoundsHowOftenMatchesAreExtendedBackward(t *testing.T) {
	text := prose(100_000, 6)
	var context strings.Builder
	for seed := range uint64(40) {
		text += prose(80, 100+seed)
		context.WriteString(text + prose(100, 200+seed))
	}
	c := coverageOf(t, Text(context.String()))
	c.record(text, readByCall)
	if read := c.report(t.Context()).Read; read < int64(len(text))*9/10 || read > int64(len(text)) {
		t.Errorf("%d bytes of a text of %d bytes are reported", read, len(text))
	}
}

func BenchmarkCoverage(b *testing.B) {
	const size = 10 << 20
	rng := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct{ name, text string }{
		{"unique", prose(size, 1)},
		{"log", repetitive(rng, size/60)},
		{"one character", strings.Repeat("a", size)},
		{"one line", strings.Repeat("the same line again and again\n", size/30)},
	} {
		for _, piece := range []int{200, 20_000, size} {
			b.Run(fmt.Sprintf("%s/%d", c.name, piece), func(b *testing.B) {
				s, err := stage(b.Context(), b.TempDir()+"/context", []Input{Text(c.text)})
				if err != nil {
					b.Fatal(err)
				}
				cover := newCoverage(s, maxCoverFiles, maxCoverBytes)
				defer cover.close()
				<-cover.indexed
				b.SetBytes(size)
				for b.Loop() {
					for _, at := range rng.Perm(size / piece) { // out of order, as parallel calls are
						cover.record("read: "+c.text[at*piece:min(len(c.text), (at+1)*piece)], readByCall)
					}
					cover.report(b.Context())
				}
			})
		}
	}
}
