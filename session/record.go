package session

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// The labels of our sandboxes and images. By them they are found again when the store knows nothing of them yet.
const (
	labelInstance  = "recluse.instance"
	labelSession   = sandbox.LabelSession
	labelSessionID = "recluse.session-id"
	labelSpec      = "recluse.spec"
	labelKind      = "recluse.kind"  // of an image
	labelMaker     = "recluse.maker" // the manager that asked for it, not just the instance: what another one asked for is nobody's plan any more

	kindHibernation = "hibernation"
	kindSnapshot    = "snapshot"
	kindFork        = "fork"
)

// record is what the store keeps about a session.
type record struct {
	ID       string       `json:"id"`
	Key      Key          `json:"key"`
	State    State        `json:"state"`
	Reason   string       `json:"reason"`
	Backend  string       `json:"backend"`
	Sandbox  string       `json:"sandbox,omitempty"`
	Spec     sandbox.Spec `json:"spec"`
	SpecHash string       `json:"spec_hash"`
	Policy   Policy       `json:"policy"`
	Gate     string       `json:"gate,omitempty"`
	Role     string       `json:"role,omitempty"`
	From     string       `json:"from,omitempty"` // the snapshot it was made from, as asked for
	Created  time.Time    `json:"created"`
	Used     time.Time    `json:"used"`
	Ended    time.Time    `json:"ended,omitzero"`

	// A lifetime counts only time that is not spent hibernated: Lived up to Since, which is zero during hibernation.
	Lived      time.Duration `json:"lived_ns"`
	Since      time.Time     `json:"since,omitzero"`
	Extended   int           `json:"extended"`
	ExtendedBy time.Duration `json:"extended_by_ns"`

	// Hibernation is the image it sleeps in, since Slept, and Asleep what those see who look meanwhile; nil: not known.
	Hibernation *sandbox.Snapshot `json:"hibernation,omitempty"`
	Slept       time.Time         `json:"slept,omitzero"`
	Asleep      *glance           `json:"asleep,omitempty"`

	// Base is the id of the snapshot its state comes from last, and BaseName that one's name.
	Base     string `json:"base,omitempty"`
	BaseName string `json:"base_name,omitempty"`

	// Copy is which of a fork's copies it is, from 1; 0: none. They are made together, so one that is still being made after a restart never was.
	Copy int `json:"copy,omitempty"`
	// Request is the id of the request that made it, if that may be repeated.
	Request string `json:"request,omitempty"`

	Restored  int         `json:"restored,omitempty"`
	StateFrom *time.Time  `json:"state_from,omitempty"`
	Losses    []time.Time `json:"losses,omitempty"`   // restores within the window
	Hopeless  bool        `json:"hopeless,omitempty"` // lost for good: no more attempts
	Output    int64       `json:"output"`

	// Incidents are those of its sandbox of now, the last of each kind. The list is never changed, only replaced.
	Incidents []sandbox.Incident `json:"incidents,omitempty"`
}

// row gives the record as the store takes it.
func (r *record) row() (store.Session, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return store.Session{}, fmt.Errorf("encode session: %w", err)
	}
	row := store.Session{ID: r.ID, Tenant: r.Key.Tenant, Name: r.Key.Name, State: string(r.State), Live: r.State.Live(), Ended: r.Ended, Data: data}
	if r.Hibernation != nil {
		row.Image = imageRef(r.Hibernation)
	}
	return row, nil
}

// imageRef names an image among those of all backends.
func imageRef(s *sandbox.Snapshot) string { return s.Backend + "/" + s.ID }

// layDown notes that a session sleeps in an image.
func (r *record) layDown(image *sandbox.Snapshot, now time.Time) {
	r.Hibernation, r.Slept, r.Sandbox, r.Asleep = image, now, "", nil
	if !r.Since.IsZero() {
		r.Lived += now.Sub(r.Since)
		r.Since = time.Time{}
	}
}

// expires gives when it expires; ok is false for never.
func (r *record) expires() (t time.Time, ok bool) {
	if r.State == Hibernated {
		return r.Slept.Add(r.Policy.Hibernation), r.Policy.Hibernation != sandbox.NoLimit
	}
	if r.Policy.TTL == sandbox.NoLimit || r.Since.IsZero() {
		return time.Time{}, false
	}
	return r.Since.Add(r.Policy.TTL + r.ExtendedBy - r.Lived), true
}

// idleAt gives when its idle policy acts; ok is false for never.
func (r *record) idleAt() (t time.Time, ok bool) {
	if r.Policy.Idle == sandbox.NoLimit || r.Policy.OnIdle == IdleKeep || r.State == Hibernated || r.State == Lost || r.State == Creating || !r.State.Live() {
		return time.Time{}, false
	}
	from := r.Used
	if r.Since.After(from) { // woken without having been used, by somebody who looked
		from = r.Since
	}
	return from.Add(r.Policy.Idle), true
}

// labels of its sandboxes.
func (m *Manager) labels(r *record) map[string]string {
	l := map[string]string{}
	maps.Copy(l, r.Spec.Labels)
	l[labelInstance], l[labelMaker], l[labelSession], l[labelSessionID], l[labelSpec] = m.instance, m.maker, r.Key.String(), r.ID, r.SpecHash
	return l
}

// imageLabels of an image that is taken of it.
func (m *Manager) imageLabels(r *record, kind string) map[string]string {
	return map[string]string{labelInstance: m.instance, labelMaker: m.maker, labelSession: r.Key.String(), labelSessionID: r.ID, labelKind: kind}
}

// normal gives a spec as it is compared: with defaults, without what is ours to set.
func normal(spec sandbox.Spec) (sandbox.Spec, string, error) {
	spec = spec.WithDefaults()
	for k := range spec.Labels {
		if strings.HasPrefix(k, "recluse.") {
			return spec, "", &sandbox.Error{Code: sandbox.CodeInvalidSpec, Op: "check spec", Message: fmt.Sprintf("label %q: names that begin with recluse. are ours", k)}
		}
	}
	if len(spec.Labels) == 0 {
		spec.Labels = nil
	}
	if len(spec.Env) == 0 {
		spec.Env = nil
	}
	if len(spec.Mounts) == 0 {
		spec.Mounts = nil
	}
	spec.Persist = true
	if err := spec.Check(); err != nil {
		return spec, "", err
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return spec, "", &sandbox.Error{Code: sandbox.CodeInvalidSpec, Op: "check spec", Err: err}
	}
	sum := sha256.Sum256(b)
	return spec, hex.EncodeToString(sum[:8]), nil
}

// differing names the fields in which two specs or policies differ, as requests write them.
func differing[T sandbox.Spec | Policy](a, b T) string {
	am, bm := fields(a), fields(b)
	all := maps.Clone(am)
	maps.Copy(all, bm) // what is zero is left out
	var names []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if string(am[name]) != string(bm[name]) {
			names = append(names, strings.TrimSuffix(name, "_ns"))
		}
	}
	return strings.Join(names, ", ")
}

// fields gives the fields of a struct as they are written.
func fields(v any) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	if raw, err := json.Marshal(v); err == nil {
		_ = json.Unmarshal(raw, &out) // its own output
	}
	return out
}

// promise writes what the record will be, before anything is done that cannot be undone.
func (s *Session) promise(ctx context.Context, change func(*record)) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	row, err := s.imagined(change)
	if err != nil {
		return err
	}
	if !row.Live {
		return s.living()
	}
	return s.m.store.SaveSessions(ctx, row)
}

// imagined gives the record as it will be, encoded while nobody changes what it has in common with the one that is.
func (s *Session) imagined(change func(*record)) (store.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.rec
	change(&next)
	return next.row()
}

// save writes the record. Writes of one session keep their order.
func (s *Session) save(ctx context.Context) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	s.mu.Lock()
	row, err := s.rec.row()
	s.dirty = false
	s.mu.Unlock()
	if err == nil {
		err = s.m.store.SaveSessions(ctx, row)
	}
	if err != nil {
		s.mu.Lock()
		s.dirty = true // tried again by the next flush
		s.mu.Unlock()
		s.m.log.ErrorContext(ctx, "session could not be written to the store", "session", s.key.String(), "id", s.id, "error", err)
	}
	return err
}
