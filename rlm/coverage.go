package rlm

import (
	"context"
	"maps"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The spans of the context that models have read are found by content. However code cuts, filters or joins the context,
// a piece that reaches a model still has the same bytes. The context is read once, in the background. A rolling hash is
// computed over its bytes, and an index stores the places of some hash values. The hash value itself decides whether
// its place is stored, so that equal bytes are selected wherever they are. The same hash is computed over each text
// that is sent to a model. Where a value is in the index, text and context are compared byte by byte in both
// directions.
//
// Therefore every span that is reported was read. Very short pieces may be missed. A passage that occurs several times
// counts for the place at which the text around it is equal too, or else for the first place in the index. Files whose
// bytes are not those of their text, and files beyond the bounds below, are not indexed; the report counts them as
// omitted.

const (
	hashWindow = 22      // bytes that are hashed; see roller
	hashEqual  = 16      // bytes, the last ones of a window, that are equal if the hash values are
	maxPlaces  = 1 << 19 // approximate number of places in the index
	minSpan    = 32      // bytes; shorter spans are not reported
	readSize   = 64 << 10
	// maxCoverBytes and maxCoverFiles bound the context that is indexed. Each file is kept open.
	maxCoverBytes = 8 << 30
	maxCoverFiles = 4096
	// maxCoverText is the number of bytes of one text that are searched.
	maxCoverText = 64 << 20
	maxSpans     = 1000
	// maxBackward bounds how often a byte of a text is compared again when matches are extended backward, on average.
	maxBackward = 16
	// maxPending bounds the texts that wait for the index, in bytes. Further texts are not counted.
	maxPending = 32 << 20
)

// readBy is a set of bits: which models read a span.
type readBy uint8

const (
	readByModel readBy = 1 << iota // by the model of the run
	readByCall                     // by a sub-call, or by the model of a child run
)

// omit adds a file to a list of omitted files.
func omit(list []Omitted, why OmittedWhy, bytes int64) []Omitted {
	i := slices.IndexFunc(list, func(o Omitted) bool { return o.Why == why })
	if i < 0 {
		i, list = len(list), append(list, Omitted{Why: why})
	}
	list[i].Files++
	list[i].Bytes += bytes
	return list
}

// coverage finds the spans of the context that models have read. A nil *coverage does nothing.
type coverage struct {
	files []coverFile
	total int64
	// omitted counts the files of the context that are not in files.
	omitted []Omitted
	mask    uint64 // the index has the hash values in which these bits are zero
	stop    chan struct{}
	indexed chan struct{} // closed when the index is complete, and the texts that waited for it are searched

	places map[uint64]int64 // the index: hash value to offset of the end of its window; set before indexed is closed

	mu           sync.Mutex
	model        []extent      // guarded by mu; sorted, and not adjacent
	calls        []extent      // guarded by mu
	pending      []pendingText // guarded by mu; texts that wait for the index
	pendingBytes int           // guarded by mu; bytes of pending
	ready        bool          // guarded by mu; the index is complete, and no text is pending
	other        []coverFile   // guarded by mu; files of files that are not UTF-8
}

// coverFile is one file of the context. Its offset is the total size of the files before it.
type coverFile struct {
	name   string
	file   *os.File
	offset int64
	size   int64
}

type extent struct{ start, end int64 }

type pendingText struct {
	text string
	by   readBy
}

// newCoverage starts to index at most the given number of files and bytes of s.
func newCoverage(s *staged, files int, bytes int64) *coverage {
	c := &coverage{
		stop:    make(chan struct{}),
		indexed: make(chan struct{}),
		omitted: slices.Clone(s.omitted),
	}
	for _, p := range s.plain {
		if len(c.files) >= files || c.total+p.bytes > bytes {
			c.omitted = omit(c.omitted, v1.OmittedBound, p.bytes)
			continue
		}
		f, err := os.Open(filepath.Join(s.dir, filepath.FromSlash(p.name)))
		if err != nil {
			c.omitted = omit(c.omitted, v1.OmittedUnreadable, p.bytes)
			continue
		}
		c.files = append(c.files, coverFile{p.name, f, c.total, p.bytes})
		c.total += p.bytes
	}
	density := int64(8) // the index has one of this number of places
	for c.total/density > maxPlaces {
		density *= 2
	}
	c.mask = bits.Reverse64(uint64(density - 1)) // the highest bits depend on most bytes of the window
	go c.index()
	return c
}

// close stops the indexing and closes the files.
func (c *coverage) close() {
	if c == nil {
		return
	}
	close(c.stop)
	<-c.indexed
	for _, f := range c.files {
		_ = f.file.Close()
	}
}

// roller is a rolling hash over the last hashWindow bytes. Each byte shifts the hash, so that the bytes before the
// window are no longer part of it. This takes a fifth of the time of a hash that subtracts them, and each run hashes
// its whole context. The first bytes of the window decide only a few bits: they may differ where hash values are equal.
type roller struct {
	hash uint64
	n    int
}

const rollShift = 3

// rollValues are the random values of the bytes.
var rollValues = func() (out [256]uint64) {
	r := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // not a secret
	for i := range out {
		out[i] = r.Uint64()
	}
	return out
}()

// roll adds the next byte and returns the hash. ok is false until the window is full.
func (r *roller) roll(b byte) (hash uint64, ok bool) {
	r.hash = r.hash<<rollShift + rollValues[b]
	r.n++
	return r.hash, r.n >= hashWindow
}

// indexFile adds the places of a file to places. It reports whether the file is UTF-8: otherwise its text in the
// interpreter has other bytes. ok is false if close was called.
func (c *coverage) indexFile(f coverFile, places map[uint64]int64, buf []byte) (valid, ok bool) {
	hash := uint64(0)
	kept := 0 // bytes of a character that is not complete yet
	for at := int64(0); at < f.size; {
		select {
		case <-c.stop:
			return false, false
		default:
		}
		n, err := f.file.ReadAt(buf[kept:min(int64(len(buf)), int64(kept)+f.size-at)], at)
		text := buf[:kept+n]
		for i, b := range text[kept:] {
			hash = hash<<rollShift + rollValues[b] // roller.roll, which is slower in this loop
			if end := at + int64(i) + 1; hash&c.mask == 0 && end >= hashWindow {
				if _, known := places[hash]; !known && len(places) < 2*maxPlaces {
					places[hash] = f.offset + end
				}
			}
		}
		at += int64(n)
		whole := len(text)
		for back := 1; at < f.size && back < utf8.UTFMax && back <= len(text); back++ {
			if start := len(text) - back; utf8.RuneStart(text[start]) {
				if !utf8.FullRune(text[start:]) {
					whole = start
				}
				break
			}
		}
		if !utf8.Valid(text[:whole]) {
			return false, true
		}
		kept = copy(buf, text[whole:])
		if err != nil && n == 0 {
			break
		}
	}
	return true, true
}

// index fills the index and then searches the pending texts. It stops when close is called.
func (c *coverage) index() {
	defer close(c.indexed)
	places, buf := map[uint64]int64{}, make([]byte, readSize)
	for _, f := range c.files {
		valid, ok := c.indexFile(f, places, buf)
		if !ok {
			return
		}
		if !valid {
			maps.DeleteFunc(places, func(_ uint64, place int64) bool { return place > f.offset })
			c.mu.Lock()
			c.other = append(c.other, f)
			c.mu.Unlock()
		}
	}
	c.places = places
	for {
		c.mu.Lock()
		pending := c.pending
		c.pending, c.pendingBytes = nil, 0
		c.ready = len(pending) == 0
		c.mu.Unlock()
		if len(pending) == 0 {
			return
		}
		for _, p := range pending {
			c.find(p.text, p.by)
		}
	}
}

// record finds the spans of the context in a text that a model reads. It does not wait for the index: until the index
// is complete, the text is pending.
func (c *coverage) record(text string, by readBy) {
	if c == nil || len(c.files) == 0 || len(text) < hashWindow {
		return
	}
	text = text[:min(len(text), maxCoverText)]
	c.mu.Lock()
	if !c.ready {
		if c.pendingBytes+len(text) <= maxPending {
			c.pending = append(c.pending, pendingText{text, by})
			c.pendingBytes += len(text)
		}
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.find(text, by)
}

// match is a span of a text that is equal to a span of the context.
type match struct {
	start, end int   // in the text
	place      int64 // of the start, in the context
}

// find searches a text for spans of the context, and adds them. Each byte of the text counts for one place at most.
func (c *coverage) find(text string, by readBy) {
	var found []match
	var r roller
	work := 1<<20 + maxBackward*len(text)
	for i := 0; i < len(text); i++ {
		h, ok := r.roll(text[i])
		if !ok || h&c.mask != 0 {
			continue
		}
		end, known := c.places[h]
		if !known {
			continue
		}
		from := 0
		if work < 0 && len(found) > 0 {
			from = found[len(found)-1].end
		}
		at := i + 1 - hashEqual
		m := c.extend(text, from, at, end-hashEqual)
		work -= at - m.start
		if m.end-m.start < minSpan {
			continue
		}
		found = addMatch(found, m)
		// Continue after the match, except for the bytes that the next hash needs.
		if next := m.end - hashWindow; next > i {
			i = next
			r = roller{}
		}
	}
	if len(found) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range found {
		e := extent{m.place, m.place + int64(m.end-m.start)}
		if by&readByModel != 0 {
			c.model = insert(c.model, e)
		}
		if by&readByCall != 0 {
			c.calls = insert(c.calls, e)
		}
	}
}

// addMatch adds a match to those before it in the text, none of which ends after it. Where a passage occurs several
// times in the context, its first match may be at the wrong place. What follows the passage then matches at the right
// one, and extends backward over the passage: such a match replaces those that it contains.
func addMatch(found []match, m match) []match {
	for len(found) > 0 && found[len(found)-1].start >= m.start {
		found = found[:len(found)-1]
	}
	if len(found) > 0 {
		over := max(0, found[len(found)-1].end-m.start)
		m.start, m.place = m.start+over, m.place+int64(over)
	}
	return append(found, m)
}

// extend compares the text from offset at and the context from place on, in both directions, but not before offset from
// of the text. It returns the equal span.
func (c *coverage) extend(text string, from, at int, place int64) match {
	i, _ := slices.BinarySearchFunc(c.files, place+1, func(f coverFile, p int64) int {
		if f.offset+f.size < p {
			return -1
		}
		return 1
	})
	if i >= len(c.files) {
		return match{start: at}
	}
	f := c.files[i]
	local := place - f.offset
	forward := equalForward(f, local, text[at:])
	if forward < hashEqual {
		return match{start: at} // a hash collision
	}
	back := equalBackward(f, local, text[min(from, at):at])
	return match{at - int(back), at + int(forward), place - back}
}

// equalForward returns how many bytes of f from offset at on are equal to the beginning of text.
func equalForward(f coverFile, at int64, text string) int64 {
	var n int64
	size := int64(512)
	for n < int64(len(text)) && at+n < f.size {
		want := min(size, int64(len(text))-n, f.size-at-n)
		buf := make([]byte, want)
		got, _ := f.file.ReadAt(buf, at+n) // after an error, the bytes that were read are compared
		for i := range got {
			if buf[i] != text[n+int64(i)] {
				return n + int64(i)
			}
		}
		n += int64(got)
		if int64(got) < want {
			return n
		}
		size = min(size*4, readSize)
	}
	return n
}

// equalBackward returns how many bytes of f before offset at are equal to the end of text.
func equalBackward(f coverFile, at int64, text string) int64 {
	var n int64
	size := int64(512)
	for n < int64(len(text)) && n < at {
		want := min(size, int64(len(text))-n, at-n)
		buf := make([]byte, want)
		got, _ := f.file.ReadAt(buf, at-n-want)
		if int64(got) < want {
			return n
		}
		for i := want - 1; i >= 0; i-- {
			if buf[i] != text[int64(len(text))-n-(want-i)] {
				return n + want - 1 - i
			}
		}
		n += want
		size = min(size*4, readSize)
	}
	return n
}

// insert adds an extent to a sorted list, and merges it with extents that it overlaps or touches.
func insert(list []extent, e extent) []extent {
	i, _ := slices.BinarySearchFunc(list, e.start, func(x extent, start int64) int {
		if x.end < start {
			return -1
		}
		return 1
	})
	j := i
	for j < len(list) && list[j].start <= e.end {
		e.start, e.end = min(e.start, list[j].start), max(e.end, list[j].end)
		j++
	}
	return slices.Replace(list, i, j, e)
}

// union returns the union of two sorted lists.
func union(a, b []extent) []extent {
	var out []extent
	for len(a)+len(b) > 0 {
		if len(a) == 0 || len(b) > 0 && b[0].start < a[0].start {
			a, b = b, a
		}
		if n := len(out); n > 0 && a[0].start <= out[n-1].end {
			out[n-1].end = max(out[n-1].end, a[0].end)
		} else {
			out = append(out, a[0])
		}
		a = a[1:]
	}
	return out
}

func length(list []extent) int64 {
	var n int64
	for _, e := range list {
		n += e.end - e.start
	}
	return n
}

// report returns the coverage, or nil if there is no context. It waits until the index is complete and all pending
// texts are searched, or ctx ends.
func (c *coverage) report(ctx context.Context) *Coverage {
	if c == nil || c.total == 0 && len(c.omitted) == 0 {
		return nil
	}
	select {
	case <-c.indexed:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := union(c.model, c.calls)
	total, omitted := c.total, slices.Clone(c.omitted)
	for _, f := range c.other {
		total -= f.size
		omitted = omit(omitted, v1.OmittedEncoding, f.size)
	}
	out := &Coverage{
		Bytes:   total,
		Read:    length(all),
		ByModel: length(c.model),
		ByCalls: length(c.calls),
		Omitted: omitted,
	}
	if total > 0 {
		out.Percent = 100 * float64(out.Read) / float64(total)
	}
	for _, e := range all {
		for _, f := range c.files {
			start, end := max(e.start, f.offset), min(e.end, f.offset+f.size)
			if start >= end {
				continue
			}
			if len(out.Spans) >= maxSpans {
				out.More++
				continue
			}
			out.Spans = append(out.Spans, Span{File: f.name, Start: start - f.offset, End: end - f.offset})
		}
	}
	return out
}

// sofar returns how many bytes of the context models have read, and the bytes of the context. It does not wait for
// pending texts.
func (c *coverage) sofar() (read, total int64) {
	if c == nil {
		return 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return length(union(c.model, c.calls)), c.total
}
