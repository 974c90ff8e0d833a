package runs

import (
	"errors"
	"io/fs"
	"path/filepath"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/rlm"
)

// orderFile is the file that marks a run which servers resume by themselves, and that holds the settings of its last
// request. It is beside the run's log and not in the log, so copies of a run do not have it and are not resumed.
const orderFile = "asked.json"

// order holds the settings of the last request to work on a run.
type order struct {
	Remote    bool        `json:"away"`             // the caller used the network
	Key       string      `json:"key,omitempty"`    // id of the API key whose quota the run counts for
	Cancelled bool        `json:"nobody,omitempty"` // the run was cancelled while no server worked on it
	Model     string      `json:"model,omitempty"`
	Sub       []string    `json:"sub,omitempty"`
	Host      *v1.RunHost `json:"host,omitempty"`
}

// labelRemote is the value of rlm.LabelAsked in runs that were made before orderFile existed, for callers over the
// network.
const labelRemote = "away"

// readOrder reads the order of a run. The error is fs.ErrNotExist for a run that was not started by a server.
func readOrder(dir string) (order, error) {
	var o order
	err := atomicfile.ReadJSON(filepath.Join(dir, orderFile), &o)
	return o, err
}

// openOrder returns the order of a run that a server may resume. It returns nil if the run was cancelled, or was not
// started by a server.
func openOrder(dir string, labels map[string]string) (*order, error) {
	o, err := readOrder(dir)
	switch label := labels[rlm.LabelAsked]; {
	case err == nil && o.Cancelled:
		return nil, nil
	case err == nil:
		return &o, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case label != "":
		return &order{Remote: label == labelRemote}, nil
	}
	return nil, nil
}

// write writes the order into the directory of its run.
func (o *order) write(dir string) error {
	if err := atomicfile.WriteJSON(filepath.Join(dir, orderFile), o); err != nil {
		return &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "store run",
			Message: "cannot write the settings of the run",
			Err:     err,
		}
	}
	return nil
}
