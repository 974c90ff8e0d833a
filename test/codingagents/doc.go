// Package codingagents contains the end-to-end tests of recluse integrate, with real coding agents and a model that the
// tests simulate.
package codingagents
