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
	"slices"
	"time"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// mountPath is the path in the sandbox of a large context that is mounted.
	mountPath = "/context"
	// streamPath is the directory in the sandbox for small contexts, and for large ones that can be neither shared nor
	// mounted.
	streamPath = "/tmp/.context"
	// shareName is the directory of a large context below sandbox.SharedDir.
	shareName = "context"
	// A context is large if it has more than streamBelow bytes or more than streamFiles files.
	streamBelow = 8 << 20
	streamFiles = 64

	minMemory   = 512 << 20
	extraMemory = 256 << 20
	// The memory is rounded up to a multiple of memoryStep: sandboxes of the same size come from the same warm
	// template.
	memoryStep = 256 << 20
	closeWait  = 30 * time.Second
)

// transfer is how a context gets into a sandbox.
type transfer int

const (
	streamed transfer = iota // written through Files
	shared                   // shared (linked) without a copy or a mount, so that a template can be used
	mounted                  // mounted without a copy
)

// sharer is a Sandbox that can share files of the host.
type sharer interface {
	Share(ctx context.Context, file, name string) (string, error)
}

// memoryFor returns the memory that a sandbox needs for a context of this size: the text, a second copy while code
// works on it, and extraMemory.
func memoryFor(bytes int64) int64 {
	need := max(minMemory, bytes*5/2+extraMemory)
	return (need + memoryStep - 1) / memoryStep * memoryStep
}

// large reports whether the context should be shared or mounted rather than streamed.
func (s *staged) large() bool {
	files := 0
	for _, e := range s.Contexts {
		files += e.Files
	}
	return s.bytes > streamBelow || files > streamFiles
}

// spec returns the spec of this node's sandbox.
func (n *node) spec(ctx context.Context, w transfer) sandbox.Spec {
	spec := n.run.engine.o.Spec.WithDefaults()
	configured := n.run.engine.o.Spec.Limits
	if configured.Memory == 0 {
		spec.Limits.Memory = n.memoryLimit(w)
	}
	inMemory := spec.ReadOnly || !n.run.engine.o.Sandboxes.Capabilities(ctx).WritableRoot
	if w == streamed && inMemory && configured.Disk == 0 && n.staged.bytes > spec.Limits.Memory/4 {
		spec.Limits.Disk = min(n.staged.bytes+(64<<20), spec.Limits.Memory-v1.MemoryReserve)
	}
	if w == mounted {
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Host: n.staged.dir, Path: mountPath})
	}
	if spec.Labels == nil {
		spec.Labels = map[string]string{}
	}
	spec.Labels[LabelRun], spec.Labels[labelPrefix+"node"] = n.run.id, n.id
	spec.Persist = spec.Persist || n.run.engine.o.Durable && n.resumable()
	return spec
}

// resumable reports whether a resumed run can continue with the sandbox of this node.
func (n *node) resumable() bool { return n.depth == 0 && n.run.q.Samples < 2 }

// memoryLimit returns the memory limit of this node's sandbox if the spec sets none. A streamed context is in memory
// twice: the file in the sandbox, and the variable.
func (n *node) memoryLimit(w transfer) int64 {
	if w == streamed && n.staged.large() {
		return memoryFor(n.staged.bytes) + n.staged.bytes
	}
	return memoryFor(n.staged.bytes)
}

// checkHostMemory returns an error if the host has too little memory for the context. Without this check, the
// interpreter would be OOM-killed while it loads the context.
func (n *node) checkHostMemory(ctx context.Context, w transfer) error {
	if n.run.engine.o.Spec.Limits.Memory != 0 || !n.run.engine.o.Sandboxes.Capabilities(ctx).Mounts {
		return nil // the memory is configured, or the sandbox is on another host
	}
	total, need := hostMemory(), n.memoryLimit(w)
	if total == 0 || need <= total {
		return nil
	}
	return &v1.Error{
		Code: v1.CodeContextUnread,
		Op:   "load context",
		Message: fmt.Sprintf("%d bytes of context need %d MiB of memory, and this host has %d MiB",
			n.staged.bytes, need>>20, total>>20),
		Remedy: "use a smaller context, or set the memory of the sandbox",
	}
}

// open makes the sandbox, unless the node has one, and loads the bridge and the context into it.
func (n *node) open(ctx context.Context) error {
	n.ctx = ctx
	w := streamed
	if n.staged.large() {
		w = shared
	}
	if n.sandbox == nil {
		var err error
		if w, err = n.openSandbox(ctx); err != nil {
			return err
		}
	}
	n.sandbox.OnHostCall(n.serve(ctx))
	if err := n.transferContext(ctx, w); err != nil {
		return err
	}
	if err := n.install(ctx); err != nil {
		return err
	}
	n.emitContext()
	return nil
}

// emitContext records the loaded contexts as an event.
func (n *node) emitContext() {
	n.run.emit(n, 0, v1.KindContext,
		v1.ContextLoaded{Contexts: n.notes, Bytes: n.staged.bytes, Interpreter: n.interpreter})
}

// openSandbox opens a sandbox and returns how the context gets into it.
func (n *node) openSandbox(ctx context.Context) (w transfer, err error) {
	boxes := n.run.engine.o.Sandboxes
	can := boxes.Capabilities(ctx)
	switch {
	case !n.staged.large():
	case can.Shares:
		w = shared
	case can.Mounts:
		w = mounted
	}
	if err := n.checkHostMemory(ctx, w); err != nil {
		return w, err
	}
	n.sandbox, err = boxes.Open(ctx, n.spec(ctx, w))
	if w != mounted || v1.CodeOf(err) != v1.CodeMountRefused {
		return w, err
	}
	// The user's data directory may be at a path from which mounts are refused, for example below /root.
	if err := n.staged.relocate(); err != nil {
		return w, err
	}
	n.sandbox, err = boxes.Open(ctx, n.spec(ctx, mounted))
	if v1.CodeOf(err) == v1.CodeMountRefused {
		w = streamed
		n.sandbox, err = boxes.Open(ctx, n.spec(ctx, w))
	}
	return w, err
}

// transferContext shares or streams the context into the sandbox. A mounted one is there already.
func (n *node) transferContext(ctx context.Context, w transfer) error {
	switch w {
	case mounted:
		n.emitSandbox(mountPath)
		return nil
	case shared:
		n.emitSandbox(path.Join(sandbox.SharedDir, shareName, n.contextName()))
		err := n.share(ctx)
		if !errors.Is(err, sandbox.ErrNotSupported) {
			return err
		}
	case streamed:
	}
	n.emitSandbox(path.Join(streamPath, n.contextName()))
	return n.stream(ctx)
}

// emitSandbox records the sandbox and the path of the context in it as an event. It is called before the context is
// copied, which takes time. The event does not name a borrowed sandbox, because resuming or deleting the run would
// close it.
func (n *node) emitSandbox(inside string) {
	n.contextPath = inside
	ready := v1.SandboxReady{Inside: inside}
	if !n.borrowed {
		ready.ID = n.sandbox.ID()
	}
	n.run.emit(n, 0, v1.KindSandbox, ready)
}

// contextName returns the directory name of this node's context in the sandbox. It is unique there: a sandbox can also
// have the contexts of earlier questions, and of the node whose copy it is.
func (n *node) contextName() string {
	if n.depth == 0 {
		return n.run.id
	}
	sum := sha256.Sum256([]byte(n.id))
	return n.run.id + "-" + hex.EncodeToString(sum[:6])
}

// relocate moves the staged files to a temporary directory and replaces the old directory by a symbolic link.
func (s *staged) relocate() error {
	fail := func(err error) error {
		return &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "load context",
			Message: "the context could not be moved to a directory that can be mounted",
			Err:     err,
		}
	}
	if s.survey != nil {
		<-s.survey.done // it reads the files
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

// linkTree copies a staged directory. It makes hard links where it can.
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
			err = linkOrCopy(a, b, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// share shares the staged files with the sandbox.
func (n *node) share(ctx context.Context) error {
	m, ok := n.sandbox.(sharer)
	if !ok {
		return sandbox.ErrNotSupported
	}
	return n.staged.each(func(p, rel string) error {
		_, err := m.Share(ctx, p, path.Join(shareName, n.contextName(), rel))
		return err
	})
}

// stream writes the staged files into the sandbox.
func (n *node) stream(ctx context.Context) error {
	files := n.sandbox.Files()
	return n.staged.each(func(p, rel string) error {
		f, err := os.Open(p)
		if err != nil {
			return &v1.Error{Code: v1.CodeContextUnread, Op: "load context", Err: err}
		}
		defer f.Close()
		_, err = files.Write(ctx, path.Join(n.contextPath, rel), f, sandbox.WriteOptions{Parents: true})
		return err
	})
}

// each calls f for every staged file, with its path and its slash-separated path relative to the staged directory.
func (s *staged) each(f func(file, rel string) error) error {
	dir, err := filepath.EvalSymlinks(s.dir) // an earlier program may have relocated it
	if err != nil {
		return &v1.Error{Code: v1.CodeContextMissing, Op: "load context", Err: err}
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

// install runs the cells that install the bridge and load the context: at the beginning, and again after the
// interpreter was lost.
func (n *node) install(ctx context.Context) error {
	code, err := n.installCode()
	if err != nil {
		return err
	}
	if err := n.runInternal(ctx, code); err != nil {
		return err
	}
	if len(n.staged.Contexts) > 0 {
		n.mu.Lock()
		n.loaded = nil
		n.mu.Unlock()
		err := n.runInternal(ctx, fmt.Sprintf("import recluse_rlm as __m\n__m.load(%q)\ndel __m", n.contextPath))
		n.mu.Lock()
		loaded := n.loaded
		n.mu.Unlock()
		switch {
		case loaded != nil && loaded.Error != nil && loaded.Error.Code == "memory",
			loaded == nil && errors.Is(err, errOutOfMemory):
			return &v1.Error{
				Code:    v1.CodeContextUnread,
				Op:      "load context",
				Message: fmt.Sprintf("%d bytes of context do not fit into the sandbox's memory", n.staged.bytes),
				Remedy:  "set a higher memory limit for the sandbox",
				Err:     err,
			}
		case loaded != nil && loaded.Error != nil:
			return &v1.Error{Code: loaded.Error.Code, Op: "load context", Message: loaded.Error.Message}
		case err != nil:
			return err
		case loaded == nil:
			return &v1.Error{
				Code:    v1.CodeContextUnread,
				Op:      "load context",
				Message: "the interpreter did not report the loaded contexts",
			}
		}
		n.notes = loaded.Contexts
		for i := range n.notes {
			if i < len(n.staged.Contexts) {
				if err := n.staged.complete(&n.notes[i], &n.staged.Contexts[i]); err != nil {
					return err
				}
			}
		}
		if !slices.ContainsFunc(n.notes, quotedInPart) {
			n.noteLook() // the model reads all of it in the question
		}
	}
	if h := n.run.q.History; n.depth == 0 && len(h) > 0 {
		return n.setHistory(ctx, h)
	}
	return nil
}

// complete adds to the description of a context what the interpreter does not know, or leaves to us.
func (s *staged) complete(note *v1.ContextNote, e *stagedEntry) (err error) {
	note.Name, note.Skipped = e.Name, e.Skipped
	if note.Type != "str" || note.Lines > 0 {
		return nil
	}
	if note.Lines, err = s.lines(e.File); err != nil {
		return &v1.Error{Code: v1.CodeContextUnread, Op: "load context", Message: e.Name, Err: err}
	}
	return nil
}

// quotedInPart reports whether the description of a context quotes only a part of it.
func quotedInPart(c v1.ContextNote) bool {
	return c.Type != "str" || int64(utf8.RuneCountInString(c.Head)) < c.Chars
}

// installCode returns the cell that installs the bridge and the tools of the run.
func (n *node) installCode() (string, error) {
	return installCell(map[string]any{"error_strings": n.run.engine.o.ErrorStrings, "tools": bridgeTools(n.run.tools)})
}

// setHistory assigns a conversation to the Python variable history.
func (n *node) setHistory(ctx context.Context, messages any) error {
	data, err := json.Marshal(messages)
	if err != nil {
		return err
	}
	name := path.Join(streamPath, "history.json")
	if err := n.sandbox.Files().WriteAll(ctx, name, data, sandbox.WriteOptions{Parents: true}); err != nil {
		return err
	}
	return n.runInternal(ctx, fmt.Sprintf("import recluse_rlm as __m\n__m.set_history(%q)\ndel __m", name))
}

var errOutOfMemory = errors.New("out of memory")

// runInternal runs an internal cell, which bypasses the gate. If the cell fails, the interpreter cannot be used any
// more.
func (n *node) runInternal(ctx context.Context, code string) error {
	cell := sandbox.Cell{Code: code, RunOptions: sandbox.RunOptions{Timeout: v1.NoLimit}}
	v, err := n.sandbox.Cell(gate.Bypass(ctx), cell)
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
	return &v1.Error{
		Code:    v1.CodeSandboxLost,
		Op:      "prepare interpreter",
		Message: "an internal cell failed",
		Err:     why,
	}
}

// detacher is a Sandbox that can be detached without ending it.
type detacher interface{ Detach() }

// close closes the sandbox and deletes its snapshots. A durable sandbox that another program takes over is only
// detached.
func (n *node) close() {
	if n.sandbox == nil {
		return
	}
	if d, ok := n.sandbox.(detacher); ok && n.resumable() && !n.borrowed && n.accepted() == nil &&
		n.run.engine.o.Durable && suspended(n.ctx) {
		d.Detach()
		return
	}
	log := n.run.engine.o.Logger
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	boxes := n.run.engine.o.Sandboxes
	drop := func(id string) {
		if err := boxes.DeleteSnapshot(ctx, id); err != nil {
			log.Warn("could not delete a snapshot of a run", "run", n.run.id, "snapshot", id, "error", err)
		}
	}
	if n.snapshot != "" {
		drop(n.snapshot)
	}
	for _, id := range n.named {
		drop(id)
	}
	if n.borrowed {
		n.sandbox.OnHostCall(nil)
		return
	}
	if err := n.sandbox.Close(); err != nil {
		log.Warn("could not close the sandbox of a run", "run", n.run.id, "sandbox", n.sandbox.ID(), "error", err)
	}
}
