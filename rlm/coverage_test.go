package rlm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// prose is a text in which no passage comes twice.
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
	s, err := stage(t.Context(), t.TempDir()+"/context", inputs)
	if err != nil {
		t.Fatal(err)
	}
	c := newCoverage(s)
	t.Cleanup(c.close)
	<-c.built
	return c
}

func TestCoverageFindsWhatWasRead(t *testing.T) {
	text, other := prose(1<<20, 1), prose(1<<16, 2)
	c := coverageOf(t, Text(text), List([]string{other[:1000], other[1000:]}))
	same(t, "at first", c.report(t.Context()).Read, 0)

	c.note("Read this:\n"+text[5000:9000]+"\nWhat is it?", readByCall)
	got := c.report(t.Context())
	same(t, "one piece", got.Read, 4000)
	same(t, "its start", got.Spans[0].Start, 5000)
	same(t, "its end", got.Spans[0].End, 9000)

	c.note(text[8000:10000]+" and "+text[200000:201000], readByCall)
	c.note(other[500:900], readByModel)
	got = c.report(t.Context())
	same(t, "pieces", got.Read, 5000+1000+400)
	same(t, "by the model", got.ByModel, 400)
	same(t, "spans", len(got.Spans), 3)
	same(t, "the file of the last", got.Spans[2].File, "context_1")

	c.note(prose(1<<16, 3), readByModel)
	same(t, "what is not of the context", c.report(t.Context()).Read, 6400)

	c.note(text, readByCall)
	same(t, "everything", c.report(t.Context()).ByCalls, int64(len(text)))
}

func TestCoverageOfManyPiecesAddsUp(t *testing.T) {
	text := prose(1<<20, 4)
	c := coverageOf(t, Text(text))
	for at := 0; at < len(text); at += 1 << 14 {
		c.note("chunk: "+text[at:min(len(text), at+1<<14)], readByCall)
	}
	if p := c.report(t.Context()).Percent; p < 99.9 {
		t.Errorf("%f percent of a context that was read whole", p)
	}
	same(t, "spans", len(c.report(t.Context()).Spans), 1)
}
