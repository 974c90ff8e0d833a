package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/moby/moby/client"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/sandbox"
)

// Error and incident codes of this backend.
const (
	// CodeEngineLost: the Docker engine no longer answers.
	CodeEngineLost v1.Code = "engine_lost"
	// CodeRuntimeMissing: the Docker engine has no runtime of the configured name.
	CodeRuntimeMissing = dockerengine.CodeRuntimeMissing
	// CodePaused: another program has paused the container. It is the code of the incident, and of the errors of
	// calls that begin during the pause.
	CodePaused v1.Code = "sandbox_paused"
	// CodeResumed is the incident that a container continues after another program had paused it.
	CodeResumed v1.Code = "sandbox_resumed"
	// CodeRenamed is the incident that another program has renamed the container. The attributes AttrOldName and
	// AttrNewName hold the names.
	CodeRenamed v1.Code = "sandbox_renamed"
)

func failed(ctx context.Context, op, what string, err error) error {
	return dockerengine.Failed(ctx, op, what, err)
}

func notFound(op, what, id string) error {
	return &v1.Error{Code: v1.CodeNotFound, Op: op, Message: fmt.Sprintf("this instance has no %s %q", what, id)}
}

func lost(code v1.Code, remedy, format string, args ...any) error {
	return &v1.Error{Code: code, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Labels that mark our containers and images. Labels cannot be changed later, so everything that changes is recorded
// on this machine; see backendkit.Notes.
const (
	labelInstance = "dev.recluse.instance"
	labelSandbox  = "dev.recluse.sandbox"
	labelSnapshot = "dev.recluse.snapshot"
	labelSession  = "dev.recluse.session" // for people
	labelDir      = "dev.recluse.dir"     // directory of the instance on its machine, with the notes on its sandboxes
	labelRecord   = "dev.recluse.record"  // record of a sandbox or snapshot, as JSON
	labelHash     = "dev.recluse.record-hash"
	labelWritable = "dev.recluse.writable" // of a snapshot: true if its files are in the image, from a writable root
	labelGuest    = "dev.recluse.guest"    // of a volume: hash of the guest's program in it
)

// record is what another program needs to know about a sandbox. The token is not in it: it is in the guest's
// environment.
type record struct {
	backendkit.Record
	Container string  `json:"-"`                  // the container's ID in the Docker engine
	Restored  string  `json:"restored,omitempty"` // ID of the snapshot that the sandbox was made from
	User      v1.User `json:"user"`
	WorkDir   string  `json:"work_dir,omitempty"` // working directory that the image lacks: a tmpfs
	Writable  bool    `json:"writable,omitempty"` // the root is writable, and files are on disk
}

// labels returns the labels of the sandbox's container.
func (r *record) labels(instance, dir string) (map[string]string, error) {
	public := *r
	public.Token = ""
	l, err := recordLabels(public, r.Spec.Labels)
	if err != nil {
		return nil, err
	}
	l[labelInstance], l[labelSandbox], l[labelDir] = instance, r.ID, dir
	// Empty: otherwise the container would inherit the labels of a snapshot's image.
	l[dockerengine.LabelCarrier], l[labelSnapshot], l[labelWritable] = "", "", ""
	return l, nil
}

// recordLabels returns the labels that hold a record, and the session that its own labels name. A sandbox from a pool
// has no session when it is made.
func recordLabels(record any, labels map[string]string) (map[string]string, error) {
	text, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		labelRecord:  string(text),
		labelHash:    hash(text),
		labelSession: labels[sandbox.LabelSession],
	}, nil
}

// decodeRecord decodes the record in labels. It reports false if the record is missing or was changed.
func decodeRecord(l map[string]string, record any) bool {
	text := []byte(l[labelRecord])
	return hash(text) == l[labelHash] && json.Unmarshal(text, record) == nil
}

// readRecord decodes the record of a container; ok is false if the container is not a sandbox.
func readRecord(container string, l map[string]string) (r record, ok bool) {
	ok = decodeRecord(l, &r) && r.ID == l[labelSandbox] && goodID.MatchString(r.ID)
	r.Container = container
	return r, ok
}

// readSnapshot decodes the record of an image; ok is false if the image is not a snapshot.
func readSnapshot(l map[string]string) (s *sandbox.Snapshot, ok bool) {
	s = &sandbox.Snapshot{}
	return s, decodeRecord(l, s) && s.ID == l[labelSnapshot] && goodSnapshot.MatchString(s.ID)
}

// mine reports whether labels are those of this instance. All results of a filter are checked with it, because Podman
// also returns images that have only one of several labels.
func (b *Backend) mine(l map[string]string) bool { return l[labelInstance] == b.instance }

func (b *Backend) filter(labels ...string) client.Filters {
	f := client.Filters{}.Add("label", labelInstance+"="+b.instance)
	return f.Add("label", labels...)
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// userArg formats a user and its group for the Docker API.
func userArg(u v1.User) string { return strconv.Itoa(u.UID) + ":" + strconv.Itoa(u.GID) }
