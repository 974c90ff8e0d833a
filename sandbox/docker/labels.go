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

// Codes of this backend.
const (
	// CodeEngineLost says that the engine no longer answers.
	CodeEngineLost v1.Code = "engine_lost"
	// CodeRuntimeMissing says that the engine has no runtime of that name.
	CodeRuntimeMissing = dockerengine.CodeRuntimeMissing
	// CodePaused says that somebody else has paused the container: the incident when it happens, and the error of calls that begin
	// while it lasts.
	CodePaused v1.Code = "sandbox_paused"
	// CodeResumed is the incident that a container continues which somebody else had paused.
	CodeResumed v1.Code = "sandbox_resumed"
	// CodeRenamed is the incident that somebody has given the container another name; AttrOldName and AttrNewName say
	// which.
	CodeRenamed v1.Code = "sandbox_renamed"
)

func failed(ctx context.Context, op, what string, err error) error {
	return dockerengine.Failed(ctx, op, what, err)
}

func notFound(op, what, id string) error {
	return &v1.Error{Code: v1.CodeNotFound, Op: op, Message: fmt.Sprintf("no %s %q of this instance", what, id)}
}

func lost(code v1.Code, remedy, format string, args ...any) error {
	return &v1.Error{Code: code, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

// The labels by which containers and images of ours are known. They cannot be changed later, so what changes is
// noted on this machine; see backendkit.Notes.
const (
	labelInstance = "dev.recluse.instance"
	labelSandbox  = "dev.recluse.sandbox"
	labelSnapshot = "dev.recluse.snapshot"
	labelSession  = "dev.recluse.session" // for people
	labelDir      = "dev.recluse.dir"     // of the instance on its machine, where notes on its sandboxes are
	labelRecord   = "dev.recluse.record"  // of a sandbox or snapshot, as JSON
	labelHash     = "dev.recluse.record-hash"
	labelGuest    = "dev.recluse.guest" // of a volume: hash of the program in it
)

// record is what another program needs to know of a sandbox. Its token is where the guest gets it from.
type record struct {
	backendkit.Record
	Container string  `json:"-"`                  // the engine's id
	Restored  string  `json:"restored,omitempty"` // the snapshot it was made from
	User      v1.User `json:"user"`
	WorkDir   string  `json:"work_dir,omitempty"` // the working directory, where the image lacks it: a file system in memory
}

// labels returns those of the sandbox's container.
func (r *record) labels(instance, dir string) (map[string]string, error) {
	public := *r
	public.Token = ""
	l, err := recordLabels(public, r.Spec.Labels)
	if err != nil {
		return nil, err
	}
	l[labelInstance], l[labelSandbox], l[labelDir] = instance, r.ID, dir
	l[dockerengine.LabelCarrier], l[labelSnapshot] = "", "" // which it would have of a snapshot's image
	return l, nil
}

// recordLabels returns a record as labels, and the session that its own labels name. A sandbox from a pool had none when it
// was made.
func recordLabels(record any, labels map[string]string) (map[string]string, error) {
	text, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	return map[string]string{labelRecord: string(text), labelHash: hash(text), labelSession: labels[sandbox.LabelSession]}, nil
}

// decodeRecord decodes the record in labels; false if there is none, or somebody has changed it.
func decodeRecord(l map[string]string, record any) bool {
	text := []byte(l[labelRecord])
	return hash(text) == l[labelHash] && json.Unmarshal(text, record) == nil
}

// readRecord returns what the labels of a container say; ok is false for one that is not a sandbox.
func readRecord(container string, l map[string]string) (r record, ok bool) {
	ok = decodeRecord(l, &r) && r.ID == l[labelSandbox] && goodID.MatchString(r.ID)
	r.Container = container
	return r, ok
}

// readSnapshot returns what the labels of an image say; ok is false for one that is not a snapshot.
func readSnapshot(l map[string]string) (s *sandbox.Snapshot, ok bool) {
	s = &sandbox.Snapshot{}
	return s, decodeRecord(l, s) && s.ID == l[labelSnapshot] && goodSnapshot.MatchString(s.ID)
}

// mine reports whether labels are those of this instance. Everything that an engine has found is checked: Podman
// finds an image that has one of several labels.
func (b *Backend) mine(l map[string]string) bool { return l[labelInstance] == b.instance }

func (b *Backend) filter(labels ...string) client.Filters {
	f := client.Filters{}.Add("label", labelInstance+"="+b.instance)
	return f.Add("label", labels...)
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// userArg is how a user and its group are written for the engine.
func userArg(u v1.User) string { return strconv.Itoa(u.UID) + ":" + strconv.Itoa(u.GID) }
