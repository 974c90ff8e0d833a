package rlm

import v1 "github.com/recluse-dev/recluse/api/v1"

// Aliases of the types of runs and their events. Package v1 declares them, because the server's API uses them too.
type (
	// Event is one thing that happened in a run.
	Event = v1.RunEvent
	// Info describes a run, as Engine.Runs and Engine.Show return it.
	Info = v1.Run
	// Result is the outcome of a run.
	Result = v1.RunResult
	// Reason is why a run ended.
	Reason = v1.RunReason
	// Spent is the usage of one model at one depth.
	Spent = v1.Spent
	// Coverage reports how much of the context models have read.
	Coverage = v1.Coverage
	// Span is a part of the context.
	Span = v1.Span
	// Omitted counts files of the context that coverage does not include.
	Omitted = v1.Omitted
	// OmittedWhy is the reason why coverage does not include a file.
	OmittedWhy = v1.OmittedWhy
	// Param is a parameter of a tool.
	Param = v1.Param
	// ToolNote is a tool as it is stored with a run.
	ToolNote = v1.ToolNote
)
