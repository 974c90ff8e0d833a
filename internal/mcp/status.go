package mcp

import "time"

type statusArgs struct {
	sessionArg
	History bool `json:"include_history,omitempty" doc:"include the cells and commands that ran recently"`
}

type statusResult struct {
	Session   string         `json:"session"`
	Exists    bool           `json:"exists" doc:"false: the next call that runs something creates the session"`
	State     string         `json:"state,omitempty" doc:"creating, ready, executing, paused, hibernated or lost"`
	Reason    string         `json:"reason,omitempty"`
	Backend   string         `json:"backend,omitempty"`
	Gate      string         `json:"gate,omitempty"`
	Created   *time.Time     `json:"created,omitempty"`
	Used      *time.Time     `json:"used,omitempty"`
	Expires   *time.Time     `json:"expires,omitempty"`
	MemoryMax int64          `json:"memory_limit_bytes,omitempty"`
	CPUs      float64        `json:"cpus,omitempty"`
	Processes int            `json:"process_limit,omitempty"`
	Running   int            `json:"running"`
	Output    int64          `json:"output_bytes"`
	Snapshots []snapshotInfo `json:"snapshots,omitempty"`
	History   []operation    `json:"history,omitempty"`
	Server    string         `json:"server_version"`
	Tenant    string         `json:"tenant"`
	Scope     string         `json:"scope" doc:"what this connection may do: read, execute or admin"`
	Sampling  int            `json:"sampling_calls,omitempty" doc:"calls of the client's own model in this connection"`
}

type operation struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	Command string    `json:"command"`
	Context string    `json:"context,omitempty"`
	Running bool      `json:"running"`
	Started time.Time `json:"started"`
	Ended   string    `json:"ended,omitempty"`
}

func (srv *mcpServer) addStatus() {
	add(srv, tool{
		name:       "status",
		title:      "Status of the session",
		readOnly:   true,
		idempotent: true,
		description: "Show the session: state, limits, lifetime, number of running operations, snapshots, " +
			"and with include_history the operations that ran recently. It does not create a session.",
	}, (*call).status)
}

func (c *call) status(in statusArgs) (out statusResult, err error) {
	if out.Session, err = c.name(in.Session); err != nil {
		return out, err
	}
	srv, err := c.client.Server(c)
	if err != nil {
		return out, err
	}
	out.Server, out.Tenant, out.Scope, out.Sampling = srv.Version, srv.Tenant, srv.Scope, c.srv.quota.used(c.req.Session)
	s, i, err := c.client.Get(c, out.Session)
	if sessionGone(err) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	l := i.Spec.Limits.WithDefaults()
	out.Exists, out.State, out.Reason, out.Backend, out.Gate = true, string(i.State), i.Reason, i.Backend, i.Gate
	out.Created, out.Used, out.Expires = &i.Created, &i.Used, i.Expires
	out.MemoryMax, out.CPUs, out.Processes = l.Memory, l.CPUs, l.Processes
	out.Running, out.Output = i.Running, i.Output
	if out.Snapshots, err = c.listSnapshots(out.Session); err != nil || !in.History {
		return out, err
	}
	ops, err := s.Operations(c)
	for _, o := range ops {
		p := operation{ID: o.ID, Kind: o.Kind, Command: o.Command, Context: o.Context, Running: o.Running, Started: o.Started}
		if o.Verdict != nil {
			p.Ended = string(o.Verdict.Ended)
		}
		out.History = append(out.History, p)
	}
	return out, err
}
