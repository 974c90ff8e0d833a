package rules

import (
	"bytes"
	"context"
	_ "embed" // the program that reads Python
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

//go:embed python/values.py
var valuesScript string

//go:embed python/calls.py
var callsScript string

//go:embed python/facts.py
var factsScript string

// loader reads the program from its standard input, because it is too long for a command line on some systems.
const loader = "import sys; s = sys.stdin.buffer; exec(s.read(int.from_bytes(s.read(4), 'big')))"

const (
	// parseTimeout limits one piece of code; the process is killed, and the next piece gets a new one.
	parseTimeout = 10 * time.Second
	// parsers is how many processes may parse at the same time.
	parsers = 2
	// largeCode is the size of code after which a process is not used again: Python seldom returns memory to the
	// system.
	largeCode = 1 << 20
	// maxAnswer limits the answer of a process, in bytes.
	maxAnswer = 256 << 20
)

// pythonParser keeps warm Python processes that parse code and never run it. Parsing can exhaust the memory or the
// stack of a process, so it happens in a separate process with limits.
type pythonParser struct {
	python string
	slots  chan struct{} // one is taken while a process parses
	idle   chan *pythonProcess
	ctx    context.Context //nolint:containedctx // ends with the parser, and its processes with it
	cancel context.CancelFunc
	closed sync.Once
}

type pythonProcess struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	in     io.WriteCloser
	out    io.ReadCloser
	loaded bool // it has read its program
}

// findPython returns the path of the Python that parses, or "". The host's own comes first, because sandboxes made from
// the host's root file system run the same one.
func findPython() string {
	for _, name := range []string{"/usr/bin/python3", "python3", "python"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	return ""
}

func newPythonParser(python string) *pythonParser {
	p := &pythonParser{python: python, slots: make(chan struct{}, parsers), idle: make(chan *pythonProcess, parsers)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// close kills all processes, including those that are parsing.
func (p *pythonParser) close() {
	p.closed.Do(func() {
		p.cancel()
		for range parsers {
			p.slots <- struct{}{}
			defer func() { <-p.slots }()
		}
		for len(p.idle) > 0 {
			(<-p.idle).end()
		}
	})
}

// parse returns the facts of code. A process that dies is replaced.
func (p *pythonParser) parse(ctx context.Context, code string) (answer *pythonAnswer, err error) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var proc *pythonProcess
	select {
	case proc = <-p.idle:
	default:
	}
	// An idle process may have died meanwhile, which is not the fault of this code: retry with a new process.
	for fresh := false; !fresh; {
		if fresh = proc == nil; fresh {
			if proc, err = p.start(); err != nil {
				return nil, err
			}
		}
		answer, err = proc.ask(ctx, code)
		if err == nil && len(code) <= largeCode {
			p.idle <- proc
			return answer, nil
		}
		proc.end()
		proc = nil
		if err == nil || ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	return answer, err
}

func (p *pythonParser) start() (*pythonProcess, error) {
	ctx, cancel := context.WithCancel(p.ctx)
	cmd := exec.CommandContext(ctx, p.python, "-I", "-S", "-c", loader)
	// Only the environment variables that a Python version manager, or Windows, needs to start a program.
	for _, name := range []string{"PATH", "HOME", "SystemRoot"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.Dir = os.TempDir()
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		cancel()
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", p.python, err)
	}
	return &pythonProcess{cmd: cmd, cancel: cancel, in: in, out: out}, nil
}

// end kills the process and waits for it.
func (p *pythonProcess) end() {
	p.cancel()
	p.in.Close()
	p.out.Close()
	_ = p.cmd.Wait() // it was killed
}

// ask sends code and returns the answer.
func (p *pythonProcess) ask(ctx context.Context, code string) (*pythonAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, parseTimeout)
	defer cancel()
	// Killing the process ends a read or write that hangs.
	stop := context.AfterFunc(ctx, p.cancel)
	defer stop()
	raw, err := p.exchange(code)
	if err != nil {
		if ctx.Err() != nil {
			return nil, errors.Join(os.ErrDeadlineExceeded, ctx.Err())
		}
		return nil, err
	}
	var answer pythonAnswer
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, err
	}
	return &answer, nil
}

// send writes a frame.
func (p *pythonProcess) send(text string) error {
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(text)), uint32(len(text)))
	_, err := p.in.Write(append(frame, text...))
	return err
}

func (p *pythonProcess) exchange(code string) ([]byte, error) {
	if !p.loaded {
		if err := p.send(valuesScript + "\n\n" + callsScript + "\n\n" + factsScript); err != nil {
			return nil, err
		}
		p.loaded = true
	}
	if err := p.send(code); err != nil {
		return nil, err
	}
	var head [4]byte
	if _, err := io.ReadFull(p.out, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxAnswer {
		return nil, fmt.Errorf("the parser's answer has %d bytes, more than %d", n, maxAnswer)
	}
	var buf bytes.Buffer
	if _, err := io.CopyN(&buf, p.out, int64(n)); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
