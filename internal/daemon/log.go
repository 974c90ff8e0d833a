package daemon

import (
	"os"
	"sync"
)

// maxLog is the size at which the log is rotated. One old log is kept.
const maxLog = 10 << 20

// LogFile is the log of a background server. It is rotated at maxLog.
type LogFile struct {
	place *Place
	max   int64

	mu   sync.Mutex
	file *os.File // guarded by mu
	size int64    // guarded by mu
}

// OpenLog opens the log. The caller must close it.
func (p *Place) OpenLog() (*LogFile, error) {
	l := &LogFile{place: p, max: maxLog}
	return l, l.open()
}

// open opens the current file.
//
// Preconditions: mu is held, or l is not shared yet.
func (l *LogFile) open() error {
	f, err := l.place.openLog()
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.file, l.size = f, fi.Size()
	return nil
}

// Write appends b to the log.
func (l *LogFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(b)) > l.max {
		// If the old log cannot be renamed, a log that is too long is better than none.
		if os.Rename(l.place.Log(), l.place.Log()+".old") == nil {
			l.file.Close()
			if err := l.open(); err != nil {
				return 0, err
			}
		}
	}
	n, err := l.file.Write(b)
	l.size += int64(n)
	return n, err
}

// Close closes the log.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
