package rlm

import (
	"iter"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/trajectory"
)

// Runs lists the runs that are kept, the newest first. It reads the ends of their logs only; what an interrupted one has done is counted once and kept
// beside its log.
func (e *Engine) Runs() iter.Seq2[*Info, error] {
	return func(yield func(*Info, error) bool) {
		entries, err := os.ReadDir(e.dir)
		if err != nil {
			yield(nil, &v1.Error{Code: v1.CodeInternal, Op: "list runs", Err: err})
			return
		}
		for _, d := range slices.Backward(entries) {
			info, err := e.glance(d.Name())
			if v1.CodeOf(err) == v1.CodeRunNotFound {
				continue
			}
			if !yield(info, err) {
				return
			}
		}
	}
}

// Show tells about one run.
func (e *Engine) Show(id string) (*Info, error) {
	p, err := e.readPast(id, -1, false)
	if err != nil {
		return nil, err
	}
	info := &Info{
		ID: id, Query: p.saved.Query, Model: p.model, Labels: p.saved.Labels, Limits: p.saved.Limits, Started: p.begun, Turns: len(p.turns), Wall: p.worked, Result: p.ended,
	}
	for _, s := range p.spent {
		info.Usage = info.Usage.Add(s.Usage)
	}
	if r := info.Result; r != nil {
		info.Model, info.Limits, info.Turns, info.Usage, info.Wall = or(r.Model, p.started.Model), r.Limits, r.Turns, r.Usage, r.Wall
		return info, nil
	}
	info.Running = running(p.dir)
	return info, nil
}

// glance tells what Show does, and reads no more of the log than it must.
func (e *Engine) glance(id string) (*Info, error) {
	dir, err := e.runDir(id)
	if err != nil {
		return nil, err
	}
	first, last, size, err := trajectory.Ends(dir)
	if err != nil || first.Kind != v1.KindRunStarted {
		return e.Show(id) // it says best what is wrong
	}
	if last.Kind == v1.KindRunEnded {
		var s v1.RunStarted
		res := &Result{}
		if first.Decode(&s) == nil && last.Decode(res) == nil {
			return &Info{
				ID: id, Query: s.Query, Model: or(res.Model, s.Model), Labels: s.Labels, Limits: res.Limits, Started: first.Time, Turns: res.Turns, Usage: res.Usage, Wall: res.Wall, Result: res,
			}, nil
		}
	}
	busy := running(dir)
	if n := readNote(dir); !busy && n != nil && n.Size == size {
		return n.Info, nil
	}
	info, err := e.Show(id)
	if err == nil && !busy && !info.Running && info.Result == nil {
		writeNote(dir, &listNote{Size: size, Info: info})
	}
	return info, err
}

// noteFile keeps what is told of an interrupted run. It holds as long as the log has the size that it was made from.
const noteFile = "list.json"

type listNote struct {
	Size int64 `json:"log_size"`
	Info *Info `json:"info"`
}

func readNote(dir string) *listNote {
	n := &listNote{}
	if atomicfile.ReadJSON(filepath.Join(dir, noteFile), n) != nil || n.Info == nil {
		return nil // the log has everything
	}
	return n
}

func writeNote(dir string, n *listNote) {
	_ = atomicfile.WriteJSON(filepath.Join(dir, noteFile), n) // without it the next list takes longer
}
