package daemon

import (
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Error codes of this package.
const (
	CodeRunning  v1.Code = "server_running"   // another server uses the data directory
	CodeNotReady v1.Code = "server_not_ready" // the server did not start, or does not answer
)

// errNoServer means that no server answers.
var errNoServer = &v1.Error{Code: CodeNotReady, Op: "find the server", Message: "no server is running"}

// running returns the error for a server that must not be replaced.
func running(s Status) error {
	return &v1.Error{
		Code:    CodeRunning,
		Op:      "start the server",
		Message: fmt.Sprintf("the server with pid %d already uses the data directory %s", s.PID, s.Data),
		Remedy: fmt.Sprintf("use that server, stop it (kill %d; sessions stay for the next server), "+
			"or set XDG_DATA_HOME to another directory", s.PID),
	}
}
