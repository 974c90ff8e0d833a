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

// maxSocket is the maximum length of the directory of a socket that works on every system, with the name of the socket.
const maxSocket = 90

// Place has the paths of the server of one data directory.
type Place struct {
	Data string   // the data directory
	Env  []string // environment variables of a started server, in addition to those of this process
	run  string   // directory of the locks, the status file and the log
	sock string   // directory of the sockets
	api  string   // path of the API socket

	answerWait, killWait time.Duration
}

// NewPlace returns the place of a data directory, and creates missing directories. If socket is not empty, it is the
// path of the API socket.
func NewPlace(data, socket string) (*Place, error) {
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
		// The kernel does not accept longer paths of sockets. The directory is named by a hash of the full path
		// instead.
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

// Socket returns the path of the API socket.
func (p *Place) Socket() string { return p.api }

// Log returns the path of the log of a background server.
func (p *Place) Log() string { return filepath.Join(p.run, "server.log") }

func (p *Place) control() string    { return filepath.Join(p.sock, "control.sock") }
func (p *Place) statusFile() string { return filepath.Join(p.run, "server.json") }
func (p *Place) lockFile() string   { return filepath.Join(p.run, "server.lock") }
func (p *Place) startLock() string  { return filepath.Join(p.run, "start.lock") }

// Stamp identifies the build and the configuration of a server or a caller.
type Stamp struct {
	Version string    `json:"version"`
	Commit  string    `json:"commit,omitempty"`
	Built   time.Time `json:"built"`            // modification time of the program
	Config  string    `json:"config,omitempty"` // hash of the configuration; empty: any
}

// NewerThan reports whether s should replace o: it is another build, and was installed later. The build that a user
// installed last is the wanted one, even if it is an older release.
func (s Stamp) NewerThan(o Stamp) bool {
	if s.Commit != "" && s.Commit == o.Commit && s.Version == o.Version {
		return false
	}
	return s.Built.After(o.Built)
}

// ProgramTime returns the modification time of this program, or the zero time.
func ProgramTime() time.Time {
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

// Phase is the phase of a server.
type Phase string

// Phases of a server, in order.
const (
	Starting Phase = "starting"
	Serving  Phase = "serving"
	Leaving  Phase = "leaving"
)

// Status is the description that a server gives of itself.
type Status struct {
	PID          int       `json:"pid"`
	ProcessStart uint64    `json:"born,omitempty"` // start time of the process; the pid may be reused
	Phase        Phase     `json:"phase"`
	Background   bool      `json:"background"` // started by a caller; exits when it is idle
	Stamp        Stamp     `json:"build"`
	Started      time.Time `json:"started"`
	Data         string    `json:"data"`
	Socket       string    `json:"socket"`
	Listen       string    `json:"listen,omitempty"` // HTTP address, if any
	Callers      int       `json:"callers"`          // number of connected callers
	Idle         bool      `json:"idle,omitempty"`   // only in the answer to idle: no work, and no other caller
}

// lives reports whether the process that wrote this status still runs. The status may be that of a dead server whose
// pid another process has now.
func (s Status) lives() bool { return s.PID > 0 && startTime(s.PID) == s.ProcessStart }

// signal sends a signal to the process that wrote this status, and to no other.
func (s Status) signal(sig os.Signal) error {
	p, err := os.FindProcess(s.PID) // from here on p is this process, even if its pid is reused
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }() // no caller waits for the process
	if !s.lives() {
		return os.ErrProcessDone
	}
	return p.Signal(sig)
}

// read returns the content of the status file.
func (p *Place) read() (s Status, err error) {
	err = atomicfile.ReadJSON(p.statusFile(), &s)
	return s, err
}
