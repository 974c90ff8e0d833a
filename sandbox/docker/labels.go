package docker

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
)

// The labels by which containers and images of ours are known. They cannot be changed later, so what changes is noted elsewhere (notes.go).
const (
	labelInstance   = "dev.recluse.instance"
	labelSandbox    = "dev.recluse.sandbox"
	labelSession    = "dev.recluse.session"
	labelCreated    = "dev.recluse.created"
	labelSpec       = "dev.recluse.spec"
	labelSpecHash   = "dev.recluse.spec-hash"
	labelOwner      = "dev.recluse.owner"
	labelGuest      = "dev.recluse.guest"
	labelGeneration = "dev.recluse.generation"
	labelSnapshot   = "dev.recluse.snapshot"
	labelUser       = "dev.recluse.user"     // whose processes run inside, by number
	labelRestored   = "dev.recluse.restored" // the snapshot that a sandbox was made from
	labelParent     = "dev.recluse.parent"
	labelSize       = "dev.recluse.size"
	labelLabels     = "dev.recluse.labels"
	labelCarrier    = "dev.recluse.carrier" // a container that is never started
)

// record is what another program needs to know of a sandbox.
type record struct {
	ID         string
	Container  string // the engine's id
	Spec       sandbox.Spec
	Created    time.Time
	Owner      owner
	Guest      string
	Generation string
	Restored   string // the snapshot it was made from, or ""
	User       sandbox.User
}

func (r *record) labels(instance string) (map[string]string, error) {
	spec, err := json.Marshal(r.Spec)
	if err != nil {
		return nil, err
	}
	own, err := json.Marshal(r.Owner)
	if err != nil {
		return nil, err
	}
	l := map[string]string{
		labelInstance: instance, labelSandbox: r.ID, labelCreated: r.Created.Format(time.RFC3339Nano), labelSpec: string(spec),
		labelSpecHash: hash(spec), labelOwner: string(own), labelGuest: r.Guest, labelGeneration: r.Generation,
		// A sandbox from a pool was nobody's when it was made: whose it has become is noted (notes.go).
		labelSession:  r.Spec.Labels[sandbox.LabelSession],
		labelUser:     ids(r.User),
		labelRestored: r.Restored, labelCarrier: "", labelSnapshot: "", // which it would have of a snapshot's image
	}
	return l, nil
}

// readRecord gives what the labels of a container say; ok is false for one that is not a sandbox.
func readRecord(container string, l map[string]string) (r record, ok bool) {
	r = record{ID: l[labelSandbox], Container: container, Guest: l[labelGuest], Generation: l[labelGeneration], Restored: l[labelRestored]}
	if !goodID.MatchString(r.ID) || hash([]byte(l[labelSpec])) != l[labelSpecHash] || json.Unmarshal([]byte(l[labelSpec]), &r.Spec) != nil {
		return r, false
	}
	// Without an owner nobody answers for it; without a time it is of the year one.
	_ = json.Unmarshal([]byte(l[labelOwner]), &r.Owner)
	// Without a user it is from before there was a choice.
	if u, err := sandbox.ParseUser(l[labelUser]); err == nil {
		r.User = u
	}
	r.Created, _ = time.Parse(time.RFC3339Nano, l[labelCreated])
	return r, true
}

// mine says whether labels are those of this instance. It is asked about everything an engine has found: Podman takes an image for found that has one
// of several labels.
func (b *Backend) mine(l map[string]string) bool { return l[labelInstance] == b.instance }

func (b *Backend) filter(labels ...string) client.Filters {
	f := client.Filters{}.Add("label", labelInstance+"="+b.instance)
	return f.Add("label", labels...)
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
