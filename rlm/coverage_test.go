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
		valid, ok := (&coverage{}).validUTF8(coverFile{file: f, size: int64(len(c.text))})
		if valid != c.valid || !ok {
			t.Errorf("%s: valid %v, %v", name, valid, ok)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
