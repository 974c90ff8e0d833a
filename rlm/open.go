package rlm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// mountPath is where a large context is seen inside, when it was mounted.
	mountPath = "/context"
	// streamPath is where a small one is written to, and any where there is no other way.
	streamPath = "/tmp/.context"
	// shareName is where a large one is linked to, below what the machine shows of the host.
	shareName = "context"
	// streamBelow and streamFiles are up to where a context is small.
	streamBelow = 8 << 20
	streamFiles = 64

	leastMemory = 512 << 20
	extraMemory = 256 << 20
	// memoryStep is what the memory is rounded up to: sandboxes of the same size come from the same warm template.
	memoryStep = 256 << 20
	closeWait  = 30 * time.Second
)

// way is how a context comes into a machine.
type way int

const (
	streamed way = iota // written through Files
	shared              // linked into what the machine shows of the host, without a copy; takes no mount, so that a template can be used
	mounted             // shown by a mount, without a copy
)

// sharer is a machine into which files of the host can be linked.
type sharer interface {
	Share(ctx context.Context, file, name string) (string, error)
}

// memoryFor is what a sandbox with so much context needs: the text, a second one while code works on it, and some more.
func memoryFor(bytes int64) int64 {
	need := max(leastMemory, bytes*5/2+extraMemory)
	return (need + memoryStep - 1) / memoryStep * memoryStep
}

// large says that a context is not to be written through a stream if there is another way.
func (s *staged) large() bool {
	files := 0
	for _, e := range s.Contexts {
		files += e.Files
	}
	return s.bytes > streamBelow || files > streamFiles
}

// spec is what this node's sandbox is made from.
func (n *node) spec(w way) sandbox.Spec {
	spec := n.run.engine.o.Spec.WithDefaults()
	asked := n.run.engine.o.Spec.Limits
	if asked.Memory == 0 {
		spec.Limits.Memory = n.memory(w)
		if asked.Disk == 0 {
			spec.Limits.Disk = 0
		}
	}
	if w == streamed && asked.Disk == 0 && n.staged.bytes > spec.Limits.Memory/4 {
		spec.Limits.Disk = min(n.staged.bytes+(64<<20), spec.Limits.Memory-v1.MemoryReserve)
	}
	if w == mounted {
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Host: n.staged.dir, Path: mountPath})
	}
	if spec.Labels == nil {
		spec.Labels = map[string]string{}
	}
	spec.Labels[LabelRun], spec.Labels[ourLabels+"node"] = n.run.id, n.id
	spec.Persist = spec.Persist || n.run.engine.o.Durable && n.depth == 0
	return spec
}

// memory is what this node's sandbox needs when nobody has said how much it gets. What is streamed lies in its memory once more.
func (n *node) memory(w way) int64 {
	if w == streamed && n.staged.large() {
		return memoryFor(n.staged.bytes) + n.staged.bytes
	}
	return memoryFor(n.staged.bytes)
}

// affordable refuses a context for which this machine has not the memory. That is told now, and not by code that dies on its way.
func (n *node) affordable(ctx context.Context, w way) error {
	if n.run.engine.o.Spec.Limits.Memory != 0 || !n.run.engine.o.Sandboxes.Capabilities(ctx).Mounts {
		return nil // somebody knows better, or the sandbox is on another machine
	}
	total, need := hostMemory(), n.memory(w)
	if total == 0 || need <= total {
		return nil
	}
	return &v1.Error{
		Code: v1.CodeContextUnread, Op: "put in context", Message: fmt.Sprintf("%d bytes of context need %d MiB of memory, and this machine has %d", n.staged.bytes, need>>20, total>>20),
		Remedy: "give a part of it, or say how much memory the sandbox is to have",
	}
}

// open makes the machine and puts bridge and context into it.
func (n *node) open(ctx context.Context) error {
	n.ctx = ctx
	w := streamed
	if n.staged.large() {
		w = shared
	}
	if n.machine == nil {
		var err error
		if w, err = n.make(ctx); err != nil {
			return err
		}
	}
	n.machine.OnHostCall(n.serve(ctx))
	if err := n.carry(ctx, w); err != nil {
		return err
	}
	if err := n.install(ctx); err != nil {
		return err
	}
	n.run.emit(n, 0, v1.KindContext, v1.ContextLoaded{Contexts: n.notes, Bytes: n.staged.bytes})
	return nil
}

// make opens a sandbox, and tells how the context is to come into it.
func (n *node) make(ctx context.Context) (w way, err error) {
	boxes := n.run.engine.o.Sandboxes
	can := boxes.Capabilities(ctx)
	switch {
	case !n.staged.large():
	case can.Shares:
		w = shared
	case can.Mounts:
		w = mounted
	}
	if err := n.affordable(ctx, w); err != nil {
		return w, err
	}
	n.machine, err = boxes.Open(ctx, n.spec(w))
	if w != mounted || v1.CodeOf(err) != v1.CodeMountRefused {
		return w, err
	}
	// The user's data may lie where nothing is ever shown from, e.g. below /root.
	if err := n.staged.relocate(); err != nil {
		return w, err
	}
	n.machine, err = boxes.Open(ctx, n.spec(mounted))
	if v1.CodeOf(err) == v1.CodeMountRefused {
		w = streamed
		n.machine, err = boxes.Open(ctx, n.spec(w))
	}
	return w, err
}

// carry brings the context into the machine, unless it is mounted there.
func (n *node) carry(ctx context.Context, w way) error {
	switch w {
	case mounted:
		n.settle(mountPath)
		return nil
	case shared:
		n.settle(path.Join(sandbox.SharedDir, shareName, n.place()))
		err := n.share(ctx)
		if !errors.Is(err, sandbox.ErrNotSupported) {
			return err
		}
	case streamed:
	}
	n.settle(path.Join(streamPath, n.place()))
	return n.stream(ctx)
}

// settle notes where the machine is and where the context lies in it, before that takes any time. A machine that is lent is not named: who
// resumes or deletes the run would end it.
func (n *node) settle(inside string) {
	n.inside = inside
	ready := v1.SandboxReady{Inside: inside}
	if !n.borrowed {
		ready.ID = n.machine.ID()
	}
	n.run.emit(n, 0, v1.KindSandbox, ready)
}

// place names the context of this node among those that a machine may have: of questions before, and of the node whose copy it is.
func (n *node) place() string {
	if n.depth == 0 {
		return n.run.id
	}
	sum := sha256.Sum256([]byte(n.id))
	return n.run.id + "-" + hex.EncodeToString(sum[:6])
}

// relocate moves the staged files to the directory for temporary ones, and leaves a link behind.
func (s *staged) relocate() error {
	fail := func(err error) error {
		return &v1.Error{Code: v1.CodeInternal, Op: "put in context", Message: "the context could not be moved to where it can be mounted from", Err: err}
	}
	base, err := os.MkdirTemp("", "recluse-context-")
	if err != nil {
		return fail(err)
	}
	to := filepath.Join(base, contextDir)
	if err := linkTree(s.dir, to); err != nil {
		return fail(errors.Join(err, os.RemoveAll(base)))
	}
	if err := errors.Join(os.RemoveAll(s.dir), os.Symlink(to, s.dir)); err != nil {
		return fail(err)
	}
	s.dir, s.temp = to, base
	return nil
}

// linkTree copies a staged directory by links, or else by bytes.
func linkTree(from, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		a, b := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			err = linkTree(a, b)
		} else if info, serr := e.Info(); serr != nil {
			err = serr
		} else {
			err = place(a, b, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// share links the staged files into what the machine shows of the host.
func (n *node) share(ctx context.Context) error {
	m, ok := n.machine.(sharer)
	if !ok {
		return sandbox.ErrNotSupported
	}
	return n.staged.each(func(p, rel string) error {
		_, err := m.Share(ctx, p, path.Join(shareName, n.place(), rel))
		return err
	})
}

// stream writes the staged files into the sandbox.
func (n *node) stream(ctx context.Context) error {
	files := n.machine.Files()
	return n.staged.each(func(p, rel string) error {
		f, err := os.Open(p)
		if err != nil {
			return &v1.Error{Code: v1.CodeContextUnread, Op: "put in context", Err: err}
		}
		defer f.Close()
		_, err = files.Write(ctx, path.Join(n.inside, rel), f, sandbox.WriteOptions{Parents: true})
		return err
	})
}

// each gives every staged file, and its name with slashes.
func (s *staged) each(f func(file, rel string) error) error {
	dir, err := filepath.EvalSymlinks(s.dir) // it may have been relocated by an earlier program
	if err != nil {
		return &v1.Error{Code: v1.CodeContextMissing, Op: "put in context", Err: err}
	}
	return filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		return f(p, filepath.ToSlash(rel))
	})
}

// install runs the bridge's own cells: at the beginning, and again when the interpreter was lost.
func (n *node) install(ctx context.Context) error {
	code, err := n.installCode()
	if err != nil {
		return err
	}
	if err := n.own(ctx, code); err != nil {
		return err
	}
	if len(n.staged.Contexts) > 0 {
		n.mu.Lock()
		n.loaded = nil
		n.mu.Unlock()
		err := n.own(ctx, fmt.Sprintf("import recluse_rlm as __m\n__m.load(%q)\ndel __m", n.inside))
		n.mu.Lock()
		loaded := n.loaded
		n.mu.Unlock()
		switch {
		case loaded != nil && loaded.Error != nil && loaded.Error.Code == "memory", loaded == nil && errors.Is(err, errOutOfMemory):
			return &v1.Error{
				Code: v1.CodeContextUnread, Op: "put in context", Message: fmt.Sprintf("%d bytes of context do not fit into the sandbox's memory", n.staged.bytes),
				Remedy: "give the sandbox more memory", Err: err,
			}
		case loaded != nil && loaded.Error != nil:
			return &v1.Error{Code: loaded.Error.Code, Op: "put in context", Message: loaded.Error.Message}
		case err != nil:
			return err
		case loaded == nil:
			return &v1.Error{Code: v1.CodeContextUnread, Op: "put in context", Message: "the interpreter did not tell what it has loaded"}
		}
		n.notes = loaded.Contexts
		for i := range n.notes {
			if i < len(n.staged.Contexts) {
				n.notes[i].Name, n.notes[i].Skipped = n.staged.Contexts[i].Name, n.staged.Contexts[i].Skipped
			}
		}
	}
	if h := n.run.q.History; n.depth == 0 && len(h) > 0 {
		return n.setHistory(ctx, h)
	}
	return nil
}

// installCode is the cell that puts in the bridge, with the tools of the run.
func (n *node) installCode() (string, error) {
	return installCell(map[string]any{"error_strings": n.run.engine.o.ErrorStrings, "tools": bridgeTools(n.run.tools)})
}

// setHistory makes a conversation the variable history.
func (n *node) setHistory(ctx context.Context, messages any) error {
	data, err := json.Marshal(messages)
	if err != nil {
		return err
	}
	name := path.Join(streamPath, "history.json")
	if err := n.machine.Files().WriteAll(ctx, name, data, sandbox.WriteOptions{Parents: true}); err != nil {
		return err
	}
	return n.own(ctx, fmt.Sprintf("import recluse_rlm as __m\n__m.set_history(%q)\ndel __m", name))
}

var errOutOfMemory = errors.New("out of memory")

// own runs a cell of the bridge itself. If that fails, the interpreter is of no use.
func (n *node) own(ctx context.Context, code string) error {
	v, err := n.machine.Cell(gate.Bypass(ctx), sandbox.Cell{Code: code, RunOptions: sandbox.RunOptions{Timeout: v1.NoLimit}})
	if err != nil {
		return err
	}
	if v.OK() {
		return nil
	}
	why := errors.New(v.String())
	if v.Ended == v1.EndedMemory {
		why = errOutOfMemory
	}
	if v.Error != nil {
		why = errors.New(v.Error.Traceback)
	}
	if v.Ended == v1.EndedCancelled && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &v1.Error{Code: v1.CodeSandboxLost, Op: "prepare the interpreter", Message: "the interpreter could not be prepared", Err: why}
}

// detacher is a machine that can be let go of while it runs.
type detacher interface{ Detach() }

// close ends the machine and what was kept of it. One that is left to another program stays.
func (n *node) close() {
	if n.machine == nil {
		return
	}
	if d, ok := n.machine.(detacher); ok && n.depth == 0 && !n.borrowed && n.taken() == nil && n.run.engine.o.Durable && left(n.ctx) {
		d.Detach()
		return
	}
	log := n.run.engine.o.Logger
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	boxes := n.run.engine.o.Sandboxes
	drop := func(id string) {
		if err := boxes.DeleteSnapshot(ctx, id); err != nil {
			log.Warn("a snapshot of a run is left behind", "run", n.run.id, "snapshot", id, "error", err)
		}
	}
	if n.snapshot != "" {
		drop(n.snapshot)
	}
	for _, id := range n.named {
		drop(id)
	}
	if n.borrowed {
		n.machine.OnHostCall(nil)
		return
	}
	if err := n.machine.Close(); err != nil {
		log.Warn("a sandbox of a run is left behind", "run", n.run.id, "sandbox", n.machine.ID(), "error", err)
	}
}
