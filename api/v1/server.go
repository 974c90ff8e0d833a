package v1

import "time"

// NewAPIKey asks for an API key.
type NewAPIKey struct {
	Name   string   `json:"name" doc:"for people and for the audit log"`
	Tenant string   `json:"tenant,omitempty" doc:"* makes an operator's key, which may name a tenant in each request"`
	Scope  string   `json:"scope" doc:"read, execute or admin; each includes those before it"`
	For    Duration `json:"for,omitzero" doc:"left out: it does not expire"`
}

// APIKey describes an API key. Secret is given when it is made and never again.
type APIKey struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Tenant  string     `json:"tenant"`
	Scope   string     `json:"scope"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires,omitempty"`
	Revoked *time.Time `json:"revoked,omitempty"`
	Secret  string     `json:"secret,omitempty"`
}

// APIKeys is all keys.
type APIKeys struct {
	Keys []APIKey `json:"keys"`
	Next string   `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
}

// Server describes the server and who it takes the caller for.
type Server struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Tenant  string    `json:"tenant"`
	Scope   string    `json:"scope"`
	Actor   string    `json:"actor"`
}

// Readiness is the answer of healthz and readyz.
type Readiness struct {
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
}
