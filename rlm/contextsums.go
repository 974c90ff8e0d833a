package rlm

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
)

// sumsFile is the file in the directory of a run with what the files of its context were. They are hard links to the
// user's files where possible, so an edit in place changes them.
const sumsFile = "context.sums.json"

// sumBytes bounds the content of which checksums are computed when a run begins, so that a large context does not delay
// it. Each file counts as at least sumLeast, which is what opening it costs.
const (
	sumBytes = 64 << 20
	sumLeast = 64 << 10
)

// fileSum is what a file of the context was.
type fileSum struct {
	Bytes    int64  `json:"bytes"`
	Modified int64  `json:"modified_ns"`
	Sum      uint32 `json:"sum,omitempty"`
	HasSum   bool   `json:"has_sum,omitempty"` // otherwise an edit shows in Modified only
}

var sumTable = crc32.MakeTable(crc32.Castagnoli)

// writeSums writes the sums of the staged files into the directory of their run.
func (s *staged) writeSums(dir string) error {
	sums := map[string]fileSum{}
	left := int64(sumBytes)
	err := s.each(func(file, rel string) error {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		sum := fileSum{Bytes: info.Size(), Modified: info.ModTime().UnixNano()}
		if cost := max(sum.Bytes, sumLeast); cost <= left {
			left -= cost
			sum.HasSum = true
			if sum.Sum, err = sumOf(file); err != nil {
				return err
			}
		}
		sums[rel] = sum
		return nil
	})
	if err == nil {
		err = atomicfile.WriteJSON(filepath.Join(dir, sumsFile), sums)
	}
	if err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: opStage, Err: err}
	}
	return nil
}

func sumOf(file string) (uint32, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	h := crc32.New(sumTable)
	if _, err := io.Copy(h, f); err != nil {
		return 0, err
	}
	return h.Sum32(), nil
}

// readContext reads the context of a stored run in dir. It returns an error if the context has changed.
func readContext(dir string) (*staged, error) {
	s, err := readStaged(filepath.Join(dir, contextDir))
	if err == nil {
		err = s.checkSums(dir)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// copyContext copies the context of a stored run to the directory of another run, with hard links where possible.
func copyContext(from, to string) error {
	dir, err := filepath.EvalSymlinks(filepath.Join(from, contextDir)) // it may have been relocated
	if err != nil {
		return err
	}
	if err := linkTree(dir, filepath.Join(to, contextDir)); err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(from, sumsFile))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, sumsFile), sums, 0o600)
}

// checkSums returns an error if a file of the context of a stored run in dir is not what it was when the run began.
func (s *staged) checkSums(dir string) error {
	sums := map[string]fileSum{}
	if err := atomicfile.ReadJSON(filepath.Join(dir, sumsFile), &sums); err != nil {
		return &v1.Error{Code: v1.CodeContextMissing, Op: opReload, Err: err}
	}
	for _, rel := range slices.Sorted(maps.Keys(sums)) {
		why, err := sums[rel].changed(filepath.Join(s.dir, filepath.FromSlash(rel)))
		if err != nil {
			code := v1.CodeContextUnread
			if errors.Is(err, fs.ErrNotExist) {
				code = v1.CodeContextMissing
			}
			return &v1.Error{Code: code, Op: opReload, Message: s.nameOf(rel), Err: err}
		}
		if why != "" {
			return &v1.Error{
				Code:    v1.CodeContextChanged,
				Op:      opReload,
				Message: fmt.Sprintf("context changed: %s %s", s.nameOf(rel), why),
				Remedy:  "start a new run",
			}
		}
	}
	return nil
}

// changed returns how a file differs from what it was, or "".
func (f fileSum) changed(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if info.Size() != f.Bytes {
		return fmt.Sprintf("had %d bytes and now has %d", f.Bytes, info.Size()), nil
	}
	if !f.HasSum {
		if info.ModTime().UnixNano() != f.Modified {
			return "was written to", nil
		}
		return "", nil
	}
	sum, err := sumOf(file)
	if err == nil && sum != f.Sum {
		return "has another content of the same size", nil
	}
	return "", err
}

// nameOf returns the name of a staged file as the user knows it.
func (s *staged) nameOf(rel string) string {
	for _, e := range s.Contexts {
		if e.File == rel {
			return or(e.Name, rel)
		}
		if e.Kind != "dir" {
			continue
		}
		var files []stagedFile
		if err := atomicfile.ReadJSON(filepath.Join(s.dir, e.File), &files); err != nil {
			continue
		}
		for _, f := range files {
			if f.File == rel {
				return filepath.Join(e.Name, f.Path)
			}
		}
	}
	return rel
}
