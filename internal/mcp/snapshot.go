package mcp

import (
	"fmt"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/session"
)

// maxCopies bounds a fork: each copy is a live machine.
const maxCopies = 16

type snapshotArgs struct {
	where
	Action string   `json:"action" enum:"create,restore,list,delete,fork" doc:"what to do"`
	Name   string   `json:"name,omitempty" doc:"name of the snapshot; for create, restore and delete. Restore also takes SESSION@NAME"`
	Copies int      `json:"copies,omitempty" doc:"how many live copies fork makes; left out: 1"`
	Names  []string `json:"names,omitempty" doc:"names of the copies; left out: SESSION-1, SESSION-2, …"`
}

type snapshotInfo struct {
	Name    string    `json:"name"`
	Session string    `json:"session"`
	Size    int64     `json:"size_bytes"`
	Memory  bool      `json:"memory" doc:"variables and processes are in it, not files alone"`
	Created time.Time `json:"created"`
}

type snapshotResult struct {
	Session   string            `json:"session"`
	Action    string            `json:"action"`
	Snapshots []snapshotInfo    `json:"snapshots,omitempty"`
	Copies    []string          `json:"copies,omitempty" doc:"sessions that fork has made"`
	Previous  map[string]string `json:"previous_sessions,omitempty" doc:"how earlier sessions with the names of copies ended, by name"`
}

func (f *face) addSnapshot() {
	add(f, tool{
		name: "snapshot", title: "Snapshots and copies", destructive: true,
		description: "Keep the whole state of the session under a name (create), go back to it (restore), list or delete what is kept, or make live copies of the session (fork) to try several ways at once.",
		shape:       func(in *jsonschema.Schema) { between(in, "copies", 0, maxCopies) },
	}, (*call).snapshot)
}

func (c *call) snapshot(in snapshotArgs) (snapshotResult, error) {
	out := snapshotResult{Action: in.Action}
	needsName := in.Action == "create" || in.Action == "restore" || in.Action == "delete"
	if needsName && in.Name == "" {
		return out, invalid("%s needs a name", in.Action)
	}
	name, err := c.name(in.Session)
	if err != nil {
		return out, err
	}
	out.Session = name
	switch in.Action { // these two look at what is kept, also of a session that has ended
	case "list":
		out.Snapshots, err = c.kept(name)
		return out, err
	case "delete":
		return out, c.client.DeleteSnapshot(c, name, in.Name)
	}
	s, _, err := c.open(in.Session)
	if err != nil {
		return out, err
	}
	p := c.progress(in.Action)
	defer p.stop()
	switch in.Action {
	case "create":
		made, err := s.Save(c, in.Name)
		if err == nil {
			out.Snapshots = []snapshotInfo{snapshotOf(made)}
			c.keep(name, belonging{session: name, snapshot: in.Name})
		}
		return out, err
	case "restore":
		return out, s.Restore(c, in.Name)
	case "fork":
		return c.fork(s, in, out)
	}
	return out, fmt.Errorf("action %q has no meaning", in.Action) // the schema does not let it through
}

func (c *call) fork(s *client.Session, in snapshotArgs, out snapshotResult) (snapshotResult, error) {
	n := max(in.Copies, len(in.Names), 1)
	if len(in.Names) > 0 && len(in.Names) != n {
		return out, invalid("%d copies, but %d names", n, len(in.Names))
	}
	if n > maxCopies {
		return out, invalid("at most %d copies can be made at once", maxCopies)
	}
	copies, err := s.Fork(c, n, in.Names)
	for _, k := range copies {
		out.Copies = append(out.Copies, k.Name())
		c.keep(s.Name(), belonging{session: k.Name()})
		if i, err := k.Info(c); err == nil && i.Previous != nil { // else its first verdict reports it
			if out.Previous == nil {
				out.Previous = map[string]string{}
			}
			out.Previous[k.Name()] = i.Previous.String()
		}
	}
	return out, err
}

func (c *call) kept(name string) ([]snapshotInfo, error) {
	list, err := c.client.Snapshots(c, name)
	if absent(err) {
		return nil, nil
	}
	out := make([]snapshotInfo, 0, len(list))
	for _, s := range list {
		out = append(out, snapshotOf(s))
	}
	return out, err
}

func snapshotOf(s session.Snapshot) snapshotInfo {
	return snapshotInfo{Name: s.Name, Session: s.Session, Size: s.Size, Memory: s.Memory, Created: s.Created}
}
