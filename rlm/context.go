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
	"time"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/llm"
)

// Input is one context of a question: a text, JSON, a list of texts, a conversation, a file or a directory. Text, JSON,
// List, Messages, Reader and File return inputs.
type Input struct {
	Name string // as the model sees it; may be empty
	kind string
	path string           // a file or directory of the host
	open func() io.Reader // returns the content, if there is no path
	size []int            // sizes of the items of a list, in bytes
	err  error
}

// Text returns a context that is one text.
func Text(s string) Input {
	return Input{kind: "text", open: func() io.Reader { return strings.NewReader(s) }, err: emptyError(s == "")}
}

// Reader returns a context that is one text. r is read once, when the run begins.
func Reader(name string, r io.Reader) Input {
	return Input{Name: name, kind: "text", open: func() io.Reader { return r }}
}

// JSON returns a context that is a JSON value.
func JSON(v any) Input {
	data, err := json.Marshal(v)
	if err != nil {
		err = &v1.Error{
			Code:    v1.CodeContextUnread,
			Op:      opStage,
			Message: "the value cannot be converted to JSON",
			Err:     err,
		}
	}
	return Input{kind: "json", open: func() io.Reader { return bytes.NewReader(data) }, err: err}
}

// List returns a context that is a list of texts.
func List(texts []string) Input {
	in := Input{kind: "list", err: emptyError(len(texts) == 0), size: make([]int, len(texts))}
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

// Messages returns a context that is a conversation.
func Messages(m []llm.Message) Input {
	in := JSON(m)
	in.kind = "messages"
	if len(m) == 0 {
		in.err = emptyError(true)
	}
	return in
}

// File returns a context that is a file or a directory of the host. A directory becomes a mapping of paths to texts.
// Each text is read when code accesses it.
func File(path string) Input { return Input{Name: filepath.Base(path), kind: "file", path: path} }

// emptyError returns the error for an empty context, or nil if empty is false.
func emptyError(empty bool) error {
	if !empty {
		return nil
	}
	return &v1.Error{
		Code:    v1.CodeContextEmpty,
		Op:      opStage,
		Message: "the context is empty",
		Remedy:  "pass a context with content, or none",
	}
}

const (
	// manifestName is the name of the list of staged contexts. The bridge reads it.
	manifestName = "manifest.json"

	// Operations in errors.
	opStage  = "add context"
	opReload = "read context"
)

// stagedEntry is one staged context.
type stagedEntry struct {
	Name     string `json:"name,omitempty"`
	Kind     string `json:"kind"`
	File     string `json:"file"`
	Encoding string `json:"encoding,omitempty"` // empty: the bridge finds it out
	Format   string `json:"format,omitempty"`   // of the rows of a text: jsonl, csv or tsv
	Lenient  bool   `json:"lenient,omitempty"`  // JSON that cannot be parsed becomes a text
	Lengths  []int  `json:"lengths,omitempty"`
	Bytes    int64  `json:"bytes"`
	Files    int    `json:"files,omitempty"`   // of a directory
	Skipped  int    `json:"skipped,omitempty"` // files of a directory that are not text
}

// stagedFile is one file of a directory.
type stagedFile struct {
	Path     string `json:"path"`
	File     string `json:"file"`
	Kind     string `json:"kind,omitempty"`
	Encoding string `json:"encoding,omitempty"`
	Bytes    int64  `json:"bytes"`
}

// staged is a directory of the host with the contexts of a run, in the form in which a sandbox gets them. Files are
// hard links where possible, so that a context is not copied.
type staged struct {
	Contexts []stagedEntry `json:"contexts"`

	survey *survey // of a new run

	dir   string
	temp  string // the temporary directory with dir, after relocate; empty: dir is in the run's directory
	bytes int64

	plain   []plainFile // files that coverage includes
	omitted []Omitted   // files that coverage does not include
}

// plainFile is a file with UTF-8 text. Its name is relative to the staged directory.
type plainFile struct {
	name  string
	bytes int64
}

// stage writes or links the inputs into dir.
func stage(ctx context.Context, dir string, inputs []Input) (*staged, error) {
	s := &staged{dir: dir, Contexts: []stagedEntry{}}
	// The user in the sandbox reads this directory. Its parent directory is private.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: opStage, Err: err}
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

// write writes the manifest.
func (s *staged) write() error {
	data, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, manifestName), data, 0o644)
	}
	if err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: opStage, Err: err}
	}
	return nil
}

// readStaged reads a staged directory that an earlier program wrote.
func readStaged(dir string) (*staged, error) {
	s := &staged{dir: dir}
	if err := atomicfile.ReadJSON(filepath.Join(dir, manifestName), s); err != nil {
		return nil, &v1.Error{Code: v1.CodeContextMissing, Op: opReload, Err: err}
	}
	for _, e := range s.Contexts {
		s.bytes += e.Bytes
		if e.Kind == "dir" {
			var files []stagedFile
			if err := atomicfile.ReadJSON(filepath.Join(dir, e.File), &files); err != nil {
				return nil, &v1.Error{Code: v1.CodeContextMissing, Op: opReload, Err: err}
			}
			for _, f := range files {
				s.addForCoverage(f.Kind, f.Encoding, f.File, f.Bytes)
			}
			continue
		}
		s.addForCoverage(e.Kind, e.Encoding, e.File, e.Bytes)
	}
	return s, nil
}

// addForCoverage adds a file to plain or omitted.
func (s *staged) addForCoverage(kind, encoding, file string, bytes int64) {
	switch {
	case kind == "pdf":
		s.omitted = omit(s.omitted, v1.OmittedPDF, bytes)
	case encoding != "" && encoding != "utf-8":
		s.omitted = omit(s.omitted, v1.OmittedEncoding, bytes)
	default:
		s.plain = append(s.plain, plainFile{file, bytes})
	}
}

// add stages input i.
func (s *staged) add(i int, in Input) (*stagedEntry, error) {
	e := &stagedEntry{Name: in.Name, Kind: in.kind, File: fmt.Sprintf("context_%d", i), Lengths: in.size}
	if in.kind == "file" {
		info, err := os.Stat(in.path)
		if err != nil {
			return nil, statError(in.path, err)
		}
		if info.IsDir() {
			return s.addDir(e, in.path)
		}
		return s.addFile(e, in.path, info)
	}
	f, err := os.OpenFile(filepath.Join(s.dir, e.File), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: opStage, Err: err}
	}
	n, err := io.Copy(f, in.open())
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, &v1.Error{Code: v1.CodeContextUnread, Op: opStage, Message: in.Name, Err: err}
	}
	if n == 0 && in.kind == "text" {
		return nil, emptyError(true)
	}
	e.Bytes = n
	if in.kind == "text" {
		kind, encoding, err := sniffFile(filepath.Join(s.dir, e.File))
		if err != nil {
			return nil, contextError(in.Name, err)
		}
		e.Kind, e.Encoding, e.Format = kind, encoding, rowsFormat(in.Name)
	}
	s.addForCoverage(e.Kind, e.Encoding, e.File, n)
	return e, nil
}

func (s *staged) addFile(e *stagedEntry, path string, info fs.FileInfo) (*stagedEntry, error) {
	if !info.Mode().IsRegular() {
		return nil, &v1.Error{
			Code:    v1.CodeContextUnread,
			Op:      opStage,
			Message: path + " is not a regular file",
			Remedy:  "pass a file, a directory or a text",
		}
	}
	if info.Size() == 0 {
		return nil, &v1.Error{Code: v1.CodeContextEmpty, Op: opStage, Message: path + " is empty"}
	}
	kind, encoding, err := sniffFile(path)
	if err != nil {
		return nil, contextError(path, err)
	}
	if kind == "text" && strings.EqualFold(filepath.Ext(path), ".json") {
		kind, e.Lenient = "json", true
	}
	if err := linkOrCopy(path, filepath.Join(s.dir, e.File), info); err != nil {
		return nil, &v1.Error{Code: v1.CodeContextUnread, Op: opStage, Message: path, Err: err}
	}
	e.Kind, e.Encoding, e.Bytes, e.Format = kind, encoding, info.Size(), rowsFormat(path)
	s.addForCoverage(kind, encoding, e.File, info.Size())
	return e, nil
}

// rowsFormat returns the format of the rows of a text by the extension of its name, or "".
func rowsFormat(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".jsonl", ".ndjson":
		return "jsonl"
	case ".csv":
		return "csv"
	case ".tsv":
		return "tsv"
	}
	return ""
}

// addDir links every text file below a directory. Symbolic links, special files and files that are not text are counted
// as skipped.
func (s *staged) addDir(e *stagedEntry, root string) (*stagedEntry, error) {
	e.Kind = "dir"
	base := e.File + ".d"
	if err := os.Mkdir(filepath.Join(s.dir, base), 0o755); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: opStage, Err: err}
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
			return nil //nolint:nilerr // counted as skipped
		}
		f := stagedFile{File: fmt.Sprintf("%s/%d", base, len(files)), Bytes: info.Size()}
		if rel, err := filepath.Rel(root, p); err == nil {
			f.Path = filepath.ToSlash(rel)
		}
		if info.Size() > 0 {
			kind, encoding, err := sniffFile(p)
			if err != nil {
				e.Skipped++
				return nil //nolint:nilerr // counted as skipped
			}
			f.Encoding = encoding
			if kind == "pdf" {
				f.Kind = kind
			}
		}
		if err := linkOrCopy(p, filepath.Join(s.dir, f.File), info); err != nil {
			e.Skipped++
			return nil //nolint:nilerr // counted as skipped
		}
		s.addForCoverage(f.Kind, f.Encoding, f.File, f.Bytes)
		files = append(files, f)
		e.Bytes += f.Bytes
		return nil
	})
	if err != nil {
		return nil, statError(root, err)
	}
	if len(files) == 0 {
		return nil, &v1.Error{
			Code:    v1.CodeContextEmpty,
			Op:      opStage,
			Message: fmt.Sprintf("no text files in %s (%d other files)", root, e.Skipped),
		}
	}
	data, err := json.Marshal(files)
	e.File += ".json"
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, e.File), data, 0o644)
	}
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: opStage, Err: err}
	}
	e.Files = len(files)
	return e, nil
}

// statError returns the error for a path that cannot be read or does not exist.
func statError(path string, err error) error {
	code := v1.CodeContextUnread
	if errors.Is(err, fs.ErrNotExist) {
		code = v1.CodeContextMissing
	}
	return &v1.Error{Code: code, Op: opStage, Message: path, Err: err}
}

// contextError adds the name of the context to an error of sniffFile.
func contextError(name string, err error) error {
	if e, ok := errors.AsType[*v1.Error](err); ok {
		e.Message = strings.TrimPrefix(name+": "+e.Message, ": ")
		return e
	}
	return &v1.Error{Code: v1.CodeContextUnread, Op: opStage, Message: name, Err: err}
}

// linkOrCopy makes a hard link to a file. It copies the file if a link is not possible, or if the user in the sandbox
// could not read the original.
func linkOrCopy(from, to string, info fs.FileInfo) error {
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
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Chtimes(to, time.Time{}, info.ModTime()) // see fileSum
}

// sampleBytes is the size of the samples at the beginning and the end of a file by which text is recognised.
const sampleBytes = 64 << 10

// sniffFile returns the kind and the encoding of a file, like sniff. It returns an error if the file is not text.
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
				return "", "", notText("it contains NUL bytes")
			}
		}
	}
	return kind, encoding, nil
}

// sniff returns the kind and the encoding of a file that begins with head. An empty encoding means UTF-8, or the
// encoding that the bridge finds when it decodes the whole file.
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
		return "", "", notText("it contains NUL bytes")
	}
	return "", "", notText("more than a tenth of it is control characters")
}

func notText(why string) error {
	return &v1.Error{
		Code:    v1.CodeContextBinary,
		Op:      opStage,
		Message: "not a text file: " + why,
		Remedy:  "convert the file to text",
	}
}

// readAll returns the staged contexts as one text, for a plain call.
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
