// Package agents holds the end-to-end tests of recluse integrate: the real coding agents, driven by a model that this package plays.
package agents
