package rlm

import (
	"bytes"
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

const (
	// sumBytes bounds the content of which checksums are computed. Each file counts as at least sumLeast, which is what
	// opening it costs.
	sumBytes = 64 << 20
	sumLeast = 64 << 10
	// linesFrom is the size of the texts whose lines are counted here: the interpreter takes several times longer.
	linesFrom = 1 << 20
)

// fileSum is what a file of the context was.
type fileSum struct {
	Bytes    int64  `json:"bytes"`
	Modified int64  `json:"modified_ns"`
	Sum      uint32 `json:"sum,omitempty"`
	HasSum   bool   `json:"has_sum,omitempty"` // otherwise an edit shows in Modified only
}

var sumTable = crc32.MakeTable(crc32.Castagnoli)

// survey reads the files of the context of a new run while its sandbox starts: it computes the checksums, and counts
// the lines of large texts.
type survey struct {
	stop  chan struct{}
	done  chan struct{}
	lines map[string]int64 // by file; set before done is closed
	err   error            // set before done is closed
}

// beginSurvey writes the sums of the staged files into the directory of their run, and begins the survey. Checksums
// follow at its end: a run whose program dies before it notices an edit by the time of the file.
func (s *staged) beginSurvey(dir string) error {
	sums, paths := map[string]fileSum{}, map[string]string{}
	err := s.each(func(file, rel string) error {
		info, err := os.Stat(file)
		if err == nil {
			sums[rel] = fileSum{Bytes: info.Size(), Modified: info.ModTime().UnixNano()}
			paths[rel] = file
		}
		return err
	})
	if err == nil {
		err = atomicfile.WriteJSON(filepath.Join(dir, sumsFile), sums)
	}
	if err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: opStage, Err: err}
	}
	s.survey = &survey{stop: make(chan struct{}), done: make(chan struct{}), lines: map[string]int64{}}
	go func() {
		defer close(s.survey.done)
		if s.survey.err = s.survey.sum(sums, paths); s.survey.err == nil {
			s.survey.err = atomicfile.WriteJSON(filepath.Join(dir, sumsFile), sums)
		}
		for _, e := range s.Contexts {
			if _, ok := s.survey.lines[e.File]; ok || e.Kind != "text" || e.Bytes < linesFrom || s.survey.err != nil {
				continue
			}
			var seen content
			if seen, s.survey.err = readContent(paths[e.File], s.survey.stop); s.survey.err == nil {
				s.survey.lines[e.File] = seen.lines
			}
		}
	}()
	return nil
}

// sum adds the checksums of files to sums.
func (v *survey) sum(sums map[string]fileSum, paths map[string]string) error {
	left := int64(sumBytes)
	for _, rel := range slices.Sorted(maps.Keys(sums)) {
		f := sums[rel]
		cost := max(f.Bytes, sumLeast)
		if cost > left {
			continue
		}
		left -= cost
		seen, err := readContent(paths[rel], nil)
		if err != nil {
			return err
		}
		info, err := os.Stat(paths[rel])
		if err != nil {
			return err
		}
		if info.Size() != f.Bytes || info.ModTime().UnixNano() != f.Modified {
			continue // the run has begun with another content
		}
		f.Sum, f.HasSum = seen.sum, true
		sums[rel], v.lines[rel] = f, seen.lines
	}
	return nil
}

// endSurvey waits until the checksums are written, and returns the error of the survey. Lines that are not counted yet
// are not needed any more.
func (s *staged) endSurvey() error {
	if s.survey == nil {
		return nil
	}
	close(s.survey.stop)
	<-s.survey.done
	if errors.Is(s.survey.err, errSurveyEnded) {
		return nil
	}
	return s.survey.err
}

var errSurveyEnded = errors.New("the run has ended")

// lines returns the number of lines of a text.
func (s *staged) lines(file string) (int64, error) {
	if s.survey != nil {
		<-s.survey.done
		if n, ok := s.survey.lines[file]; ok {
			return n, nil
		}
	}
	seen, err := readContent(filepath.Join(s.dir, file), nil)
	return seen.lines, err
}

// content is what readContent finds in a file.
type content struct {
	sum   uint32
	lines int64
}

// readContent reads a file, unless stop is closed before.
func readContent(file string, stop <-chan struct{}) (c content, err error) {
	f, err := os.Open(file)
	if err != nil {
		return c, err
	}
	defer f.Close()
	buf := make([]byte, readSize)
	last := byte('\n')
	for {
		select {
		case <-stop:
			return c, errSurveyEnded
		default:
		}
		n, err := f.Read(buf)
		if n > 0 {
			c.sum = crc32.Update(c.sum, sumTable, buf[:n])
			c.lines += int64(bytes.Count(buf[:n], []byte{'\n'}))
			last = buf[n-1]
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return c, err
		}
	}
	if last != '\n' {
		c.lines++
	}
	return c, nil
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
	seen, err := readContent(file, nil)
	if err == nil && seen.sum != f.Sum {
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
