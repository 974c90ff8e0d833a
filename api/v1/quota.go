package v1

import (
	"fmt"
	"reflect"
)

// Quota bounds what a server, a tenant or a key may use. It is the only declaration of these bounds: flags, configuration, JSON and the
// report of what is used are derived from its fields. A nil field is no bound. As a report, a field is how much is in use.
//
// To add a bound, add a field here, count its use where it arises, and pass both to Check.
type Quota struct {
	Memory        *int64    `json:"memory,omitempty" flag:"max-memory" doc:"memory of all live sessions together, in bytes"`
	CPUs          *float64  `json:"cpus,omitempty" flag:"max-cpus" doc:"processor time of all live sessions together, in cores"`
	Processes     *int      `json:"processes,omitempty" flag:"max-processes" doc:"processes and threads of all live sessions together"`
	Disk          *int64    `json:"disk,omitempty" flag:"max-disk" doc:"files of all live sessions together, in bytes"`
	Lifetime      *Duration `json:"lifetime,omitempty" flag:"max-lifetime" doc:"age of a session; none: unlimited"`
	Sessions      *int      `json:"sessions,omitempty" flag:"max-sessions" doc:"live sessions"`
	Snapshots     *int      `json:"snapshots,omitempty" flag:"max-snapshots" doc:"snapshots of all sessions together"`
	SnapshotBytes *int64    `json:"snapshot_bytes,omitempty" flag:"max-snapshot-bytes" doc:"size of all snapshots together, in bytes"`
	Runs          *int      `json:"runs,omitempty" flag:"max-runs" doc:"runs at a time"`
	Spend         *float64  `json:"spend_usd,omitempty" flag:"max-spend" doc:"US dollars that runs may cost within 30 days"`
}

// Fields returns the bounds in the order of the struct. Setting one of them sets the field of q.
func (q *Quota) Fields() []Limit { return fieldsOf(reflect.ValueOf(q).Elem()) }

// Check refuses a request for more when used and more together exceed a bound of q. The error names the bound, what it is, and what is
// left. Whose quota it is, such as "tenant team-a", is part of the message.
func (q Quota) Check(whose string, used, more Quota) error {
	have, want := used.Fields(), more.Fields()
	for i, bound := range q.Fields() {
		if !bound.IsSet() || bound.number() < 0 || !want[i].IsSet() {
			continue
		}
		left := bound.number()
		if have[i].IsSet() {
			left -= have[i].number()
		}
		if asked := want[i].number(); asked > left || asked == NoLimit {
			return &Error{
				Code:    CodeQuotaExceeded,
				Op:      "check quota",
				Message: fmt.Sprintf("the quota of %s allows %s of %s, %s is left and %s is asked for", whose, bound, bound.Name, bound.amount(max(0, left)), want[i]),
				Remedy:  "ask for less, end what is not needed, or have the quota raised",
			}
		}
	}
	return nil
}
