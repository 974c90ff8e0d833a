package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// mountPath is where a large context is seen inside.
	mountPath = "/context"
	// streamPath is where a small one is written to: that takes no mount, so that the sandbox can come from a warm template.
	streamPath  = "/tmp/.context"
	streamBelow = 8 << 20

	leastMemory = 512 << 20
	extraMemory = 256 << 20
	closeWait   = 30 * time.Second
)

// memoryFor is what a sandbox with so much context needs: the text, a second one while code works on it, and some more.
func memoryFor(bytes int64) int64 { return max(leastMemory, bytes*5/2+extraMemory) }

// spec is what this node's sandbox is made from.
func (n *node) spec(mount bool) sandbox.Spec {
	spec := n.run.engine.o.Spec.WithDefaults()
	asked := n.run.engine.o.Spec.Limits
	if asked.Memory == 0 {
		spec.Limits.Memory = memoryFor(n.staged.bytes)
		if !mount {
			spec.Limits.Memory += n.staged.bytes
		}
		if asked.Disk == 0 {
			spec.Limits.Disk = 0
		}
	}
	if !mount && asked.Disk == 0 && n.staged.bytes > spec.Limits.Memory/4 {
		spec.Limits.Disk = min(n.staged.bytes+(64<<20), spec.Limits.Memory-sandbox.MemoryReserve)
	}
	if mount {
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Host: n.staged.dir, Path: mountPath})
	}
	if spec.Labels == nil {
		spec.Labels = map[string]string{}
	}
	spec.Labels["recluse.run"], spec.Labels["recluse.node"] = n.run.id, n.id
	spec.Persist = spec.Persist || n.run.engine.o.Durable && n.depth == 0
	return spec
}

// open makes the machine and puts bridge and context into it.
func (n *node) open(ctx context.Context) error {
	mounted := false
	n.ctx = ctx
	if n.machine == nil {
		var err error
		if mounted, err = n.make(ctx); err != nil {
			return err
		}
	}
	n.machine.OnHostCall(n.serve(ctx))
	n.inside = mountPath
	if !mounted {
		n.inside = path.Join(streamPath, n.run.id)
	}
	n.run.emit(n, 0, KindSandbox, SandboxReady{ID: n.machine.ID(), Inside: n.inside})
	if !mounted {
		if err := n.stream(ctx); err != nil {
			return err
		}
	}
	if err := n.install(ctx); err != nil {
		return err
	}
	n.run.emit(n, 0, KindContext, ContextLoaded{Contexts: n.notes, Bytes: n.staged.bytes})
	return nil
}

// make opens a sandbox, with a large context mounted where that can be done.
func (n *node) make(ctx context.Context) (mounted bool, err error) {
	boxes := n.run.engine.o.Sandboxes
	if n.staged.bytes > streamBelow && boxes.Capabilities(ctx).Mounts {
		n.machine, err = boxes.Open(ctx, n.spec(true))
		if sandbox.CodeOf(err) == sandbox.CodeMountRefused {
			// The user's data may lie where nothing is ever shown from, e.g. below /root.
			if err = n.staged.relocate(); err == nil {
				n.machine, err = boxes.Open(ctx, n.spec(true))
			}
		}
		if err == nil {
			return true, nil
		}
		if sandbox.CodeOf(err) != sandbox.CodeMountRefused {
			return false, err
		}
	}
	n.machine, err = boxes.Open(ctx, n.spec(false))
	return false, err
}

// relocate moves the staged files to the directory for temporary ones, and leaves a link behind.
func (s *staged) relocate() error {
	fail := func(err error) error {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: "put in context", Message: "the context could not be moved to where it can be mounted from", Err: err}
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

// stream writes the staged files into the sandbox.
func (n *node) stream(ctx context.Context) error {
	files := n.machine.Files()
	return filepath.WalkDir(n.staged.dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(n.staged.dir, p)
		if err != nil {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return &sandbox.Error{Code: CodeContextUnread, Op: "put in context", Err: err}
		}
		defer f.Close()
		_, err = files.Write(ctx, path.Join(n.inside, filepath.ToSlash(rel)), f, sandbox.WriteOptions{Parents: true})
		return err
	})
}

// install runs the bridge's own cells: at the beginning, and again when the interpreter was lost.
func (n *node) install(ctx context.Context) error {
	var tools []bridgeTool
	for _, t := range n.run.engine.o.Tools {
		tools = append(tools, bridgeTool{t.Name, t.Doc, t.Source})
	}
	code, err := installCell(map[string]any{"error_strings": n.run.engine.o.ErrorStrings, "tools": tools})
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
			return &sandbox.Error{
				Code: CodeContextUnread, Op: "put in context", Message: fmt.Sprintf("%d bytes of context do not fit into the sandbox's memory", n.staged.bytes),
				Remedy: "give the sandbox more memory", Err: err,
			}
		case loaded != nil && loaded.Error != nil:
			return &sandbox.Error{Code: loaded.Error.Code, Op: "put in context", Message: loaded.Error.Message}
		case err != nil:
			return err
		case loaded == nil:
			return &sandbox.Error{Code: CodeContextUnread, Op: "put in context", Message: "the interpreter did not tell what it has loaded"}
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
	v, err := n.machine.Cell(gate.Passed(ctx), sandbox.Cell{Code: code, Timeout: sandbox.NoTimeout})
	if err != nil {
		return err
	}
	if v.OK() {
		return nil
	}
	why := errors.New(v.String())
	if v.Ended == sandbox.EndedMemory {
		why = errOutOfMemory
	}
	if v.Error != nil {
		why = errors.New(v.Error.Traceback)
	}
	if v.Ended == sandbox.EndedCancelled && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &sandbox.Error{Code: sandbox.CodeSandboxLost, Op: "prepare the interpreter", Message: "the interpreter could not be prepared", Err: why}
}

// close ends the machine and what was kept of it.
func (n *node) close() {
	if n.machine == nil {
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
