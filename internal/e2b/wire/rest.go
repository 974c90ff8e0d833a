// Package wire has the messages of E2B's API: those of its remote procedure calls, made from the .proto files, and
// those of its REST API. Server and client share them.
package wire

import "time"

// Ports, headers and the version of the API.
const (
	EnvdPort      = 49983 // processes and files
	HeaderSandbox = "E2b-Sandbox-Id"
	HeaderPort    = "E2b-Sandbox-Port"
	HeaderKey     = "X-API-Key"
	HeaderToken   = "X-Access-Token"
	HeaderNext    = "X-Next-Token"
	// SandboxNotFound is the message of a sandbox that does not exist, on the data plane.
	SandboxNotFound = "The sandbox was not found"
)

// States of a sandbox.
const (
	StateRunning = "running"
	StatePaused  = "paused"
)

// NewSandbox are the options of a new sandbox.
type NewSandbox struct {
	Template        string            `json:"templateID"`
	Metadata        map[string]string `json:"metadata,omitempty"`
	Env             map[string]string `json:"envVars,omitempty"`
	Timeout         *int64            `json:"timeout,omitempty"` // seconds
	Internet        *bool             `json:"allow_internet_access,omitempty"`
	Network         NetworkOptions    `json:"network,omitzero"`
	AutoPause       bool              `json:"autoPause,omitempty"`
	AutoPauseMemory *bool             `json:"autoPauseMemory,omitempty"`
	AutoResume      AutoResume        `json:"autoResume,omitzero"`
	Secure          *bool             `json:"secure,omitempty"`
}

// AutoResume says whether a request to a paused sandbox continues it.
type AutoResume struct {
	Enabled bool `json:"enabled"`
}

// NetworkOptions are the network options of a sandbox.
type NetworkOptions struct {
	Allow  []string `json:"allowOut,omitempty"`
	Deny   []string `json:"denyOut,omitempty"`
	Public *bool    `json:"allowPublicTraffic,omitempty"`
}

// Access is what a caller needs to use a sandbox.
type Access struct {
	Sandbox      string `json:"sandboxID"`
	Template     string `json:"templateID"`
	Client       string `json:"clientID"`
	Version      string `json:"envdVersion"`
	Token        string `json:"envdAccessToken"`
	TrafficToken string `json:"trafficAccessToken"`
	Domain       string `json:"domain"`
}

// Details describe a sandbox.
type Details struct {
	Sandbox   string            `json:"sandboxID"`
	Template  string            `json:"templateID"`
	Client    string            `json:"clientID"`
	Started   time.Time         `json:"startedAt"`
	End       time.Time         `json:"endAt"`
	Version   string            `json:"envdVersion"`
	State     string            `json:"state"`
	CPUs      float64           `json:"cpuCount"`
	Memory    int64             `json:"memoryMB"`
	Disk      int64             `json:"diskSizeMB"`
	Metadata  map[string]string `json:"metadata"`
	Domain    string            `json:"domain,omitempty"`
	Internet  *bool             `json:"allowInternetAccess,omitempty"`
	Network   *NetworkOptions   `json:"network,omitempty"`
	Lifecycle *Lifecycle        `json:"lifecycle,omitempty"`
}

// Lifecycle is what happens at the end of a sandbox.
type Lifecycle struct {
	OnTimeout  string `json:"onTimeout"`
	AutoResume bool   `json:"autoResume"`
}

// SnapshotInfo describes a snapshot. Its id is a template.
type SnapshotInfo struct {
	ID    string   `json:"snapshotID"`
	Names []string `json:"names"`
}

// Failure is the body of an error.
type Failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}
