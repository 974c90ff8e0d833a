package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/xdg"
)

// maxSocket is how long a socket's path may be on every system, with room for the name.
const maxSocket = 90

// Place is where the server of one data directory is found.
type Place struct {
	Data string   // the data directory
	Env  []string // variables of a server that is started, beside our own
	run  string   // the locks and what the server says about itself
	sock string   // the sockets
	api  string   // the API's socket, when the user wants it elsewhere

	answerWait, killWait time.Duration
}

// At gives the place of a data directory and makes what is missing. A socket that is not empty is the path of the API's.
func At(data, socket string) (*Place, error) {
	p := &Place{
		Data:       data,
		run:        filepath.Join(data, "server"),
		api:        socket,
		answerWait: answerWait,
		killWait:   killWait,
	}
	if err := xdg.Private(p.run); err != nil {
		return nil, err
	}
	p.sock = p.run
	if len(p.run) > maxSocket {
		// The kernel takes no longer path for a socket. The directory's name stands for the whole path.
		sum := sha256.Sum256([]byte(p.run))
		base := os.Getenv("XDG_RUNTIME_DIR")
		if !filepath.IsAbs(base) {
			base = filepath.Join(os.TempDir(), "recluse-"+strconv.Itoa(os.Getuid()))
			if err := xdg.Private(base); err != nil {
				return nil, err
			}
		}
		p.sock = filepath.Join(base, "recluse-"+hex.EncodeToString(sum[:8]))
		if err := xdg.Private(p.sock); err != nil {
			return nil, err
		}
	}
	if p.api == "" {
		p.api = filepath.Join(p.sock, "api.sock")
	}
	return p, nil
}

// Socket is the path of the API's socket.
func (p *Place) Socket() string { return p.api }

// Log is the file in which a server that was started by itself writes.
func (p *Place) Log() string { return filepath.Join(p.run, "server.log") }

func (p *Place) control() string    { return filepath.Join(p.sock, "control.sock") }
func (p *Place) statusFile() string { return filepath.Join(p.run, "server.json") }
func (p *Place) lockFile() string   { return filepath.Join(p.run, "server.lock") }
func (p *Place) startLock() string  { return filepath.Join(p.run, "start.lock") }

// Stamp identifies the build and the configuration of a server or a caller.
type Stamp struct {
	Version string    `json:"version"`
	Commit  string    `json:"commit,omitempty"`
	Built   time.Time `json:"built"`            // when its program's file was last written
	Config  string    `json:"config,omitempty"` // a hash; empty: any
}

// NewerThan reports whether s should take o's place: it is another build, and was put in place later. What a user installed
// last is what he wants, also when that is an older release.
func (s Stamp) NewerThan(o Stamp) bool {
	if s.Commit != "" && s.Commit == o.Commit && s.Version == o.Version {
		return false
	}
	return s.Built.After(o.Built)
}

// Executable gives the time at which this program's file was written, or the zero time.
func Executable() time.Time {
	self, err := os.Executable()
	if err != nil {
		return time.Time{}
	}
	fi, err := os.Stat(self)
	if err != nil {
		return time.Time{}
	}
	return fi.ModTime()
}

// Phase is what a server is doing.
type Phase string

// The phases of a server, in order.
const (
	Starting Phase = "starting"
	Serving  Phase = "serving"
	Leaving  Phase = "leaving"
)

// Status is what a server says about itself.
type Status struct {
	PID        int       `json:"pid"`
	Born       uint64    `json:"born,omitempty"` // when its process began, as the kernel counts: another with the same pid is another
	Phase      Phase     `json:"phase"`
	Background bool      `json:"background"` // started by itself, and ends by itself
	Stamp      Stamp     `json:"build"`
	Started    time.Time `json:"started"`
	Data       string    `json:"data"`
	Socket     string    `json:"socket"`
	Listen     string    `json:"listen,omitempty"` // where it serves HTTP, if it does
	Callers    int       `json:"callers"`          // that hold it at the moment
	Idle       bool      `json:"idle,omitempty"`   // it has nothing to look after, and no caller but the one that asks; only in the answer to that
}

// lives reports whether the process that wrote this is still there. A status may be that of a server long dead, whose pid another has now.
func (s Status) lives() bool { return s.PID > 0 && born(s.PID) == s.Born }

// signal sends one to the process that wrote this, and to no other.
func (s Status) signal(sig os.Signal) error {
	p, err := os.FindProcess(s.PID) // from here on p is this process, also when its pid is given to another
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }() // nobody waits for it
	if !s.lives() {
		return os.ErrProcessDone
	}
	return p.Signal(sig)
}

// read returns the status that the server wrote last.
func (p *Place) read() (s Status, err error) {
	err = atomicfile.ReadJSON(p.statusFile(), &s)
	return s, err
}
