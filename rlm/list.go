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

// Runs lists the stored runs, newest first. It reads only the first and the last event of each run. The Info of an
// interrupted run is computed once and cached in the run's directory.
func (e *Engine) Runs() iter.Seq2[*Info, error] {
	return func(yield func(*Info, error) bool) {
		entries, err := os.ReadDir(e.dir)
		if err != nil {
			yield(nil, &v1.Error{Code: v1.CodeInternal, Op: "list runs", Err: err})
			return
		}
		for _, d := range slices.Backward(entries) {
			info, err := e.infoFromEnds(d.Name())
			if v1.CodeOf(err) == v1.CodeRunNotFound {
				continue
			}
			if !yield(info, err) {
				return
			}
		}
	}
}

// Show returns the Info of a stored run.
func (e *Engine) Show(id string) (*Info, error) {
	p, err := e.readRun(id, -1, false)
	if err != nil {
		return nil, err
	}
	info := &Info{
		ID:      id,
		Query:   p.saved.Query,
		Model:   p.model,
		Labels:  p.saved.Labels,
		Limits:  p.saved.Limits,
		Started: p.started,
		Turns:   len(p.turns),
		Wall:    p.worked,
		Result:  p.ended,
	}
	for _, s := range p.spent {
		info.Usage = info.Usage.Add(s.Usage)
	}
	if r := info.Result; r != nil {
		info.Model = or(r.Model, p.startEvent.Model)
		info.Limits, info.Turns, info.Usage, info.Wall = r.Limits, r.Turns, r.Usage, r.Wall
		return info, nil
	}
	info.Running = running(p.dir)
	return info, nil
}

// infoFromEnds returns what Show returns, but reads the whole log only if necessary.
func (e *Engine) infoFromEnds(id string) (*Info, error) {
	dir, err := e.runDir(id)
	if err != nil {
		return nil, err
	}
	first, last, size, err := trajectory.Ends(dir)
	if err != nil || first.Kind != v1.KindRunStarted {
		return e.Show(id) // it returns a precise error
	}
	if last.Kind == v1.KindRunEnded {
		var s v1.RunStarted
		res := &Result{}
		if first.Decode(&s) == nil && last.Decode(res) == nil {
			return &Info{
				ID:      id,
				Query:   s.Query,
				Model:   or(res.Model, s.Model),
				Labels:  s.Labels,
				Limits:  res.Limits,
				Started: first.Time,
				Turns:   res.Turns,
				Usage:   res.Usage,
				Wall:    res.Wall,
				Result:  res,
			}, nil
		}
	}
	busy := running(dir)
	if n := readListCache(dir); !busy && n != nil && n.Size == size {
		return n.Info, nil
	}
	info, err := e.Show(id)
	if err == nil && !busy && !info.Running && info.Result == nil {
		writeListCache(dir, &listCache{Size: size, Info: info})
	}
	return info, err
}

// listCacheFile has the cached Info of an interrupted run. It is valid while the log has the size stored in it.
const listCacheFile = "list.json"

type listCache struct {
	Size int64 `json:"log_size"`
	Info *Info `json:"info"`
}

func readListCache(dir string) *listCache {
	n := &listCache{}
	if atomicfile.ReadJSON(filepath.Join(dir, listCacheFile), n) != nil || n.Info == nil {
		return nil // Show computes it from the log
	}
	return n
}

func writeListCache(dir string, n *listCache) {
	_ = atomicfile.WriteJSON(filepath.Join(dir, listCacheFile), n) // without the file the next list takes longer
}
