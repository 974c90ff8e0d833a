package mcp

import (
	"fmt"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/session"
)

// maxCopies is the maximum number of copies of one fork. Each copy is a running sandbox.
const maxCopies = 16

type snapshotArgs struct {
	sessionArg
	Action string   `json:"action" enum:"create,restore,list,delete,fork" doc:"action to perform"`
	Name   string   `json:"name,omitempty" doc:"name of the snapshot; for create, restore and delete. Restore also accepts SESSION@NAME"`
	Copies int      `json:"copies,omitempty" doc:"number of live copies that fork makes; left out: 1"`
	Names  []string `json:"names,omitempty" doc:"names of the copies; left out: SESSION-1, SESSION-2, …"`
}

type snapshotInfo struct {
	Name    string    `json:"name"`
	Session string    `json:"session"`
	Size    int64     `json:"size_bytes"`
	Memory  bool      `json:"memory" doc:"contains variables and processes, not only files"`
	Created time.Time `json:"created"`
}

type snapshotResult struct {
	Session   string            `json:"session"`
	Action    string            `json:"action"`
	Snapshots []snapshotInfo    `json:"snapshots,omitempty"`
	Copies    []string          `json:"copies,omitempty" doc:"sessions that fork created"`
	Previous  map[string]string `json:"previous_sessions,omitempty" doc:"how previous sessions with the names of the copies ended, by name"`
}

func (srv *mcpServer) addSnapshot() {
	add(srv, tool{
		name:        "snapshot",
		title:       "Snapshots and copies",
		destructive: true,
		description: "Save the whole state of the session under a name (create), return to it (restore), " +
			"list or delete snapshots, or make live copies of the session (fork) to try several ways at once.",
		shape: func(in *jsonschema.Schema) { setRange(in, "copies", 0, maxCopies) },
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
	switch in.Action { // these two also work for a session that has ended
	case "list":
		out.Snapshots, err = c.listSnapshots(name)
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
			c.noteOwned(name, ownedItem{session: name, snapshot: in.Name})
		}
		return out, err
	case "restore":
		return out, s.Restore(c, in.Name)
	case "fork":
		return c.fork(s, in, out)
	}
	return out, fmt.Errorf("invalid action %q", in.Action) // unreachable: the schema allows no other
}

func (c *call) fork(s *client.Session, in snapshotArgs, out snapshotResult) (snapshotResult, error) {
	n := max(in.Copies, len(in.Names), 1)
	if len(in.Names) > 0 && len(in.Names) != n {
		return out, invalid("%d copies, but %d names", n, len(in.Names))
	}
	if n > maxCopies {
		return out, invalid("%d copies; the maximum is %d", n, maxCopies)
	}
	copies, err := s.Fork(c, n, in.Names)
	for _, k := range copies {
		out.Copies = append(out.Copies, k.Name())
		c.noteOwned(s.Name(), ownedItem{session: k.Name()})
		if i, err := k.Info(c); err == nil && i.Previous != nil { // otherwise the first verdict reports it
			if out.Previous == nil {
				out.Previous = map[string]string{}
			}
			out.Previous[k.Name()] = i.Previous.String()
		}
	}
	return out, err
}

func (c *call) listSnapshots(name string) ([]snapshotInfo, error) {
	list, err := c.client.Snapshots(c, name)
	if sessionGone(err) {
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
