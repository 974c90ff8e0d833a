package v1

import (
	"fmt"
	"reflect"
)

// Quota bounds what a server, a tenant or a key may use. It is the only declaration of these bounds: flags,
// configuration, JSON and the report of what is used are derived from its fields. A field that is nil or [NoLimit] is
// not bounded; zero means zero. In a report, a field is the amount in use.
//
// A hibernated session uses no memory, processors or processes; its next call takes them again.
//
// To add a bound, add a field here, count its use where it arises, and pass both to Check.
type Quota struct {
	Memory        *int64    `json:"memory,omitempty" flag:"max-memory" unit:"bytes" minimum:"-1" doc:"memory of all live sessions and runs together, in bytes; hibernated ones do not count"`
	CPUs          *float64  `json:"cpus,omitempty" flag:"max-cpus" minimum:"-1" doc:"processor time of all live sessions and runs together, in cores; hibernated ones do not count"`
	Processes     *int      `json:"processes,omitempty" flag:"max-processes" minimum:"-1" doc:"processes and threads of all live sessions and runs together; hibernated ones do not count"`
	Disk          *int64    `json:"disk,omitempty" flag:"max-disk" unit:"bytes" minimum:"-1" doc:"files of all live sessions and runs together, in bytes"`
	MaxAge        *Duration `json:"max_age,omitempty" flag:"max-age" doc:"time from the creation of a session to its end; none: unlimited"`
	Sessions      *int      `json:"sessions,omitempty" flag:"max-sessions" minimum:"-1" doc:"live sessions, hibernated ones included"`
	Snapshots     *int      `json:"snapshots,omitempty" flag:"max-snapshots" minimum:"-1" doc:"named snapshots of all sessions together"`
	SnapshotBytes *int64    `json:"snapshot_bytes,omitempty" flag:"max-snapshot-bytes" unit:"bytes" minimum:"-1" doc:"size of all named snapshots together, in bytes"`
	Volumes       *int      `json:"volumes,omitempty" flag:"max-volumes" minimum:"-1" doc:"volumes"`
	VolumeBytes   *int64    `json:"volume_bytes,omitempty" flag:"max-volume-bytes" unit:"bytes" minimum:"-1" doc:"size of all volumes together, in bytes"`
	// The following count the connections that policies allow, of all sandboxes of sessions and runs.
	Connections    *int     `json:"network_connections,omitempty" flag:"max-connections" minimum:"-1" doc:"open connections to the network of all sandboxes together"`
	ConnectionRate *float64 `json:"network_rate,omitempty" flag:"max-connection-rate" minimum:"-1" doc:"new connections to the network per second of all sandboxes together, with bursts of twice as many"`
	NetworkBytes   *int64   `json:"network_bytes,omitempty" flag:"max-network-bytes" unit:"bytes" minimum:"-1" doc:"bytes that all sandboxes together may send and receive within 30 days, in bytes"`

	Runs  *int     `json:"runs,omitempty" flag:"max-runs" minimum:"-1" doc:"runs at a time"`
	Spend *float64 `json:"spend_usd,omitempty" flag:"max-spend" minimum:"-1" doc:"US dollars that runs and chat calls may cost within 30 days"`
}

// QuotaReport lists the quotas that apply to a caller, and how much of each is in use.
type QuotaReport struct {
	Server QuotaUse  `json:"server" doc:"quota of the whole server; only operators see how much is in use"`
	Tenant QuotaUse  `json:"tenant" doc:"quota of the caller's tenant"`
	Key    *QuotaUse `json:"key,omitempty" doc:"quota of the caller's key; left out: the caller has no key"`
}

// QuotaUse is a quota and how much of it is in use.
type QuotaUse struct {
	Name   string `json:"name,omitempty" doc:"name of the tenant, or id of the key"`
	Bounds Quota  `json:"bounds" doc:"upper bounds; a field that is left out is not bounded"`
	Used   *Quota `json:"used,omitempty" doc:"how much is in use"`
}

// Tenant is a tenant that has a quota, keys or sessions.
type Tenant struct {
	Name     string        `json:"name" doc:"name of the tenant"`
	Quota    Quota         `json:"quota" doc:"quota of all its keys together; a field that is left out is not bounded"`
	Network  NetworkBounds `json:"network,omitzero" doc:"default and maximum of the network policies of its sessions"`
	Keys     int           `json:"keys" doc:"number of valid keys"`
	Sessions int           `json:"sessions" doc:"live sessions"`
}

// TenantPage is one page of tenants.
type TenantPage struct {
	Tenants []Tenant `json:"tenants" doc:"tenants, by name"`
	Next    string   `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// Fields returns the bounds in the order of the struct's fields. Setting one of them sets the field of q.
func (q *Quota) Fields() []Limit {
	out := fieldsOf(reflect.ValueOf(q).Elem())
	for i := range out {
		out[i].zero = true
	}
	return out
}

// IsZero reports whether no field is set.
func (q Quota) IsZero() bool { return q == Quota{} }

// Over returns q, with unset fields taken from base.
func (q Quota) Over(base Quota) Quota {
	below := base.Fields()
	for i, f := range q.Fields() {
		if !f.IsSet() {
			f.value.Set(below[i].value)
		}
	}
	return q
}

// Validate reports the first field whose value is out of range.
func (q Quota) Validate() error {
	for _, f := range q.Fields() {
		if err := f.validate(); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// Check returns an error if used and more together exceed a bound of q. The message names the bound, its value, what is
// left and what was requested. It also names the owner of the quota, such as "tenant team-a".
func (q Quota) Check(owner string, used, more Quota) error {
	have, want := used.Fields(), more.Fields()
	for i, bound := range q.Fields() {
		if !bound.IsSet() || bound.number() < 0 || !want[i].IsSet() {
			continue
		}
		requested, left := want[i].number(), bound.number()
		if requested == 0 {
			continue // granted even where more is in use than the bound allows
		}
		if have[i].IsSet() {
			left -= have[i].number()
		}
		if requested > left || requested == NoLimit {
			return &Error{
				Code: CodeQuotaExceeded,
				Op:   "check quota",
				Message: fmt.Sprintf("quota of %s, %s: limit %s, %s left, %s requested",
					owner, bound.Name, bound, bound.amount(max(0, left)), want[i]),
				Remedy: "request less, end unused sessions or runs, or ask the operator for a larger quota",
			}
		}
	}
	return nil
}
