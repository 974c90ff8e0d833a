package v1

import "time"

// NewAPIKey requests an API key.
type NewAPIKey struct {
	Name    string        `json:"name" doc:"name of the key, for people and for the audit log"`
	Tenant  string        `json:"tenant,omitempty" doc:"tenant of the key; *: an operator's key, which may name a tenant in each request"`
	Scope   string        `json:"scope" doc:"read, execute or admin; execute includes read, admin includes both"`
	For     Duration      `json:"for,omitzero" doc:"time until the key expires; left out: it does not expire"`
	Quota   Quota         `json:"quota,omitzero" doc:"quota of all sessions and runs of the key together; fields that are left out are not bounded"`
	Network NetworkBounds `json:"network,omitzero" doc:"default and maximum of the network policies of its sessions"`
	E2B     bool          `json:"e2b,omitempty" doc:"give the key the form that the SDKs of E2B require: e2b_ and 40 hexadecimal digits"`
}

// APIKey describes an API key. Secret is returned only when the key is created.
type APIKey struct {
	ID      string        `json:"id" doc:"id of the key"`
	Name    string        `json:"name" doc:"name of the key"`
	Tenant  string        `json:"tenant" doc:"tenant that it acts for; * for an operator"`
	Scope   string        `json:"scope" enum:"read,execute,admin" doc:"what it permits"`
	Created time.Time     `json:"created" doc:"when it was created"`
	Expires *time.Time    `json:"expires,omitempty" doc:"when it expires; left out: never"`
	Revoked *time.Time    `json:"revoked,omitempty" doc:"when it was revoked"`
	Quota   Quota         `json:"quota,omitzero" doc:"quota of all its sessions and runs together"`
	Network NetworkBounds `json:"network,omitzero" doc:"default and maximum of the network policies of its sessions"`
	Secret  string        `json:"secret,omitempty" doc:"the key itself; only returned when it is created"`
}

// APIKeys is one page of API keys.
type APIKeys struct {
	Keys []APIKey `json:"keys" doc:"keys, oldest first"`
	Next string   `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// Server describes the server, and the caller as the server has identified it.
type Server struct {
	Version string    `json:"version" doc:"version of the server"`
	PID     int       `json:"pid" doc:"its process"`
	Started time.Time `json:"started" doc:"when it started"`
	Tenant  string    `json:"tenant" doc:"tenant of the caller"`
	Scope   string    `json:"scope" doc:"scope of the caller"`
	Actor   string    `json:"actor" doc:"name of the caller in the audit log"`
}

// Readiness is the answer of healthz and readyz.
type Readiness struct {
	Status string `json:"status" doc:"ok or unavailable"`
	Reason string `json:"reason,omitempty" doc:"why it is unavailable"`
	// Warnings do not make the server unavailable.
	Warnings []string `json:"warnings,omitempty" doc:"what should be looked at soon, such as little space on disk"`
}
