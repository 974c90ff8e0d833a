package rlm

import v1 "github.com/recluse-dev/recluse/api/v1"

// The types of a run that the API of a server shares are declared in package v1, and so are its events; these are other names for them.
type (
	// Event is one thing that happened in a run.
	Event = v1.RunEvent
	// Info is a run in a list.
	Info = v1.Run
	// Result is how a run ended.
	Result = v1.RunResult
	// Reason is why a run ended.
	Reason = v1.RunReason
	// Spent is what one model took at one depth.
	Spent = v1.Spent
	// Coverage is how much of the context was read by models.
	Coverage = v1.Coverage
	// Span is a part of the context.
	Span = v1.Span
	// Omitted are files of the context that are not counted.
	Omitted = v1.Omitted
	// OmittedWhy says why a file is not counted.
	OmittedWhy = v1.OmittedWhy
	// Param is a parameter of a tool.
	Param = v1.Param
	// ToolNote is a tool as a run remembers it.
	ToolNote = v1.ToolNote
)
