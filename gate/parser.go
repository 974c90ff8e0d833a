package gate

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

// loader reads the program from its input, because a command line has no room for it everywhere.
const loader = "import sys; s = sys.stdin.buffer; exec(s.read(int.from_bytes(s.read(4), 'big')))"

// Timing and bounds of the process that parses Python.
const (
	// parseTimeout bounds one piece of code; the process is killed and the next piece gets a new one.
	parseTimeout = 10 * time.Second
	// parsers is how many processes may parse at once.
	parsers = 2
	// largeCode is code after which a process is not used again: Python seldom gives its memory back.
	largeCode = 1 << 20
	// maxAnswer bounds what a process may answer.
	maxAnswer = 256 << 20
)

// pythonParser keeps warm Python processes that parse code and never run it. Parsing can take a process down
// (memory, its stack), which is why it is done in one of its own, with limits.
type pythonParser struct {
	python string
	slots  chan struct{}

	mu     sync.Mutex
	idle   []*pythonProcess // guarded by mu
	closed bool             // guarded by mu
}

type pythonProcess struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	in     io.WriteCloser
	out    io.ReadCloser
	loaded bool // it has its program
}

var errParserClosed = errors.New("the gate is closed")

// findPython gives the Python that parses, or "". The host's own comes first, because sandboxes made from
// the host run that one.
func findPython() string {
	for _, name := range []string{"/usr/bin/python3", "python3", "python"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	return ""
}

func newPythonParser(python string) *pythonParser {
	return &pythonParser{python: python, slots: make(chan struct{}, parsers)}
}

// parse gives the facts of code. A process that dies is replaced, and the error says so.
func (p *pythonParser) parse(ctx context.Context, code string) (*pythonAnswer, error) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	proc, warm, err := p.take()
	if err != nil {
		return nil, err
	}
	answer, err := proc.ask(ctx, code)
	if err != nil && warm && ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		// It may have died while it waited: that is not this code's fault.
		proc.end()
		if proc, err = p.start(); err != nil {
			return nil, err
		}
		answer, err = proc.ask(ctx, code)
	}
	if err != nil || len(code) > largeCode {
		proc.end()
		return answer, err
	}
	p.give(proc)
	return answer, nil
}

// take gives an idle process, or a new one.
func (p *pythonParser) take() (proc *pythonProcess, warm bool, err error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, false, errParserClosed
	}
	if n := len(p.idle); n > 0 {
		proc, p.idle = p.idle[n-1], p.idle[:n-1]
		p.mu.Unlock()
		return proc, true, nil
	}
	p.mu.Unlock()
	proc, err = p.start()
	return proc, false, err
}

func (p *pythonParser) give(proc *pythonProcess) {
	p.mu.Lock()
	if !p.closed {
		p.idle = append(p.idle, proc)
		proc = nil
	}
	p.mu.Unlock()
	if proc != nil {
		proc.end()
	}
}

func (p *pythonParser) start() (*pythonProcess, error) {
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, p.python, "-I", "-S", "-c", loader)
	// Nothing of ours: only what a launcher of Python versions, or Windows, needs to start at all.
	for _, name := range []string{"PATH", "HOME", "SystemRoot"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.Dir = os.TempDir()
	in, err := cmd.StdinPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", p.python, err)
	}
	return &pythonProcess{cmd: cmd, cancel: cancel, in: in, out: out}, nil
}

func (p *pythonParser) close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, proc := range idle {
		proc.end()
	}
}

// end kills the process and waits for it.
func (p *pythonProcess) end() {
	p.cancel()
	p.in.Close()
	p.out.Close()
	_ = p.cmd.Wait() // it was killed; there is nothing to learn
}

// ask sends code and reads the answer.
func (p *pythonProcess) ask(ctx context.Context, code string) (*pythonAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, parseTimeout)
	defer cancel()
	// Killing the process is what ends a read or write that hangs.
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
		return nil, fmt.Errorf("an answer of %d bytes", n)
	}
	var buf bytes.Buffer
	if _, err := io.CopyN(&buf, p.out, int64(n)); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
