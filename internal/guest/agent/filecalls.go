//go:build linux

package agent

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"

	"github.com/recluse-dev/recluse/internal/guest/files"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// absolute returns an absolute path. A relative path begins in the working directory, as for commands.
func (a *Agent) absolute(path []byte) string {
	if len(path) > 0 && path[0] == '/' {
		return string(path)
	}
	return a.cfg.Dir + "/" + string(path)
}

// root returns the directory that confines a call; empty: the whole file system.
func (a *Agent) root(root []byte) string {
	if len(root) == 0 {
		return ""
	}
	return a.absolute(root)
}

// path returns the path of a call. With a root, all paths begin at the root.
func (a *Agent) path(root, path []byte) string {
	if len(root) > 0 {
		return string(path)
	}
	return a.absolute(path)
}

// fileCall answers calls about files. known is false for other calls.
func (a *Agent) fileCall(ctx context.Context, st *wire.Stream, req *wire.Request) (reusable, known bool) {
	fsys := a.files
	switch c := req.Call.(type) {
	case *wire.Request_FileRead:
		r := c.FileRead
		ctx, cancel := cancelOnClose(ctx, st)
		defer cancel()
		info, _, err := fsys.Read(ctx, a.root(r.Root), a.path(r.Root, r.Path), r.Offset, r.Limit, dataWriter{st})
		a.fileEnd(st, info, err)
		return false, true
	case *wire.Request_FileWrite:
		w := c.FileWrite
		in := &dataReader{st: st}
		info, err := fsys.Write(ctx, a.root(w.Root), a.path(w.Root, w.Path), in, files.WriteOptions{
			Mode:         fs.FileMode(w.Mode),
			MkdirParents: w.Parents,
			Exclusive:    w.Exclusive,
			Append:       w.Append,
		})
		return a.fileEnd(st, info, err) && in.over, true
	case *wire.Request_FileStat:
		info, err := fsys.Stat(ctx, a.root(c.FileStat.Root), a.path(c.FileStat.Root, c.FileStat.Path))
		return a.fileEnd(st, info, err), true
	case *wire.Request_FileList:
		l := c.FileList
		res, err := fsys.List(ctx, a.root(l.Root), a.path(l.Root, l.Path), files.ListOptions{
			Recursive: l.Recursive, Depth: int(l.Depth), Max: int(l.Max), After: string(l.After),
		}, func(i files.Info) error { return st.Send(&wire.Frame{Body: &wire.Frame_File{File: fileInfo(i)}}) })
		if err != nil {
			return answer(st, fileFailure(err)), true
		}
		end := &wire.ListEnd{Next: []byte(res.Next), Unreadable: int64(res.Unreadable)}
		return last(st, &wire.Frame{Body: &wire.Frame_Listed{Listed: end}}), true
	case *wire.Request_FileMkdir:
		m := c.FileMkdir
		err := fsys.Mkdir(ctx, a.root(m.Root), a.path(m.Root, m.Path), files.MkdirOptions{Parents: m.Parents})
		return answer(st, fileFailure(err)), true
	case *wire.Request_FileMove:
		m := c.FileMove
		err := fsys.Move(ctx, a.root(m.Root), a.path(m.Root, m.From), a.path(m.Root, m.To),
			files.MoveOptions{Exclusive: m.Exclusive})
		return answer(st, fileFailure(err)), true
	case *wire.Request_FileRemove:
		r := c.FileRemove
		_, err := fsys.Remove(ctx, a.root(r.Root), a.path(r.Root, r.Path), files.RemoveOptions{Recursive: r.Recursive})
		return answer(st, fileFailure(err)), true
	case *wire.Request_FileWatch:
		a.watch(ctx, st, c.FileWatch)
		return false, true
	case *wire.Request_TarIn:
		t := c.TarIn
		in := &dataReader{st: st}
		stats, err := fsys.TarIn(ctx, a.root(t.Root), a.path(t.Root, t.Path), in, files.TarOptions{
			MaxBytes: t.MaxBytes, MaxEntries: t.MaxEntries, MkdirParents: t.Parents, Exclusive: t.Exclusive,
		})
		if err == nil {
			_, err = io.Copy(io.Discard, in) // padding after the end of the archive
		}
		return a.tarEnd(st, stats, err) && in.over, true
	case *wire.Request_TarOut:
		paths := make([]string, len(c.TarOut.Paths))
		for i, p := range c.TarOut.Paths {
			paths[i] = a.path(c.TarOut.Root, p)
		}
		ctx, cancel := cancelOnClose(ctx, st)
		defer cancel()
		stats, err := fsys.TarOut(ctx, a.root(c.TarOut.Root), paths, dataWriter{st}, files.TarOptions{})
		a.tarEnd(st, stats, err)
		return false, true
	}
	return false, false
}

// fileEnd ends a call with an Info or an error.
func (a *Agent) fileEnd(st *wire.Stream, i files.Info, err error) bool {
	if err != nil {
		return answer(st, fileFailure(err))
	}
	return last(st, &wire.Frame{Body: &wire.Frame_File{File: fileInfo(i)}})
}

// tarEnd ends a call with the statistics of an archive or an error.
func (a *Agent) tarEnd(st *wire.Stream, s files.Stats, err error) bool {
	if err != nil {
		return answer(st, fileFailure(err))
	}
	t := &wire.TarStats{Entries: s.Entries, Bytes: s.Bytes, SkippedCount: s.SkippedCount, ChangedCount: s.ChangedCount}
	for _, n := range s.Skipped {
		t.Skipped = append(t.Skipped, &wire.TarNote{Path: []byte(n.Path), Reason: n.Reason})
	}
	for _, c := range s.Changed {
		t.Changed = append(t.Changed, []byte(c))
	}
	return last(st, &wire.Frame{Body: &wire.Frame_Tar{Tar: t}})
}

// watch sends changes until the host closes the stream.
func (a *Agent) watch(ctx context.Context, st *wire.Stream, w *wire.FileWatch) {
	ctx, cancel := cancelOnClose(ctx, st)
	defer cancel()
	opts := files.WatchOptions{Recursive: w.Recursive}
	err := a.files.Watch(ctx, a.root(w.Root), a.path(w.Root, w.Path), opts, func(e files.Event) error {
		ev := &wire.FileEvent{Op: string(e.Op), Path: []byte(e.Path), From: []byte(e.From)}
		return st.Send(&wire.Frame{Body: &wire.Frame_Event{Event: ev}})
	})
	answer(st, fileFailure(err))
}

func fileInfo(i files.Info) *wire.FileInfo {
	return &wire.FileInfo{
		Path:    []byte(i.Path),
		Size:    i.Size,
		Mode:    uint32(i.Mode),
		MtimeNs: i.ModTime.UnixNano(),
		Uid:     uint32(i.UID),
		Gid:     uint32(i.GID),
		Link:    []byte(i.LinkTarget),
		Kind:    i.Kind,
	}
}

// fileFailure converts an error of package files. It returns nil for nil.
func fileFailure(err error) *wire.Error {
	if err == nil {
		return nil
	}
	f := wire.Errorf("file_"+string(files.KindOf(err)), "%v", err)
	if e, ok := errors.AsType[*files.Error](err); ok {
		f.Message = strings.ToValidUTF8(e.Err.Error(), "?")
		f.Path = []byte(e.Path)
	}
	return f
}

// dataWriter sends written bytes as data frames.
type dataWriter struct{ st *wire.Stream }

func (w dataWriter) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		n := min(len(p), wire.Chunk)
		if err := w.st.Send(&wire.Frame{Body: &wire.Frame_Data{Data: p[:n]}}); err != nil {
			return total - len(p), err
		}
		p = p[n:]
	}
	return total, nil
}

// dataReader reads data frames up to eof. If the stream ends early, or the host sends an error frame, Read returns an
// error instead of io.EOF.
type dataReader struct {
	st   *wire.Stream
	rest []byte
	over bool
}

var errAborted = errors.New("the host has aborted the transfer")

func (r *dataReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.over {
			return 0, io.EOF
		}
		f := &wire.Frame{}
		if err := r.st.Receive(f); err != nil {
			return 0, io.ErrUnexpectedEOF
		}
		if f.GetError() != nil {
			r.over = true
			return 0, errAborted
		}
		r.over = f.GetEof()
		r.rest = f.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
