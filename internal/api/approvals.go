package api

import "github.com/recluse-dev/recluse/gate"

// Approvals is the answer to GET /v1/approvals.
type Approvals struct {
	Approvals []gate.Approval `json:"approvals"`
	Next      string          `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// Resolve answers a question of the gate.
type Resolve struct {
	Grant *bool  `json:"grant" doc:"true lets exactly this code run once, false refuses it"`
	Note  string `json:"note,omitempty" doc:"told to whoever wrote the code"`
}
