package sandbox

import v1 "github.com/recluse-dev/recluse/api/v1"

// Aliases of the types that a sandbox shares with the API of a server. They are declared in package v1.
type (
	// Spec describes a sandbox to create.
	Spec = v1.Spec
	// Limits bounds what a sandbox may use.
	Limits = v1.Limits
	// Mount shows a directory of the host inside the sandbox.
	Mount = v1.Mount
	// Volume shows a volume inside the sandbox.
	Volume = v1.Volume
	// NewVolume describes a volume to create.
	NewVolume = v1.NewVolume
	// VolumeInfo describes a volume.
	VolumeInfo = v1.VolumeInfo
	// VolumeOwner owns a volume that is created.
	VolumeOwner = v1.VolumeOwner

	// Cell is code to run in a live interpreter.
	Cell = v1.Cell
	// Command is a command to run.
	Command = v1.Command
	// RunOptions are the options that a Cell and a Command share.
	RunOptions = v1.RunOptions
	// Input is input for a running operation.
	Input = v1.Input
	// Size is the size of a terminal.
	Size = v1.Size
	// FollowOptions are the options of Follow.
	FollowOptions = v1.FollowOptions
	// SignalOptions are the options of Signal.
	SignalOptions = v1.SignalOptions

	// Verdict is how a cell or command ended.
	Verdict = v1.Verdict
	// Ending is the way in which a cell or command ended.
	Ending = v1.Ending
	// Output is the part of a stream that a verdict keeps.
	Output = v1.Output
	// Process is a process inside a sandbox.
	Process = v1.Process
	// CellError is an exception that a cell did not catch.
	CellError = v1.CellError
	// Bundle is a displayed value in several formats.
	Bundle = v1.Bundle

	// Operation is a cell or command that the sandbox remembers.
	Operation = v1.Operation
	// Context is a live interpreter.
	Context = v1.Context
	// Guest describes the inside of a sandbox.
	Guest = v1.Guest
	// Port is a TCP port on which a program inside listens.
	Port = v1.Port
	// Incident is something that others did to a sandbox without ending it.
	Incident = v1.Incident

	// FileSystem reads and writes the files of a sandbox.
	FileSystem = v1.FileSystem
	// FileInfo describes a file.
	FileInfo = v1.FileInfo
	// FilePage is a part of a directory.
	FilePage = v1.FilePage
	// FileEvent is a change of a file.
	FileEvent = v1.FileEvent
	// WriteOptions are the options of Write.
	WriteOptions = v1.WriteOptions
	// ListOptions are the options of List and Page.
	ListOptions = v1.ListOptions
	// MkdirOptions are the options of Mkdir.
	MkdirOptions = v1.MkdirOptions
	// MoveOptions are the options of Move.
	MoveOptions = v1.MoveOptions
	// RemoveOptions are the options of Remove.
	RemoveOptions = v1.RemoveOptions
	// WatchOptions are the options of Watch.
	WatchOptions = v1.WatchOptions
	// TarOptions are the options of Upload: they limit what is unpacked.
	TarOptions = v1.TarOptions
	// TarStats counts what was packed or unpacked.
	TarStats = v1.TarStats
	// TarNote is an entry that was skipped, with the reason.
	TarNote = v1.TarNote
)

// LabelSession is the label of a sandbox that holds the session key. Backends can show it to people, e.g. in the name
// of a container.
const LabelSession = "recluse.session"

// LabelSessionID is the label of a sandbox that holds the id of the session. Sandboxes with the same id replace each
// other.
const LabelSessionID = "recluse.session-id"
