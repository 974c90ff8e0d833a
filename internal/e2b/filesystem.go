package e2b

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	pathpkg "path"
	"strconv"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/internal/ids"
)

// fileService adds the calls about files.
func (h *Handler) fileService(mux *http.ServeMux) {
	const service = "/filesystem.Filesystem/"
	unary(mux, service+"Stat", (*inside).stat)
	unary(mux, service+"ListDir", (*inside).listDir)
	unary(mux, service+"MakeDir", (*inside).makeDir)
	unary(mux, service+"Move", (*inside).move)
	unary(mux, service+"Remove", (*inside).remove)
	streaming(mux, service+"WatchDir", (*inside).watchDir)
	unary(mux, service+"CreateWatcher", (*inside).createWatcher)
	unary(mux, service+"GetWatcherEvents", (*inside).watcherEvents)
	unary(mux, service+"RemoveWatcher", (*inside).removeWatcher)
}

// entry describes a file. A symbolic link has the type of its target.
func entry(ctx context.Context, files v1.FileSystem, i *v1.FileInfo, metadata fileMetadata) *wire.EntryInfo {
	e := &wire.EntryInfo{
		Name:         pathpkg.Base(i.Path),
		Path:         i.Path,
		Type:         fileType(i.Kind),
		Size:         i.Size,
		Mode:         uint32(i.Mode.Perm()),
		Permissions:  i.Mode.String(),
		Owner:        owner(i.UID),
		Group:        owner(i.GID),
		ModifiedTime: timestamppb.New(i.ModTime),
		Metadata:     metadata[i.Path],
	}
	if i.Kind == "symlink" {
		to := i.Link
		if !pathpkg.IsAbs(to) {
			to = pathpkg.Join(pathpkg.Dir(i.Path), to)
		}
		e.SymlinkTarget = &to
		if t, err := files.Stat(ctx, to); err == nil && t.Kind != "symlink" {
			e.Type = fileType(t.Kind)
		}
	}
	return e
}

func fileType(kind string) wire.FileType {
	switch kind {
	case "file":
		return wire.FileType_FILE_TYPE_FILE
	case "dir":
		return wire.FileType_FILE_TYPE_DIRECTORY
	case "symlink":
		return wire.FileType_FILE_TYPE_SYMLINK
	}
	return wire.FileType_FILE_TYPE_UNSPECIFIED
}

// owner returns the name of a user or group: root and the sandbox's own have names, others are numbers.
func owner(id int) string {
	switch id {
	case 0:
		return "root"
	case v1.DefaultUID:
		return defaultUser
	}
	return strconv.Itoa(id)
}

func (d *inside) entryOf(ctx context.Context, files v1.FileSystem, name string) (*wire.EntryInfo, error) {
	i, err := files.Stat(ctx, path(name))
	if err != nil {
		return nil, err
	}
	metadata, err := readMetadata(ctx, d.ses)
	if err != nil {
		return nil, err
	}
	return entry(ctx, files, i, metadata), nil
}

func (d *inside) stat(ctx context.Context, in *wire.StatRequest) (*wire.StatResponse, error) {
	files, err := d.files()
	if err != nil {
		return nil, err
	}
	e, err := d.entryOf(ctx, files, in.GetPath())
	return &wire.StatResponse{Entry: e}, err
}

// maxEntries is the number of entries of a directory in one answer, which is one message.
const maxEntries = 50_000

func (d *inside) listDir(ctx context.Context, in *wire.ListDirRequest) (*wire.ListDirResponse, error) {
	files, err := d.files()
	if err != nil {
		return nil, err
	}
	metadata, err := readMetadata(ctx, d.ses)
	if err != nil {
		return nil, err
	}
	depth := max(1, int(in.GetDepth()))
	out := &wire.ListDirResponse{}
	opts := v1.ListOptions{Recursive: depth > 1, Depth: depth}
	for i, err := range files.List(ctx, path(in.GetPath()), opts) {
		if err != nil {
			return nil, err
		}
		if len(out.Entries) == maxEntries {
			return nil, invalid("the directory has more than 50000 entries; list its parts")
		}
		out.Entries = append(out.Entries, entry(ctx, files, i, metadata))
	}
	return out, nil
}

// makeDir creates a directory and its parents. That it exists already is an error, which the SDKs expect.
func (d *inside) makeDir(ctx context.Context, in *wire.MakeDirRequest) (*wire.MakeDirResponse, error) {
	files, err := d.files()
	if err != nil {
		return nil, err
	}
	if _, err := files.Stat(ctx, path(in.GetPath())); err == nil {
		return nil, &v1.Error{Code: v1.CodeFileExists, Op: "make directory", Message: "the path exists already"}
	}
	if err := files.Mkdir(ctx, path(in.GetPath()), v1.MkdirOptions{Parents: true}); err != nil {
		return nil, err
	}
	e, err := d.entryOf(ctx, files, in.GetPath())
	return &wire.MakeDirResponse{Entry: e}, err
}

// move renames a file. The directory that it moves to is created.
func (d *inside) move(ctx context.Context, in *wire.MoveRequest) (*wire.MoveResponse, error) {
	files, err := d.files()
	if err != nil {
		return nil, err
	}
	to := path(in.GetDestination())
	if dir := pathpkg.Dir(to); dir != "." && dir != "/" {
		if err := files.Mkdir(ctx, dir, v1.MkdirOptions{Parents: true}); err != nil {
			return nil, err
		}
	}
	from, err := files.Stat(ctx, path(in.GetSource()))
	if err != nil {
		return nil, err
	}
	if err := files.Move(ctx, path(in.GetSource()), to, v1.MoveOptions{}); err != nil {
		return nil, err
	}
	i, err := files.Stat(ctx, to)
	if err != nil {
		return nil, err
	}
	if err := d.changeMetadata(ctx, func(all fileMetadata) bool { return all.move(from.Path, i.Path) }); err != nil {
		return nil, err
	}
	e, err := d.entryOf(ctx, files, in.GetDestination())
	return &wire.MoveResponse{Entry: e}, err
}

// remove removes a file, or a directory with everything in it. A missing file is not an error.
func (d *inside) remove(ctx context.Context, in *wire.RemoveRequest) (*wire.RemoveResponse, error) {
	files, err := d.files()
	if err != nil {
		return nil, err
	}
	i, err := files.Stat(ctx, path(in.GetPath()))
	if err == nil {
		err = files.Remove(ctx, path(in.GetPath()), v1.RemoveOptions{Recursive: true})
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &wire.RemoveResponse{}, nil
	case err != nil:
		return nil, err
	}
	err = d.changeMetadata(ctx, func(all fileMetadata) bool { return all.move(i.Path, "") })
	return &wire.RemoveResponse{}, err
}

// watching is what to watch.
type watching struct {
	files     v1.FileSystem
	dir       string
	recursive bool
	// entries, if not nil, returns the metadata of files, which events then describe.
	entries func(context.Context) (fileMetadata, error)
}

// watchRequest is a request to watch a directory.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
}

func (d *inside) watching(files v1.FileSystem, in watchRequest) watching {
	o := watching{files: files, dir: path(in.GetPath()), recursive: in.GetRecursive()}
	if in.GetIncludeEntry() {
		o.entries = func(ctx context.Context) (fileMetadata, error) { return readMetadata(ctx, d.ses) }
	}
	return o
}

// run calls ready once changes are observed, and then event for each, until ctx ends.
func (o watching) run(ctx context.Context, ready func() error, event func(*wire.FilesystemEvent) error) error {
	root, err := o.files.Stat(ctx, o.dir)
	if err != nil {
		return err
	}
	if root.Kind != "dir" {
		return &v1.Error{Code: v1.CodeFileNotDirectory, Op: "watch directory", Message: "the path is not a directory"}
	}
	return o.files.Watch(ctx, o.dir, v1.WatchOptions{Recursive: o.recursive}, func(e v1.FileEvent) error {
		send := func(kind wire.EventType, path string) error {
			ev := &wire.FilesystemEvent{Type: kind, Name: below(root.Path, path)}
			if o.entries != nil {
				metadata, err := o.entries(ctx)
				if err != nil {
					return err
				}
				if i, err := o.files.Stat(ctx, path); err == nil {
					ev.Entry = entry(ctx, o.files, i, metadata)
				}
			}
			return event(ev)
		}
		switch e.Op {
		case "ready":
			return ready()
		case "create":
			return send(wire.EventType_EVENT_TYPE_CREATE, e.Path)
		case "modify":
			return send(wire.EventType_EVENT_TYPE_WRITE, e.Path)
		case "remove":
			return send(wire.EventType_EVENT_TYPE_REMOVE, e.Path)
		case "rename": // E2B reports the old name, and the new one as created
			if err := send(wire.EventType_EVENT_TYPE_RENAME, e.From); err != nil {
				return err
			}
			return send(wire.EventType_EVENT_TYPE_CREATE, e.Path)
		}
		return errMissed
	})
}

var errMissed = connect.NewError(connect.CodeDataLoss, errors.New("some changes were missed: there were too many at once"))

// below returns a path relative to a directory that contains it.
func below(dir, name string) string {
	if dir != "/" {
		dir += "/"
	}
	if len(name) > len(dir) && name[:len(dir)] == dir {
		return name[len(dir):]
	}
	return name
}

func (d *inside) watchDir(
	ctx context.Context, in *wire.WatchDirRequest, s *connect.ServerStream[wire.WatchDirResponse],
) error {
	files, err := d.files()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	var mu sync.Mutex
	send := func(m *wire.WatchDirResponse) error {
		mu.Lock()
		defer mu.Unlock()
		return s.Send(m)
	}
	stop := func() {}
	defer func() { stop() }()
	o := d.watching(files, in)
	return o.run(ctx, func() error {
		stop = d.keepAlive(func() error {
			return send(&wire.WatchDirResponse{
				Event: &wire.WatchDirResponse_Keepalive{Keepalive: &wire.WatchDirResponse_KeepAlive{}},
			})
		})
		return send(&wire.WatchDirResponse{Event: &wire.WatchDirResponse_Start{Start: &wire.WatchDirResponse_StartEvent{}}})
	}, func(e *wire.FilesystemEvent) error {
		return send(&wire.WatchDirResponse{Event: &wire.WatchDirResponse_Filesystem{Filesystem: e}})
	})
}

const (
	// maxWatchers is the number of watchers that are asked for their events, of all sandboxes.
	maxWatchers = 1000
	// maxEvents is the number of events that a watcher keeps until it is asked.
	maxEvents = 10_000
)

// watchers are the watchers that callers ask for their events. They end with the server.
type watchers struct {
	mu  sync.Mutex
	all map[string]*watcher // guarded by mu; by id
	wg  sync.WaitGroup
}

type watcher struct {
	session string // id
	stop    context.CancelFunc

	mu     sync.Mutex
	events []*wire.FilesystemEvent // guarded by mu
	err    error                   // guarded by mu; why it has ended
}

func (w *watchers) close() {
	w.mu.Lock()
	for _, one := range w.all {
		one.stop()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

func (w *watchers) add(one *watcher) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) >= maxWatchers {
		return "", &v1.Error{Code: v1.CodeQueueFull, Op: "watch directory", Message: "there are too many watchers"}
	}
	if w.all == nil {
		w.all = map[string]*watcher{}
	}
	id := ids.Hex(8)
	w.all[id] = one
	return id, nil
}

func (w *watchers) get(session, id string, remove bool) (*watcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.all[id]
	if one == nil || one.session != session {
		return nil, &v1.Error{Code: v1.CodeNotFound, Op: "find watcher", Message: "no such watcher"}
	}
	if remove {
		delete(w.all, id)
	}
	return one, nil
}

func (d *inside) createWatcher(
	ctx context.Context, in *wire.CreateWatcherRequest,
) (*wire.CreateWatcherResponse, error) {
	files, err := d.files()
	if err != nil {
		return nil, err
	}
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	one := &watcher{session: d.ses.ID(), stop: stop}
	id, err := d.watchers.add(one)
	if err != nil {
		stop()
		return nil, err
	}
	o := d.watching(files, in)
	ready, failed := make(chan struct{}), make(chan error, 1)
	d.watchers.wg.Go(func() {
		err := o.run(own, func() error { close(ready); return nil }, func(e *wire.FilesystemEvent) error {
			one.mu.Lock()
			defer one.mu.Unlock()
			if len(one.events) >= maxEvents {
				return errMissed
			}
			one.events = append(one.events, e)
			return nil
		})
		failed <- err
		one.mu.Lock()
		defer one.mu.Unlock()
		one.err = err
	})
	select {
	case <-ready:
		return &wire.CreateWatcherResponse{WatcherId: id}, nil
	case err = <-failed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	stop()
	_, _ = d.watchers.get(one.session, id, true)
	return nil, err
}

func (d *inside) watcherEvents(
	_ context.Context, in *wire.GetWatcherEventsRequest,
) (*wire.GetWatcherEventsResponse, error) {
	one, err := d.watchers.get(d.ses.ID(), in.GetWatcherId(), false)
	if err != nil {
		return nil, err
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	out := &wire.GetWatcherEventsResponse{Events: one.events}
	one.events = nil
	if len(out.Events) == 0 && one.err != nil {
		return nil, one.err
	}
	return out, nil
}

func (d *inside) removeWatcher(
	_ context.Context, in *wire.RemoveWatcherRequest,
) (*wire.RemoveWatcherResponse, error) {
	one, err := d.watchers.get(d.ses.ID(), in.GetWatcherId(), true)
	if err != nil {
		return nil, err
	}
	one.stop()
	return &wire.RemoveWatcherResponse{}, nil
}
