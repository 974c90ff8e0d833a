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

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// The labels of sandboxes and images. The manager finds them by these labels when the store does not have them.
const (
	labelInstance  = "recluse.instance"
	labelStore     = "recluse.store" // the directory of the store; see Survey
	labelSession   = sandbox.LabelSession
	labelSessionID = sandbox.LabelSessionID
	labelSpec      = "recluse.spec"
	labelKind      = "recluse.kind"  // of an image
	labelMaker     = "recluse.maker" // the manager that requested it: requests of earlier managers may be left over

	kindHibernation = "hibernation"
	kindSnapshot    = "snapshot"
	kindFork        = "fork"
)

// record is a session in the store.
type record struct {
	ID       string            `json:"id"`
	Key      Key               `json:"key"`
	State    State             `json:"state"`
	Reason   string            `json:"reason"`
	Backend  string            `json:"backend"`
	Sandbox  string            `json:"sandbox,omitempty"`
	Spec     sandbox.Spec      `json:"spec"`
	SpecHash string            `json:"spec_hash"` // without the network policy, which can change
	Policy   Policy            `json:"policy"`
	Gate     string            `json:"gate,omitempty"`
	Role     string            `json:"role,omitempty"`
	From     string            `json:"from,omitempty"`    // the snapshot it was created from, as in the request
	APIKey   string            `json:"api_key,omitempty"` // id of the API key whose quota it counts for; empty: none
	Remote   bool              `json:"remote,omitempty"`  // requested over the network
	Labels   map[string]string `json:"labels,omitempty"`  // immutable
	Created  time.Time         `json:"created"`
	Used     time.Time         `json:"used"`
	Ended    time.Time         `json:"ended,omitzero"`

	// Ending is the reason of an end that waits for the backend to answer. EndingFrom is the state before that end.
	Ending     string `json:"ending,omitempty"`
	EndingFrom State  `json:"ending_from,omitempty"`

	// IdleRequested is set if the caller requested this Policy.OnIdle. IdleFallback is set if Policy.OnIdle is end
	// because the backend cannot hibernate.
	IdleRequested bool `json:"idle_asked,omitempty"`
	IdleFallback  bool `json:"idle_fallback,omitempty"`

	// Expires is the expiry of the session; zero: never. Woken is when it last left hibernation.
	Expires time.Time `json:"expires,omitzero"`
	Woken   time.Time `json:"woken,omitzero"`

	// Hibernation is the image that the session hibernates in, since HibernatedAt. View is what callers see of the
	// sandbox meanwhile; nil: not known.
	Hibernation  *sandbox.Snapshot `json:"hibernation,omitempty"`
	HibernatedAt time.Time         `json:"slept,omitzero"`
	View         *sandboxView      `json:"asleep,omitempty"`

	// Base and BaseName are the id and name of the snapshot that the session's state came from last.
	Base     string `json:"base,omitempty"`
	BaseName string `json:"base_name,omitempty"`

	// Copy is the number of the session among the copies of a fork, from 1; 0: it is not a copy. Copies are created
	// together, so a copy that is still being created after a restart is dropped.
	Copy int `json:"copy,omitempty"`
	// Request is the id of the request that created the session, if a client may repeat that request.
	Request string `json:"request,omitempty"`

	Restored  int        `json:"restored,omitempty"`
	StateFrom *time.Time `json:"state_from,omitempty"`
	// Previous is the previous session with this key, until a verdict has reported it.
	Previous    *v1.PreviousSession `json:"previous,omitempty"`
	Losses      []time.Time         `json:"losses,omitempty"`   // restores within the window
	LostForGood bool                `json:"hopeless,omitempty"` // restores are no longer attempted
	Output      int64               `json:"output"`

	// NetworkChanges is how often Spec.Network has changed.
	NetworkChanges uint64 `json:"network_changes,omitempty"`

	// Incidents has the last incident of each kind of the current sandbox. The slice is replaced, never changed.
	Incidents []sandbox.Incident `json:"incidents,omitempty"`
}

// owner returns the owner of the quotas that the session counts for.
func (r *record) owner() owner { return owner{Tenant: r.Key.Tenant, Key: r.APIKey, Remote: r.Remote} }

// row returns the record as a row of the store.
func (r *record) row() (store.Session, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return store.Session{}, fmt.Errorf("encode session: %w", err)
	}
	row := store.Session{
		ID:     r.ID,
		Tenant: r.Key.Tenant,
		Name:   r.Key.Name,
		State:  string(r.State),
		Live:   r.State.Live(),
		Ended:  r.Ended,
		Data:   data,
	}
	if r.Hibernation != nil {
		row.Image = imageRef(r.Hibernation)
	}
	return row, nil
}

// enterHibernation records that the session hibernates in an image.
func (r *record) enterHibernation(image *sandbox.Snapshot, now time.Time) {
	r.Hibernation, r.HibernatedAt, r.Sandbox, r.View = image, now, "", nil
}

// leaveHibernation records that the session no longer hibernates.
func (r *record) leaveHibernation(now time.Time) {
	r.Hibernation, r.HibernatedAt, r.Woken = nil, time.Time{}, now
}

// expires returns when the session expires; ok is false if it never expires. A hibernated session also expires when it
// has been hibernated for as long as its policy allows.
func (r *record) expires() (t time.Time, ok bool) {
	t = r.Expires
	kept := r.HibernatedAt.Add(r.Policy.Hibernation.Std())
	if r.hibernationLimited() && (t.IsZero() || kept.Before(t)) {
		t = kept
	}
	return t, !t.IsZero()
}

// hibernationLimited reports whether the session hibernates and its policy limits for how long.
func (r *record) hibernationLimited() bool {
	return r.State == v1.StateHibernated && r.Policy.Hibernation != v1.NoLimit
}

// idleAt returns when the idle timeout of the session is over; ok is false if it never is.
func (r *record) idleAt() (t time.Time, ok bool) {
	if r.Policy.Idle == v1.NoLimit || r.Policy.OnIdle == v1.IdleKeep || r.State == v1.StateHibernated ||
		r.State == v1.StateLost || r.State == v1.StateCreating || !r.State.Live() {
		return time.Time{}, false
	}
	from := r.Used
	if r.Woken.After(from) { // woken by a call that is not use
		from = r.Woken
	}
	return from.Add(r.Policy.Idle.Std()), true
}

// labels returns the labels of a session's sandbox.
func (m *Manager) labels(r *record) map[string]string {
	l := m.ownLabels(r.Labels)
	l[labelSession], l[labelSessionID], l[labelSpec] = r.Key.String(), r.ID, r.SpecHash
	return l
}

// ownLabels returns the labels in more, and the labels by which a manager finds its sandboxes.
func (m *Manager) ownLabels(more map[string]string) map[string]string {
	l := map[string]string{}
	maps.Copy(l, more)
	l[labelInstance], l[labelMaker], l[labelStore] = m.instance, m.maker, m.store.Dir()
	return l
}

// imageLabels returns the labels of an image of a session.
func (m *Manager) imageLabels(r *record, kind string) map[string]string {
	return map[string]string{
		labelInstance:  m.instance,
		labelMaker:     m.maker,
		labelSession:   r.Key.String(),
		labelSessionID: r.ID,
		labelKind:      kind,
	}
}

// normalSpec checks a spec. It returns the spec in the form in which specs are compared, with defaults and without the
// fields that the manager sets, and the hash of that form without the network policy.
func normalSpec(spec sandbox.Spec) (sandbox.Spec, string, error) {
	spec = spec.WithDefaults()
	if len(spec.Labels) > 0 {
		return spec, "", &v1.Error{
			Code:    v1.CodeInvalidSpec,
			Op:      "check spec",
			Message: "the spec of a session must not have labels",
			Remedy:  "set labels in the settings of the session",
		}
	}
	spec.Labels = nil
	if len(spec.Env) == 0 {
		spec.Env = nil
	}
	if len(spec.Mounts) == 0 {
		spec.Mounts = nil
	}
	if len(spec.Volumes) == 0 {
		spec.Volumes = nil
	}
	spec.Persist = true
	if err := spec.Check(); err != nil {
		return spec, "", err
	}
	fixed := spec
	fixed.Network = v1.Network{}
	b, err := json.Marshal(fixed)
	if err != nil {
		return spec, "", &v1.Error{Code: v1.CodeInvalidSpec, Op: "check spec", Err: err}
	}
	sum := sha256.Sum256(b)
	return spec, hex.EncodeToString(sum[:8]), nil
}

// differing lists the fields in which the spec or policy of a request differs from an existing one, with both values
// where they are short and cannot contain a secret: "memory (512 MiB, requested 1 GiB), env".
func differing[T sandbox.Spec | Policy](requested, existing T) string {
	return strings.Join(differences(fields(requested), fields(existing)), ", ")
}

// sameDisk returns the requested spec with the disk of the existing one, if the request leaves it open and the existing
// one has a default: which one depends on the backend.
func sameDisk(requested, existing sandbox.Spec) sandbox.Spec {
	left := existing
	left.Limits.Disk = 0
	if d := existing.Limits.Disk; requested.Limits.Disk == 0 &&
		(d == left.Storage(true).Disk || d == left.Storage(false).Disk) {
		requested.Limits.Disk = d
	}
	return requested
}

func differences(requested, existing map[string]json.RawMessage) []string {
	all := maps.Clone(requested)
	maps.Copy(all, existing) // zero fields are left out in JSON, so either map may lack a name
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r, e := requested[name], existing[name]
		switch {
		case string(r) == string(e):
		case name == "limits":
			out = append(out, differences(fields(r), fields(e))...)
		default:
			out = append(out, name+difference(name, r, e))
		}
	}
	return out
}

// difference describes two values of a field. Maps and lists are left out: an environment may contain secrets.
func difference(name string, requested, existing json.RawMessage) string {
	text := func(raw json.RawMessage) (string, bool) {
		var v any
		if len(raw) > 0 && json.Unmarshal(raw, &v) != nil {
			return "", false
		}
		switch v := v.(type) {
		case nil:
			return "not set", true
		case string, bool:
			return fmt.Sprint(v), true
		case float64:
			if name == "memory" || name == "disk" || name == "output" {
				return v1.SizeText(int64(v)), true
			}
			return fmt.Sprint(v), true
		}
		return "", false
	}
	e, ok1 := text(existing)
	r, ok2 := text(requested)
	if !ok1 || !ok2 {
		return ""
	}
	return fmt.Sprintf(" (%s, requested %s)", e, r)
}

// fields returns the JSON fields of a struct.
func fields(v any) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	if raw, err := json.Marshal(v); err == nil {
		_ = json.Unmarshal(raw, &out) // cannot fail: raw is the output of Marshal
	}
	return out
}

// saveAhead writes the record with a change to the store, before the change is made in memory. It does so for changes
// that cannot be undone.
func (s *Session) saveAhead(ctx context.Context, change func(*record)) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	row, err := s.plannedRow(change)
	if err != nil {
		return err
	}
	if !row.Live {
		return s.checkLive()
	}
	return s.m.store.SaveSessions(ctx, row)
}

// plannedRow returns the row of the record with a change, and does not change the record. It encodes the row while it
// holds s.mu, because the two records share maps and slices.
func (s *Session) plannedRow(change func(*record)) (store.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.rec
	change(&next)
	return next.row()
}

// save writes the record to the store. Writes of one session keep their order. save logs an error, and the reaper
// retries.
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
		s.dirty = true // saveDirty retries
		s.mu.Unlock()
		s.m.log.ErrorContext(ctx, "session could not be written to the store",
			"session", s.key.String(), "id", s.id, "error", err)
	}
	return err
}
