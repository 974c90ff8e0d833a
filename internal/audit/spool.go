package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/recluse-dev/recluse/internal/store"
)

// spool keeps the entries that wait for the store on disk, so that they survive if the program is killed. An entry
// costs one write to the page cache, a few microseconds; in the store it would cost a transaction.
//
// There are two files. New entries go to one file while the entries of the other are written to the store. Then the
// other file is emptied, and they swap roles. Entries are numbered, and the store keeps the number of its last entry,
// so that no entry is written twice if the program is killed between the two steps.
type spool struct {
	files [2]*os.File
	sizes [2]int64
	now   int   // index of the file for new entries
	last  int64 // number of the latest entry
}

// spoolFiles are the names of the files in the directory.
var spoolFiles = [2]string{"audit.0.jsonl", "audit.1.jsonl"}

// spooled is a line of a spool file.
type spooled struct {
	N     int64       `json:"n"`
	Entry store.Entry `json:"entry"`
}

// openSpool opens the files. It returns the lines of an earlier program whose number is larger than mark.
func openSpool(dir string, mark int64) (_ *spool, left []spooled, err error) {
	s := &spool{last: mark} // not the named result: an error sets that to nil before the deferred function closes s
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	for i, name := range spoolFiles {
		s.files[i], err = os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return nil, nil, err
		}
		lines, size, err := readSpool(s.files[i])
		if err != nil {
			return nil, nil, err
		}
		s.sizes[i] = size
		for _, l := range lines {
			if l.N > mark {
				left = append(left, l)
				s.last = max(s.last, l.N)
			}
		}
	}
	slices.SortFunc(left, func(a, b spooled) int { return cmp.Compare(a.N, b.N) })
	return s, left, nil
}

// readSpool reads the lines of a file. It skips incomplete lines, which were written when the disk was full.
func readSpool(f io.Reader) (lines []spooled, size int64, err error) {
	r := bufio.NewReader(f)
	for {
		raw, err := r.ReadBytes('\n')
		size += int64(len(raw))
		var l spooled
		if json.Unmarshal(bytes.TrimSpace(raw), &l) == nil {
			lines = append(lines, l)
		}
		if errors.Is(err, io.EOF) {
			return lines, size, nil
		}
		if err != nil {
			return nil, 0, err
		}
	}
}

// add writes an entry. If the disk is full, the entry is only in memory.
func (s *spool) add(e store.Entry) {
	s.last++
	raw, err := json.Marshal(spooled{s.last, e})
	if err != nil {
		return // cannot happen: an entry is plain data
	}
	n, err := s.files[s.now].Write(append(raw, '\n'))
	if err == nil {
		s.sizes[s.now] += int64(n)
		return
	}
	_ = s.files[s.now].Truncate(s.sizes[s.now]) // an incomplete line would corrupt the next one
}

// seal directs new entries to the other file, if that file is empty. It returns the number of the last entry.
func (s *spool) seal() int64 {
	if other := 1 - s.now; s.sizes[other] == 0 {
		s.now = other
	}
	return s.last
}

// drop removes the sealed entries, which are in the store.
func (s *spool) drop() error { return s.empty(1 - s.now) }

func (s *spool) empty(i int) error {
	if s.sizes[i] == 0 {
		return nil
	}
	err := s.files[i].Truncate(0)
	if err == nil {
		s.sizes[i] = 0
	}
	return err
}

func (s *spool) close() error {
	var errs []error
	for _, f := range s.files {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
