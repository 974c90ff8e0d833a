package daemon

import (
	"os"
	"sync"
)

// maxLog is the size beyond which the log begins anew; what was before stays beside it, once.
const maxLog = 10 << 20

// LogFile is the log of a server in the background. It does not grow without end.
type LogFile struct {
	place *Place
	max   int64

	mu   sync.Mutex
	file *os.File // guarded by mu
	size int64    // guarded by mu
}

// OpenLog opens it. The caller must Close it.
func (p *Place) OpenLog() (*LogFile, error) {
	l := &LogFile{place: p, max: maxLog}
	return l, l.open()
}

// open opens the file as it is now.
//
// Preconditions: mu is held, or nobody else knows l yet.
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

// Write appends.
func (l *LogFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(b)) > l.max {
		// Where the old one cannot be put aside, a log that is too long is better than none.
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

// Close closes it.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
