package runs

import (
	"errors"
	"io/fs"
	"path/filepath"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/rlm"
)

// askedFile says that servers go on with a run by themselves, and for whom. It lies beside the run's log and not in it: copies of a run, which
// are somebody else's business, have none.
const askedFile = "asked.json"

// asked is who wanted the run to work, last, and how.
type asked struct {
	Away   bool        `json:"away"`             // from elsewhere
	Key    string      `json:"key,omitempty"`    // id of the API key whose quota it counts for
	Nobody bool        `json:"nobody,omitempty"` // it was cancelled while no server worked on it
	Model  string      `json:"model,omitempty"`
	Sub    []string    `json:"sub,omitempty"`
	Host   *v1.RunHost `json:"host,omitempty"`
}

// oldAway is what rlm.LabelAsked says of runs that are older than the file and were asked for from elsewhere.
const oldAway = "away"

// readAsked reads who wanted a run last. A run that no server was asked for has no such file.
func readAsked(dir string) (asked, error) {
	var a asked
	err := atomicfile.ReadJSON(filepath.Join(dir, askedFile), &a)
	return a, err
}

// askedFor gives who wants a run; nil: nobody does any more, or it is the business of whoever began it.
func askedFor(dir string, labels map[string]string) (*asked, error) {
	a, err := readAsked(dir)
	switch old := labels[rlm.LabelAsked]; {
	case err == nil && a.Nobody:
		return nil, nil
	case err == nil:
		return &a, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case old != "":
		return &asked{Away: old == oldAway}, nil
	}
	return nil, nil
}

// note writes it down.
func (a *asked) note(dir string) error {
	if err := atomicfile.WriteJSON(filepath.Join(dir, askedFile), a); err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "note run", Message: "who wants it cannot be written down", Err: err}
	}
	return nil
}
