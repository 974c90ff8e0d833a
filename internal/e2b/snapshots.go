package e2b

import (
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/session"
)

// fromTemplate sets what a new session is made from. A template is one of the built-in ones, a named snapshot, or an
// image.
func (c *call) fromTemplate(s *session.Settings, template string) error {
	spec := c.opts.Spec
	s.Spec = &spec
	if template == "" || slices.Contains(builtinTemplates, template) {
		return nil
	}
	snap, err := c.findSnapshot(template)
	switch {
	case err != nil:
		return err
	case snap != nil:
		s.From, s.Spec = snap.Session+"@"+snap.Name, nil
	default:
		s.Spec.Image = template
		return c.opts.CheckSpec(*s.Spec)
	}
	return nil
}

// findSnapshot returns the snapshot "session@name", or the newest one of the name; nil: there is none.
func (c *call) findSnapshot(ref string) (*session.Snapshot, error) {
	of, name, exact := strings.Cut(ref, "@")
	if !exact {
		of, name = "", ref
	}
	all, err := c.manager.Snapshots(c.r.Context(), session.Key{Tenant: c.tenant})
	if err != nil {
		return nil, err
	}
	var found *session.Snapshot
	for i, s := range all {
		if s.Name == name && (!exact || s.Session == of) && (found == nil || s.Created.After(found.Created)) {
			found = &all[i]
		}
	}
	return found, nil
}

func describeSnapshot(s session.Snapshot) snapshotInfo {
	return snapshotInfo{ID: s.Session + "@" + s.Name, Names: []string{s.Name}}
}

// snapshot takes a snapshot of a sandbox, which keeps running.
func (c *call) snapshot(ses *session.Session) error {
	var in struct {
		Name string `json:"name"`
	}
	if err := readBody(c.w, c.r, &in); err != nil {
		return err
	}
	if in.Name == "" {
		in.Name = "s-" + ids.Hex(6)
	}
	s, err := ses.Save(c.r.Context(), in.Name)
	if err != nil {
		return err
	}
	return c.reply(http.StatusCreated, describeSnapshot(s))
}

// snapshots lists the snapshots of a sandbox, or of the tenant, newest first.
func (c *call) snapshots() error {
	q := c.r.URL.Query()
	all, err := c.manager.Snapshots(c.r.Context(), session.Key{Tenant: c.tenant, Name: q.Get("sandboxID")})
	if err != nil {
		return err
	}
	out := []snapshotInfo{}
	for _, s := range slices.Backward(all) {
		if name := q.Get("name"); name == "" || name == s.Name {
			out = append(out, describeSnapshot(s))
		}
	}
	out, err = page(c, out, func(s snapshotInfo) string { return s.ID })
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, out)
}

// template describes a template.
type template struct {
	ID      string    `json:"templateID"`
	Names   []string  `json:"names"`
	Aliases []string  `json:"aliases"`
	Public  bool      `json:"public"`
	CPUs    float64   `json:"cpuCount"`
	Memory  int64     `json:"memoryMB"`
	Created time.Time `json:"createdAt,omitzero"`
}

// templates lists the built-in templates and the snapshots of the tenant. Any image is a template, too.
func (c *call) templates() error {
	out := []template{}
	limits := v1.Limits{}.WithDefaults()
	for _, name := range builtinTemplates {
		out = append(out, template{
			ID: name, Names: []string{name}, Aliases: []string{name}, Public: true,
			CPUs: limits.CPUs, Memory: limits.Memory >> 20,
		})
	}
	all, err := c.manager.Snapshots(c.r.Context(), session.Key{Tenant: c.tenant})
	if err != nil {
		return err
	}
	for _, s := range all {
		out = append(out, template{
			ID: s.Session + "@" + s.Name, Names: []string{s.Name}, Aliases: []string{s.Name},
			CPUs: s.Spec.Limits.CPUs, Memory: s.Spec.Limits.Memory >> 20, Created: s.Created,
		})
	}
	return c.reply(http.StatusOK, out)
}

// removeTemplate removes a snapshot.
func (c *call) removeTemplate() error {
	s, err := c.findSnapshot(c.r.PathValue("id"))
	if err != nil {
		return err
	}
	if s == nil {
		return &v1.Error{Code: v1.CodeSnapshotNotFound, Op: "remove template", Message: "no snapshot has this name"}
	}
	if err := c.manager.DeleteSnapshot(c.r.Context(), session.Key{Tenant: c.tenant, Name: s.Session}, s.Name); err != nil {
		return err
	}
	return c.done()
}
