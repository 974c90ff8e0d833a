package rlm

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Which spans of the context models have read is found by content: whatever way code cut, filtered or joined it, a piece that reaches a
// model is the same bytes. The context is read once, in the background, and some of its places are remembered by a hash of the bytes around them;
// which places is decided by the hash itself, so that the same bytes are remembered wherever they stand. A text on its way to a model is hashed alike,
// and where a remembered hash turns up, the two are compared byte by byte in both directions.
//
// So what is reported was read; very short pieces may go unnoticed. Passages that occur several times count for the first place that was remembered.
// Files whose bytes are not those of their text, and what is beyond the bounds below, are not looked at; the report names them.

const (
	coverWindow = 24      // bytes that are hashed
	coverMost   = 1 << 19 // places that are remembered
	coverLeast  = 32      // bytes of a span that is worth telling
	coverRead   = 256 << 10
	// maxCoverBytes and maxCoverFiles bound the context that is looked at: each file is held open.
	maxCoverBytes = 8 << 30
	maxCoverFiles = 4096
	// maxCoverText bounds the part of one text that is looked at.
	maxCoverText = 64 << 20
	maxSpans     = 1000
	// maxPending bounds the texts that wait until the places are known; what is more goes uncounted.
	maxPending = 32 << 20
)

// readBy is who read a span.
type readBy uint8

const (
	readByModel readBy = 1 << iota // printed to the run's own model
	readByCall                     // passed to a sub-model or child
)

// omit adds a file to a list of those that are not counted.
func omit(list []Omitted, why OmittedWhy, bytes int64) []Omitted {
	i := slices.IndexFunc(list, func(o Omitted) bool { return o.Why == why })
	if i < 0 {
		i, list = len(list), append(list, Omitted{Why: why})
	}
	list[i].Files++
	list[i].Bytes += bytes
	return list
}

// coverage finds what was read. A nil one counts nothing.
type coverage struct {
	files []coverFile
	total int64
	// omitted are the files that are not among files.
	omitted []Omitted
	mask    uint64 // hashes with these bits zero are remembered
	stop    chan struct{}
	built   chan struct{}

	places map[uint64]int64 // set before built is closed

	mu      sync.Mutex
	model   []extent      // guarded by mu; sorted, apart from one another
	calls   []extent      // guarded by mu
	pending []pendingText // guarded by mu; nil once the places are known
	waiting int           // guarded by mu; bytes of it
	busy    bool          // guarded by mu; texts that waited are looked at
	ready   bool          // guarded by mu; the places are known, and nothing waits
}

// coverFile is one file of the context; offset is its place in the sum of all.
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

// newCoverage looks at no more than so many files and bytes.
func newCoverage(s *staged, files int, bytes int64) *coverage {
	c := &coverage{stop: make(chan struct{}), built: make(chan struct{}), omitted: slices.Clone(s.omitted)}
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
	for density := uint64(8); c.total/int64(density) > coverMost; density *= 2 {
		c.mask = density*2 - 1
	}
	if c.mask == 0 {
		c.mask = 7
	}
	go c.build()
	return c
}

func (c *coverage) close() {
	if c == nil {
		return
	}
	close(c.stop)
	<-c.built
	for _, f := range c.files {
		_ = f.file.Close()
	}
}

// roller is a hash over the last bytes that is cheap to move on.
type roller struct {
	hash uint64
	ring [coverWindow]byte
	n    int
}

const rollPrime = 0x9E3779B97F4A7C15

// rollOut is rollPrime to the power of the window.
var rollOut = func() uint64 {
	p := uint64(1)
	for range coverWindow {
		p *= rollPrime
	}
	return p
}()

// roll takes the next byte in; ok once the window is full.
func (r *roller) roll(b byte) (hash uint64, ok bool) {
	at := r.n % coverWindow
	old := uint64(r.ring[at])
	r.ring[at] = b
	r.hash = r.hash*rollPrime + uint64(b) + 1
	if r.n >= coverWindow {
		r.hash -= (old + 1) * rollOut
	}
	r.n++
	h := r.hash
	h ^= h >> 29
	h *= 0xBF58476D1CE4E5B9
	return h ^ h>>32, r.n >= coverWindow
}

// build remembers places. It gives way as soon as the run is over.
func (c *coverage) build() {
	defer close(c.built)
	places := map[uint64]int64{}
	for _, f := range c.files {
		var r roller
		in := bufio.NewReaderSize(io.NewSectionReader(f.file, 0, f.size), coverRead)
		buf := make([]byte, coverRead)
		at := f.offset
		for {
			select {
			case <-c.stop:
				return
			default:
			}
			n, err := in.Read(buf)
			for _, b := range buf[:n] {
				at++
				if h, ok := r.roll(b); ok && h&c.mask == 0 {
					if _, known := places[h]; !known && len(places) < 2*coverMost {
						places[h] = at - coverWindow
					}
				}
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					return
				}
				break
			}
		}
	}
	c.places = places
	for {
		c.mu.Lock()
		pending := c.pending
		c.pending, c.waiting = nil, 0
		c.ready, c.busy = len(pending) == 0, len(pending) > 0
		c.mu.Unlock()
		if len(pending) == 0 {
			return
		}
		for _, p := range pending {
			c.find(p.text, p.by)
		}
	}
}

// note counts what a model reads. While the places are not known yet, the text waits, not the caller.
func (c *coverage) note(text string, by readBy) {
	if c == nil || len(c.files) == 0 || len(text) < coverWindow {
		return
	}
	text = text[:min(len(text), maxCoverText)]
	c.mu.Lock()
	if !c.ready {
		if c.waiting+len(text) <= maxPending {
			c.pending = append(c.pending, pendingText{text, by})
			c.waiting += len(text)
		}
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.find(text, by)
}

// find looks for the spans of the context in a text.
func (c *coverage) find(text string, by readBy) {
	var found []extent
	var r roller
	for i := 0; i < len(text); i++ {
		h, ok := r.roll(text[i])
		if !ok || h&c.mask != 0 {
			continue
		}
		place, known := c.places[h]
		if !known {
			continue
		}
		e, end := c.extend(text, i+1-coverWindow, place)
		if e.end-e.start < coverLeast {
			continue
		}
		found = append(found, e)
		// What matched is not looked at again, but for the window that the next hash needs.
		if next := end - coverWindow; next > i {
			i = next
			r = roller{}
		}
	}
	if len(found) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range found {
		if by&readByModel != 0 {
			c.model = insert(c.model, e)
		}
		if by&readByCall != 0 {
			c.calls = insert(c.calls, e)
		}
	}
}

// extend compares text and context around a place where they may be equal, and gives what is equal and the offset in the text behind it.
func (c *coverage) extend(text string, at int, place int64) (extent, int) {
	i, _ := slices.BinarySearchFunc(c.files, place+1, func(f coverFile, p int64) int {
		if f.offset+f.size < p {
			return -1
		}
		return 1
	})
	if i >= len(c.files) {
		return extent{}, at
	}
	f := c.files[i]
	local := place - f.offset
	forward := equalForward(f, local, text[at:])
	if forward < coverWindow {
		return extent{}, at // another passage with the same hash
	}
	back := equalBack(f, local, text[:at])
	return extent{place - back, place + forward}, at + int(forward)
}

func equalForward(f coverFile, at int64, text string) int64 {
	var n int64
	size := int64(512)
	for n < int64(len(text)) && at+n < f.size {
		want := min(size, int64(len(text))-n, f.size-at-n)
		buf := make([]byte, want)
		got, _ := f.file.ReadAt(buf, at+n) // fewer bytes than wanted are compared as far as they go
		for i := range got {
			if buf[i] != text[n+int64(i)] {
				return n + int64(i)
			}
		}
		n += int64(got)
		if int64(got) < want {
			return n
		}
		size = min(size*4, coverRead)
	}
	return n
}

func equalBack(f coverFile, at int64, text string) int64 {
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
		size = min(size*4, coverRead)
	}
	return n
}

// insert adds an extent to a sorted list and joins what touches.
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

func length(list []extent) int64 {
	var n int64
	for _, e := range list {
		n += e.end - e.start
	}
	return n
}

// report sums up, as soon as everything was looked at or ctx ends.
func (c *coverage) report(ctx context.Context) *Coverage {
	if c == nil || c.total == 0 && len(c.omitted) == 0 {
		return nil
	}
	c.mu.Lock()
	waits := c.waiting > 0 || c.busy
	c.mu.Unlock()
	if waits {
		select {
		case <-c.built:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.model)
	for _, e := range c.calls {
		all = insert(all, e)
	}
	out := &Coverage{Bytes: c.total, Read: length(all), ByModel: length(c.model), ByCalls: length(c.calls), Omitted: c.omitted}
	if c.total > 0 {
		out.Percent = 100 * float64(out.Read) / float64(c.total)
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
