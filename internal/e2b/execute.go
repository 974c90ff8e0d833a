package e2b

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/ids"
)

// defaultContext is the interpreter of code that names no context.
const defaultContext = "default"

// contextPrefix begins the name of an interpreter that a caller has created. After it come random digits and the
// working directory in hexadecimal.
const contextPrefix = "e2b-"

// maxDirectory is the length of the working directory of a context.
const maxDirectory = 400

// The languages of code. Each cell of bash runs in a shell of its own.
const (
	python = "python"
	bash   = "bash"
)

// noLanguage returns the error for a language that does not exist. When code runs, the SDKs show only the text of this
// kind of error.
func noLanguage(message string) error {
	return &v1.Error{Code: v1.CodeNotFound, Op: "find language", Message: message}
}

// languageOf returns the name of a language as callers know it, or an error for one that does not exist here.
func languageOf(name string) (string, error) {
	switch strings.ToLower(name) {
	case "", python, "python3":
		return python, nil
	case bash, "sh":
		return bash, nil
	}
	return "", noLanguage(fmt.Sprintf("this server has no language %.40q: use python or bash", name))
}

// formats are the keys of a result by MIME type. Other types have their own name as the key.
var formats = map[string]string{
	"text/plain":             "text",
	"text/html":              "html",
	"text/markdown":          "markdown",
	"image/svg+xml":          "svg",
	"image/png":              "png",
	"image/jpeg":             "jpeg",
	"application/pdf":        "pdf",
	"text/latex":             "latex",
	"application/json":       "json",
	"application/javascript": "javascript",
	v1.MIMETable:             "data",
	v1.MIMEChart:             "chart",
}

// lines writes the lines of an execution.
type lines struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	flush func() error
	begun bool
}

// send writes a line. Characters beyond ASCII are escaped, because the SDKs decode each piece of the answer separately.
func (l *lines) send(line any) error {
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		l.w.Header().Set("Content-Type", "application/json")
		l.begun = true
	}
	if _, err := l.w.Write(append(escape(b), '\n')); err != nil {
		return err
	}
	return l.flush()
}

// escape replaces the characters of a JSON text that are not ASCII by escape sequences.
func escape(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r < utf8.RuneSelf:
			out = append(out, b[0])
		case r > 0xffff:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		b = b[n:]
	}
	return out
}

// texts is a stream of a cell as an io.Writer. It keeps the beginning of a character until the rest arrives.
type texts struct {
	*lines
	kind string
	rest []byte
}

// Write implements io.Writer.
func (t *texts) Write(b []byte) (int, error) {
	t.rest = append(t.rest, b...)
	whole := len(t.rest)
	for i := 1; i <= min(utf8.UTFMax, len(t.rest)); i++ {
		if c := t.rest[len(t.rest)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(t.rest[len(t.rest)-i:]) {
				whole -= i
			}
			break
		}
	}
	err := t.emit(whole)
	return len(b), err
}

// emit sends the first n bytes.
func (t *texts) emit(n int) error {
	if n == 0 {
		return nil
	}
	text := string(t.rest[:n])
	t.rest = t.rest[n:]
	return t.send(map[string]string{"type": t.kind, "text": text})
}

// execute runs code and answers with lines while it runs.
func (d *inside) execute() error {
	var in struct {
		Code     string            `json:"code"`
		Context  string            `json:"context_id"`
		Language string            `json:"language"`
		Env      map[string]string `json:"env_vars"`
	}
	if err := readBody(d.w, d.r, &in); err != nil {
		return err
	}
	language, err := languageOf(in.Language)
	if err != nil {
		return err
	}
	if language == bash && in.Context != "" {
		return noLanguage("bash has no contexts; it runs without one")
	}
	if in.Context != "" && in.Context != defaultContext {
		if err := d.checkContext(in.Context); err != nil {
			return err
		}
	}
	l := &lines{w: d.w, flush: http.NewResponseController(d.w).Flush}
	stdout, stderr := &texts{lines: l, kind: "stdout"}, &texts{lines: l, kind: "stderr"}
	o := v1.RunOptions{
		ID:      idPrefix + ids.Hex(8),
		Env:     in.Env,
		Stdout:  stdout,
		Stderr:  stderr,
		Timeout: v1.NoLimit, // the caller's own: it disconnects
	}
	var v *v1.Verdict
	if language == bash {
		v, err = d.ses.Run(d.r.Context(), v1.Command{Shell: in.Code, RunOptions: o})
	} else {
		v, err = d.ses.Cell(d.r.Context(), v1.Cell{
			Code:       in.Code,
			Context:    in.Context,
			Display:    func(b v1.Bundle) { _ = l.send(result(b, false)) }, // the caller may have disconnected
			RunOptions: o,
		})
	}
	_ = stdout.emit(len(stdout.rest))
	_ = stderr.emit(len(stderr.rest))
	switch {
	case err != nil && !l.begun:
		return err
	case err != nil:
		panic(http.ErrAbortHandler) // the caller must not take what it has for the whole execution
	}
	if v.Result != nil {
		_ = l.send(result(*v.Result, true))
	}
	if e := failed(v); e != nil {
		_ = l.send(map[string]string{"type": "error", "name": e.Name, "value": e.Value, "traceback": e.Traceback})
	}
	n := d.executions.count(d.ses.ID(), language+" "+cmp.Or(in.Context, defaultContext))
	_ = l.send(map[string]any{"type": "number_of_executions", "execution_count": n})
	_ = l.send(map[string]string{"type": "end_of_execution"})
	return nil
}

// failed returns why a cell has failed, or nil.
func failed(v *v1.Verdict) *v1.CellError {
	switch {
	case v.Error != nil:
		return v.Error
	case v.Ended != v1.EndedExit:
		return &v1.CellError{Name: "InterpreterLost", Value: v.String(), Traceback: v.String()}
	case v.ExitCode != 0:
		return &v1.CellError{Name: "SystemExit", Value: strconv.Itoa(v.ExitCode), Traceback: v.String()}
	}
	return nil
}

// result returns a displayed value as a line.
func result(b v1.Bundle, main bool) map[string]any {
	out := map[string]any{"type": "result", "is_main_result": main}
	for kind, value := range b.Data {
		name, ok := formats[kind]
		if !ok {
			name = kind
		}
		out[name] = value
	}
	return out
}

// executions counts the cells of contexts since the server started.
type executions struct {
	mu sync.Mutex
	of map[string]int // guarded by mu; by session and context
}

// maxCounted is the number of contexts whose cells are counted. When it is reached, all counts begin again.
const maxCounted = 10_000

func (e *executions) count(session, context string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil || len(e.of) >= maxCounted {
		e.of = map[string]int{}
	}
	e.of[session+" "+context]++
	return e.of[session+" "+context]
}

// codeContext describes an interpreter.
type codeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Dir      string `json:"cwd"`
}

func (d *inside) describeContext(name string) codeContext {
	_, dir, _ := strings.Cut(strings.TrimPrefix(name, contextPrefix), "-")
	b, _ := hex.DecodeString(dir)
	c := codeContext{ID: name, Language: python, Dir: string(b)}
	if c.Dir == "" {
		c.Dir = v1.DefaultHome
	}
	return c
}

// contexts lists the live interpreters.
func (d *inside) contexts() error {
	all, err := d.ses.Contexts(d.r.Context())
	if err != nil {
		return err
	}
	out := []codeContext{}
	for _, c := range all {
		out = append(out, d.describeContext(c.Name))
	}
	return d.reply(out)
}

// checkContext returns an error if a context does not exist.
func (d *inside) checkContext(name string) error {
	all, err := d.ses.Contexts(d.r.Context())
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.Name == name {
			return nil
		}
	}
	return &v1.Error{Code: v1.CodeNotFound, Op: "find context", Message: fmt.Sprintf("no context %.80q", name)}
}

// newContext starts an interpreter in a directory.
func (d *inside) newContext() error {
	var in struct {
		Language string `json:"language"`
		Dir      string `json:"cwd"`
	}
	if err := readBody(d.w, d.r, &in); err != nil {
		return err
	}
	language, err := languageOf(in.Language)
	if err != nil {
		return err
	}
	if language == bash {
		return noLanguage("bash has no contexts; it runs without one")
	}
	if len(in.Dir) > maxDirectory {
		return invalid("the working directory is longer than 400 bytes")
	}
	name := contextPrefix + ids.Hex(8)
	if in.Dir != "" {
		name += "-" + hex.EncodeToString([]byte(in.Dir))
	}
	if err := d.startContext(d.r.Context(), name); err != nil {
		return err
	}
	return d.reply(d.describeContext(name))
}

// startContext starts an interpreter and changes to its directory. If that fails, it is ended.
func (d *inside) startContext(ctx context.Context, name string) error {
	c := v1.Cell{Code: "pass", Context: name}
	if dir := d.describeContext(name).Dir; strings.Contains(strings.TrimPrefix(name, contextPrefix), "-") {
		quoted, err := json.Marshal(dir) // a JSON string is also one of Python
		if err != nil {
			return err
		}
		c.Code = "__import__('os').chdir(" + string(escape(quoted)) + ")"
	}
	v, err := d.ses.Cell(ctx, c)
	if err != nil {
		return err
	}
	if e := failed(v); e != nil {
		if err := d.ses.CloseContext(ctx, name); err != nil {
			return err
		}
		return invalid("the context could not be created: " + e.Value)
	}
	return nil
}

func (d *inside) removeContext() error {
	if err := d.checkContext(d.r.PathValue("id")); err != nil {
		return err
	}
	if err := d.ses.CloseContext(d.r.Context(), d.r.PathValue("id")); err != nil {
		return err
	}
	d.w.WriteHeader(http.StatusNoContent)
	return nil
}

// restartContext ends an interpreter and starts it again, in the same directory and without its variables.
func (d *inside) restartContext() error {
	name := d.r.PathValue("id")
	if err := d.checkContext(name); err != nil {
		return err
	}
	if err := d.ses.CloseContext(d.r.Context(), name); err != nil {
		return err
	}
	if err := d.startContext(d.r.Context(), name); err != nil {
		return err
	}
	d.w.WriteHeader(http.StatusNoContent)
	return nil
}
