package daemon

import (
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The codes of this package.
const (
	CodeRunning  v1.Code = "server_running"   // another server has the data directory
	CodeNotReady v1.Code = "server_not_ready" // it did not come up, or does not answer
)

// errNobody says that no server answers.
var errNobody = &v1.Error{Code: CodeNotReady, Op: "find the server", Message: "there is none"}

// running is the error of a server that may not be replaced.
func running(s Status) error {
	return &v1.Error{
		Code: CodeRunning, Op: "start the server", Message: fmt.Sprintf("the data directory %s has one already, with pid %d", s.Data, s.PID),
		Remedy: fmt.Sprintf("use it, end it (kill %d; its sessions live on for the next one), or set XDG_DATA_HOME to another directory", s.PID),
	}
}
