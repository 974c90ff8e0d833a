package rlm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/llm"
)

// Input is one context of a question: a text, JSON, a list of texts, a conversation, a file or a directory. Make one with
// Text, JSON, List, Messages, Reader or File.
type Input struct {
	Name string // how the model hears of it; may be empty
	kind string
	path string           // a file or directory of the host
	open func() io.Reader // what is to be written to a file
	size []int            // of a list's items, in bytes
	err  error
}

// Text is a context that is one text.
func Text(s string) Input {
	return Input{kind: "text", open: func() io.Reader { return strings.NewReader(s) }, err: emptyIf(s == "")}
}

// Reader is a text that is read once, when the run begins.
func Reader(name string, r io.Reader) Input {
	return Input{Name: name, kind: "text", open: func() io.Reader { return r }}
}

// JSON is a context that is any value JSON can hold.
func JSON(v any) Input {
	data, err := json.Marshal(v)
	if err != nil {
		err = &v1.Error{Code: v1.CodeContextUnread, Op: "put in context", Message: "the value is no JSON", Err: err}
	}
	return Input{kind: "json", open: func() io.Reader { return bytes.NewReader(data) }, err: err}
}

// List is a context that is a list of texts.
func List(texts []string) Input {
	in := Input{kind: "list", err: emptyIf(len(texts) == 0), size: make([]int, len(texts))}
	for i, t := range texts {
		in.size[i] = len(t)
	}
	in.open = func() io.Reader {
		rs := make([]io.Reader, len(texts))
		for i, t := range texts {
			rs[i] = strings.NewReader(t)
		}
		return io.MultiReader(rs...)
	}
	return in
}

// Messages is a context that is a conversation.
func Messages(m []llm.Message) Input {
	in := JSON(m)
	in.kind = "messages"
	if len(m) == 0 {
		in.err = emptyIf(true)
	}
	return in
}

// File is a context that is a file or a directory of the host. A directory becomes a mapping of paths to texts, each read when code wants it.
func File(path string) Input { return Input{Name: filepath.Base(path), kind: "file", path: path} }

func emptyIf(empty bool) error {
	if !empty {
		return nil
	}
	return &v1.Error{Code: v1.CodeContextEmpty, Op: "put in context", Message: "the context is empty", Remedy: "ask without a context, or give one"}
}

// manifestName is the list of what was staged, read by the code that loads it.
const manifestName = "manifest.json"

// stagedEntry is one context on its way into a sandbox.
type stagedEntry struct {
	Name     string `json:"name,omitempty"`
	Kind     string `json:"kind"`
	File     string `json:"file"`
	Encoding string `json:"encoding,omitempty"` // empty: found by decoding
	Lenient  bool   `json:"lenient,omitempty"`  // what cannot be parsed is a text
	Lengths  []int  `json:"lengths,omitempty"`
	Bytes    int64  `json:"bytes"`
	Files    int    `json:"files,omitempty"`   // of a directory
	Skipped  int    `json:"skipped,omitempty"` // files of it that are no text
}

// stagedFile is one file of a directory.
type stagedFile struct {
	Path     string `json:"path"`
	File     string `json:"file"`
	Kind     string `json:"kind,omitempty"`
	Encoding string `json:"encoding,omitempty"`
	Bytes    int64  `json:"bytes"`
}

// staged is a directory of the host with everything that goes into the sandbox. Files are linked where that is possible, so that a context is
// not copied.
type staged struct {
	Contexts []stagedEntry `json:"contexts"`

	dir   string
	temp  string // a directory of ours that holds dir, when that was moved; empty: none
	bytes int64
	// For coverage: files whose bytes are their text, and what else there is.
	plain   []plainFile
	omitted []Omitted
}

// plainFile is a file with text in UTF-8; its name is relative to the staged directory.
type plainFile struct {
	name  string
	bytes int64
}

// stage gathers the inputs in dir.
func stage(ctx context.Context, dir string, inputs []Input) (*staged, error) {
	s := &staged{dir: dir, Contexts: []stagedEntry{}}
	// The sandbox's user reads here; a private directory is above it.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "put in context", Err: err}
	}
	for i, in := range inputs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if in.err != nil {
			return nil, in.err
		}
		e, err := s.add(i, in)
		if err != nil {
			return nil, err
		}
		s.Contexts = append(s.Contexts, *e)
		s.bytes += e.Bytes
	}
	return s, s.write()
}

func (s *staged) write() error {
	data, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, manifestName), data, 0o644)
	}
	if err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "put in context", Err: err}
	}
	return nil
}

// readStaged finds again what an earlier program has staged, and refuses it when a file has another size by now.
func readStaged(dir string) (*staged, error) {
	s := &staged{dir: dir}
	if err := atomicfile.ReadJSON(filepath.Join(dir, manifestName), s); err != nil {
		return nil, &v1.Error{Code: v1.CodeContextMissing, Op: "find the context again", Err: err}
	}
	for _, e := range s.Contexts {
		s.bytes += e.Bytes
		if e.Kind == "dir" {
			var files []stagedFile
			if err := atomicfile.ReadJSON(filepath.Join(dir, e.File), &files); err != nil {
				return nil, &v1.Error{Code: v1.CodeContextMissing, Op: "find the context again", Err: err}
			}
			for _, f := range files {
				s.noteText(f.Kind, f.Encoding, f.File, f.Bytes)
			}
			continue
		}
		info, err := os.Stat(filepath.Join(dir, e.File))
		if err != nil {
			return nil, &v1.Error{Code: v1.CodeContextMissing, Op: "find the context again", Err: err}
		}
		if info.Size() != e.Bytes {
			return nil, &v1.Error{
				Code: v1.CodeContextChanged, Op: "find the context again", Message: fmt.Sprintf("%s had %d bytes and has %d", e.Name, e.Bytes, info.Size()),
				Remedy: "ask again",
			}
		}
		s.noteText(e.Kind, e.Encoding, e.File, e.Bytes)
	}
	return s, nil
}

// noteText remembers a file for coverage.
func (s *staged) noteText(kind, encoding, file string, bytes int64) {
	switch {
	case kind == "pdf":
		s.omitted = omit(s.omitted, v1.OmittedPDF, bytes)
	case encoding != "" && encoding != "utf-8":
		s.omitted = omit(s.omitted, v1.OmittedEncoding, bytes)
	default:
		s.plain = append(s.plain, plainFile{file, bytes})
	}
}

func (s *staged) add(i int, in Input) (*stagedEntry, error) {
	e := &stagedEntry{Name: in.Name, Kind: in.kind, File: fmt.Sprintf("context_%d", i), Lengths: in.size}
	if in.kind == "file" {
		info, err := os.Stat(in.path)
		if err != nil {
			return nil, missing(in.path, err)
		}
		if info.IsDir() {
			return s.addDir(e, in.path)
		}
		return s.addFile(e, in.path, info)
	}
	f, err := os.OpenFile(filepath.Join(s.dir, e.File), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "put in context", Err: err}
	}
	n, err := io.Copy(f, in.open())
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, &v1.Error{Code: v1.CodeContextUnread, Op: "put in context", Message: in.Name, Err: err}
	}
	if n == 0 && in.kind == "text" {
		return nil, emptyIf(true)
	}
	e.Bytes = n
	if in.kind == "text" {
		kind, encoding, err := sniffFile(filepath.Join(s.dir, e.File))
		if err != nil {
			return nil, refuse(in.Name, err)
		}
		e.Kind, e.Encoding = kind, encoding
	}
	s.noteText(e.Kind, e.Encoding, e.File, n)
	return e, nil
}

func (s *staged) addFile(e *stagedEntry, path string, info fs.FileInfo) (*stagedEntry, error) {
	if !info.Mode().IsRegular() {
		return nil, &v1.Error{Code: v1.CodeContextUnread, Op: "put in context", Message: path + " is no file", Remedy: "give a file, a directory or a text"}
	}
	if info.Size() == 0 {
		return nil, &v1.Error{Code: v1.CodeContextEmpty, Op: "put in context", Message: path + " is empty"}
	}
	kind, encoding, err := sniffFile(path)
	if err != nil {
		return nil, refuse(path, err)
	}
	if kind == "text" && strings.EqualFold(filepath.Ext(path), ".json") {
		kind, e.Lenient = "json", true
	}
	if err := place(path, filepath.Join(s.dir, e.File), info); err != nil {
		return nil, &v1.Error{Code: v1.CodeContextUnread, Op: "put in context", Message: path, Err: err}
	}
	e.Kind, e.Encoding, e.Bytes = kind, encoding, info.Size()
	s.noteText(kind, encoding, e.File, info.Size())
	return e, nil
}

// addDir links every text below a directory. Links and special files are not followed, and what is no text is counted as skipped.
func (s *staged) addDir(e *stagedEntry, root string) (*stagedEntry, error) {
	e.Kind = "dir"
	base := e.File + ".d"
	if err := os.Mkdir(filepath.Join(s.dir, base), 0o755); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "put in context", Err: err}
	}
	files := []stagedFile{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if p == root {
				return err
			}
			e.Skipped++
			return nil
		}
		if d.IsDir() {
			if d.Name() == ".git" && p != root {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() {
			e.Skipped++
			return nil //nolint:nilerr // as above
		}
		f := stagedFile{File: fmt.Sprintf("%s/%d", base, len(files)), Bytes: info.Size()}
		if rel, err := filepath.Rel(root, p); err == nil {
			f.Path = filepath.ToSlash(rel)
		}
		if info.Size() > 0 {
			kind, encoding, err := sniffFile(p)
			if err != nil {
				e.Skipped++
				return nil //nolint:nilerr // as above
			}
			f.Encoding = encoding
			if kind == "pdf" {
				f.Kind = kind
			}
		}
		if err := place(p, filepath.Join(s.dir, f.File), info); err != nil {
			e.Skipped++
			return nil //nolint:nilerr // as above
		}
		s.noteText(f.Kind, f.Encoding, f.File, f.Bytes)
		files = append(files, f)
		e.Bytes += f.Bytes
		return nil
	})
	if err != nil {
		return nil, missing(root, err)
	}
	if len(files) == 0 {
		return nil, &v1.Error{Code: v1.CodeContextEmpty, Op: "put in context", Message: fmt.Sprintf("no text in %s (%d files are something else)", root, e.Skipped)}
	}
	data, err := json.Marshal(files)
	e.File += ".json"
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, e.File), data, 0o644)
	}
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "put in context", Err: err}
	}
	e.Files = len(files)
	return e, nil
}

func missing(path string, err error) error {
	code := v1.CodeContextUnread
	if errors.Is(err, fs.ErrNotExist) {
		code = v1.CodeContextMissing
	}
	return &v1.Error{Code: code, Op: "put in context", Message: path, Err: err}
}

func refuse(name string, err error) error {
	if e, ok := errors.AsType[*v1.Error](err); ok {
		e.Message = strings.TrimPrefix(name+": "+e.Message, ": ")
		return e
	}
	return &v1.Error{Code: v1.CodeContextUnread, Op: "put in context", Message: name, Err: err}
}

// place links a file, or copies it where a link cannot be made or would not be readable inside.
func place(from, to string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o004 != 0 {
		if real, err := filepath.EvalSymlinks(from); err == nil && os.Link(real, to) == nil {
			return nil
		}
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// sampleBytes is how much of a file's beginning and end is looked at to tell text from other things.
const sampleBytes = 64 << 10

func sniffFile(path string) (kind, encoding string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	head := make([]byte, sampleBytes)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return "", "", err
	}
	head = head[:n]
	kind, encoding, err = sniff(head)
	if err != nil || encoding != "" || n < sampleBytes {
		return kind, encoding, err
	}
	if info, serr := f.Stat(); serr == nil && info.Size() > 2*sampleBytes {
		tail := make([]byte, sampleBytes)
		if n, rerr := f.ReadAt(tail, info.Size()-sampleBytes); rerr == nil || errors.Is(rerr, io.EOF) {
			if bytes.IndexByte(tail[:n], 0) >= 0 {
				return "", "", binary("it has NUL bytes")
			}
		}
	}
	return kind, encoding, nil
}

// sniff tells what the beginning of a file is. An empty encoding is UTF-8, or whatever the code that decodes all of it finds.
func sniff(head []byte) (kind, encoding string, err error) {
	switch {
	case bytes.HasPrefix(head, []byte("%PDF-")):
		return "pdf", "", nil
	case bytes.HasPrefix(head, []byte{0xff, 0xfe, 0, 0}), bytes.HasPrefix(head, []byte{0, 0, 0xfe, 0xff}):
		return "text", "utf-32", nil
	case bytes.HasPrefix(head, []byte{0xff, 0xfe}), bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		return "text", "utf-16", nil
	}
	var nul [2]int
	control := 0
	for i, c := range head {
		switch {
		case c == 0:
			nul[i%2]++
		case c < ' ' && c != '\n' && c != '\r' && c != '\t' && c != '\f' && c != '\b' && c != 0x1b:
			control++
		}
	}
	half := len(head) / 2
	switch {
	case nul[0]+nul[1] == 0 && control*10 <= len(head):
		return "text", "", nil
	case half > 8 && nul[1] > half*3/10 && nul[0]*20 < half:
		return "text", "utf-16-le", nil
	case half > 8 && nul[0] > half*3/10 && nul[1]*20 < half:
		return "text", "utf-16-be", nil
	case nul[0]+nul[1] > 0:
		return "", "", binary("it has NUL bytes")
	}
	return "", "", binary("a tenth of it is control characters")
}

func binary(why string) error {
	return &v1.Error{
		Code: v1.CodeContextBinary, Op: "put in context", Message: "this is no text: " + why, Remedy: "turn it into text first",
	}
}

// readAll gives the staged contexts as one text, for a model that is asked about them directly.
func (s *staged) readAll() (string, error) {
	var b strings.Builder
	for i, e := range s.Contexts {
		if len(s.Contexts) > 1 {
			fmt.Fprintf(&b, "\n=== context_%d %s ===\n", i, e.Name)
		}
		if e.Kind == "dir" {
			var files []stagedFile
			if err := atomicfile.ReadJSON(filepath.Join(s.dir, e.File), &files); err != nil {
				return "", err
			}
			for _, f := range files {
				text, err := os.ReadFile(filepath.Join(s.dir, filepath.FromSlash(f.File)))
				if err != nil || f.Kind == "pdf" || !utf8.Valid(text) {
					return "", fmt.Errorf("%s is not plain text", f.Path)
				}
				fmt.Fprintf(&b, "\n--- %s ---\n%s", f.Path, text)
			}
			continue
		}
		data, err := os.ReadFile(filepath.Join(s.dir, e.File))
		if err != nil {
			return "", err
		}
		if e.Kind == "pdf" || !utf8.Valid(data) {
			return "", fmt.Errorf("%s is not plain text", e.Name)
		}
		if e.Kind != "list" {
			b.Write(data)
			continue
		}
		for j, n := range e.Lengths {
			fmt.Fprintf(&b, "\n--- item %d ---\n%s", j, data[:n])
			data = data[n:]
		}
	}
	return b.String(), nil
}
