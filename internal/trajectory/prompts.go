package trajectory

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// PromptsName is the name of the file with the prompts in the directory of a run.
const PromptsName = "prompts.jsonl"

// maxPromptText is the length of the longest text that is stored. A longer one fits into the window of no model: it is
// the context of a child run, which no model receives as a whole.
const maxPromptText = 4 << 20

// Prompts stores the messages that a run sends to models, each text once. A prompt is identified by a hash of its last
// message and of the prompt before it, so that a conversation that grows is not written again. Prompts is safe for
// concurrent use.
type Prompts struct {
	limit  int64
	redact func(string) string

	mu     sync.Mutex
	file   *os.File                // guarded by mu; nil: nothing more is stored
	ids    map[v1.PromptEnd]string // guarded by mu; the stored prompts
	hashes map[rawText]storedText  // guarded by mu; texts before they were redacted
	texts  map[string]bool         // guarded by mu; hashes of stored texts
	bytes  int64                   // guarded by mu; of the stored texts
	err    error                   // guarded by mu; the first write error
}

// rawText identifies a text without keeping it.
type rawText struct {
	hash uint64
	size int
}

type storedText struct {
	hash  string
	bytes int64
}

var rawSeed = maphash.MakeSeed()

// promptLine is one line of the file: a text, or the last message of a prompt.
type promptLine struct {
	ID      string        `json:"id"`
	Content *string       `json:"content,omitempty"`
	Last    *v1.PromptEnd `json:"last,omitempty"`
}

// OpenPrompts opens the prompts of a run in dir, or creates them. Texts of more than limit bytes together are not
// stored. redact removes secrets from a text before it is stored.
func OpenPrompts(dir string, limit int64, redact func(string) string) (*Prompts, error) {
	fail := func(err error) (*Prompts, error) { return nil, fmt.Errorf("open prompts: %w", err) }
	f, err := os.OpenFile(filepath.Join(dir, PromptsName), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fail(err)
	}
	p := &Prompts{
		limit:  limit,
		redact: redact,
		file:   f,
		ids:    map[v1.PromptEnd]string{},
		hashes: map[rawText]storedText{},
		texts:  map[string]bool{},
	}
	whole, err := eachPromptLine(f, func(l *promptLine) {
		switch {
		case l.Content != nil:
			p.texts[l.ID] = true
			p.bytes += int64(len(*l.Content))
		case l.Last != nil:
			p.ids[*l.Last] = l.ID
		}
	})
	if err == nil {
		err = f.Truncate(whole)
	}
	if err != nil {
		return fail(errors.Join(err, f.Close()))
	}
	return p, nil
}

// eachPromptLine calls use for each complete line, and returns the number of bytes that they have.
func eachPromptLine(r io.Reader, use func(*promptLine)) (whole int64, err error) {
	b := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := b.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return whole, err
		}
		var l promptLine
		if err := json.Unmarshal(line, &l); err != nil {
			return whole, fmt.Errorf("invalid line: %w", err)
		}
		use(&l)
		whole += int64(len(line))
	}
}

// Put stores the messages of a prompt and returns its id. It returns "" if nothing is stored.
func (p *Prompts) Put(messages []v1.Message) string {
	if p == nil {
		return ""
	}
	var out bytes.Buffer
	id := ""
	for _, m := range messages {
		text, clean := p.hash(m.Content)
		p.mu.Lock()
		if p.file == nil {
			p.mu.Unlock()
			return ""
		}
		if clean != nil {
			p.putText(&out, text, clean)
		}
		id = p.putEnd(&out, v1.PromptEnd{Before: id, Role: m.Role, Text: text.hash, Bytes: text.bytes})
		if out.Len() > 0 {
			if _, err := p.file.Write(out.Bytes()); err != nil && p.err == nil {
				p.err = fmt.Errorf("write prompts: %w", err)
			}
			out.Reset()
		}
		p.mu.Unlock()
	}
	return id
}

// hash returns the hash and the length of a text without its secrets. It also returns that text if it was not hashed
// before: then it may have to be stored.
func (p *Prompts) hash(text string) (storedText, *string) {
	raw := rawText{maphash.String(rawSeed, text), len(text)}
	p.mu.Lock()
	s, ok := p.hashes[raw]
	p.mu.Unlock()
	if ok {
		return s, nil
	}
	text = p.redact(strings.ToValidUTF8(text, "\uFFFD"))
	s = storedText{hashOf(text), int64(len(text))}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hashes[raw] = s
	return s, &text
}

// putText adds a text to what is written, unless it is stored already or the limit is reached.
//
// Preconditions: p.mu is held.
func (p *Prompts) putText(out *bytes.Buffer, t storedText, text *string) {
	if p.texts[t.hash] || t.bytes > maxPromptText || p.bytes+t.bytes > p.limit {
		return
	}
	writeLine(out, promptLine{ID: t.hash, Content: text})
	p.texts[t.hash] = true
	p.bytes += t.bytes
}

// putEnd adds the last message of a prompt to what is written, unless it is stored already. It returns the id of the
// prompt.
//
// Preconditions: p.mu is held.
func (p *Prompts) putEnd(out *bytes.Buffer, end v1.PromptEnd) string {
	if id, ok := p.ids[end]; ok {
		return id
	}
	id := hashOf(end.Before + "\x00" + string(end.Role) + "\x00" + end.Text)
	writeLine(out, promptLine{ID: id, Last: &end})
	p.ids[end] = id
	return id
}

func writeLine(out *bytes.Buffer, l promptLine) {
	line, err := json.Marshal(l)
	if err != nil { // cannot happen: it consists of strings and numbers
		return
	}
	out.Write(append(line, '\n'))
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// Close closes the file. It returns the first write error.
func (p *Prompts) Close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil {
		return nil
	}
	err := errors.Join(p.err, p.file.Close())
	p.file = nil
	return err
}

// ReadPrompts returns the prompts in a run's directory so far. It ignores an incomplete last line.
func ReadPrompts(dir string) (*v1.RunPrompts, error) {
	out := &v1.RunPrompts{Prompts: map[string]v1.PromptEnd{}, Texts: map[string]string{}}
	f, err := os.Open(filepath.Join(dir, PromptsName))
	if errors.Is(err, os.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read prompts: %w", err)
	}
	defer f.Close()
	_, err = eachPromptLine(f, func(l *promptLine) {
		switch {
		case l.Content != nil:
			out.Texts[l.ID] = *l.Content
		case l.Last != nil:
			out.Prompts[l.ID] = *l.Last
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read prompts: %w", err)
	}
	return out, nil
}

// CopyPrompts copies the prompts with these ids from one run's directory to another.
func CopyPrompts(from, to string, ids []string) error {
	all, err := ReadPrompts(from)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	copied := map[string]bool{}
	for _, id := range ids {
		for id != "" && !copied[id] {
			copied[id] = true
			end, ok := all.Prompts[id]
			if !ok {
				break
			}
			if text, ok := all.Texts[end.Text]; ok && !copied[end.Text] {
				copied[end.Text] = true
				writeLine(&out, promptLine{ID: end.Text, Content: &text})
			}
			writeLine(&out, promptLine{ID: id, Last: &end})
			id = end.Before
		}
	}
	if err := os.WriteFile(filepath.Join(to, PromptsName), out.Bytes(), 0o600); err != nil {
		return fmt.Errorf("copy prompts: %w", err)
	}
	return nil
}
