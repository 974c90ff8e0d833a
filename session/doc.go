// Package session binds a caller's key to a sandbox that is always found again.
//
// A [Manager] opens sessions by key. The first Open of a key creates a sandbox; every later one finds the same live
// interpreters with their variables, even after the program was killed and started again. An idle session is written to
// disk and its memory freed; the next call wakes it:
//
//	m, err := session.New(ctx, session.Options{Backends: []sandbox.Backend{b}})
//	…
//	defer m.Detach(ctx) // sessions live on; Close would end them
//	s, _, err := m.Open(ctx, session.Key{Name: "work"}, session.OpenOptions{})
//	…
//	v, err := s.Cell(ctx, sandbox.Cell{Code: "x = 41\nx + 1"})
//	fmt.Println(v.Result.Text()) // 42
//
// The backend knows what runs. The store only adds what a backend cannot know: keys, lifetimes, names of snapshots.
//
// # States
//
// These are all transitions of a session. Every state has a reason, and every change is an event. Ready and executing are
// one state in the store: which of the two it is depends on whether a cell, a command or a transfer is in progress.
//
//	from        to
//	creating    ready; lost; ended
//	ready       executing; paused; hibernated; lost; ending; ended; expired
//	executing   ready; paused; hibernated; lost; ending; ended; expired
//	paused      ready; executing; hibernated; lost; ending; ended; expired
//	hibernated  ready; executing; lost; ending; ended; expired
//	lost        ready; ending; ended; expired
//	ending      ended
//	ended
//	expired
//
// # Attachment
//
// Beside its state, a session has an attachment: its relation to its sandbox, which callers do not see. The state says what
// was promised, and is in the store; the attachment says what this manager has in hand, and ends with it.
//
//	detached     no sandbox is attached; the next call or health check attaches, wakes or restores one
//	unknown      detached, and the backend did not answer when the manager started: the sandbox may run, be hibernated, or be gone
//	attached     calls use the sandbox
//	unverified   attached, but which operations run in it is not known; a health check asks
//	reserved     the sandbox is about to be stopped, replaced or queried; calls wait
//	reattaching  the connection broke, and a new one is being made
//	unreachable  the sandbox may run, but its backend could not be asked; the next call or health check tries again
//	restoring    the sandbox is lost, and a snapshot is being restored; calls wait
//	stalled      restoring, and the backend does not answer; calls fail with its error
//
// A creating, hibernated or ended session, and one that is lost for good, is detached or unknown. A ready or paused session
// is in any state but restoring and stalled, which belong to a lost one. A reservation returns to the state before it, or
// ends in the one that it was made for. These are all transitions:
//
//	from         to
//	detached     unknown; attached; unverified; reserved; restoring
//	unknown      detached; attached; unverified; reserved; restoring
//	attached     detached; unverified; reserved; reattaching; unreachable; restoring
//	unverified   detached; reserved; reattaching; unreachable; restoring
//	reserved     detached; unknown; attached; unverified; unreachable; restoring; stalled
//	reattaching  detached; attached; unverified; unreachable; restoring
//	unreachable  detached; attached; unverified; reserved; restoring
//	restoring    detached; attached; unverified; reserved; stalled
//	stalled      detached; reserved; restoring
//
// # Lifetimes
//
// Two times end a session. Its idle time runs while it is not used, and every use renews it. Its end (Policy.Expires), if it
// has one, is counted from its creation, however it is used and also while it hibernates; only Extend moves it, and never
// beyond the operator's max_age. When the end has come, new calls are refused, and the session expires as soon as nothing
// runs in it.
//
// Running a cell or a command, moving files, beginning to watch them, signals, setting variables and snapshots are use;
// listing, following, reading variables and events are not. A background command is use as long as it runs. Processes that an ended command left behind are not: they
// hibernate and wake with the session, and end with it.
//
// When a session ends, everything that runs in it gets SIGTERM, EndGrace, and SIGKILL. A paused session, and processes left
// behind by an operation that the guest no longer remembers, get SIGKILL only.
//
// # When a sandbox dies
//
// A sandbox that hangs counts as dead: it does not answer several pings, nor can it be attached again. Calls in progress in
// it end with an error. The session is restored from the snapshot that its state came from last. The next verdict's metadata
// reports so under [MetaStateFrom], as do Info.StateFrom and an event. After three times within five minutes, or without a
// snapshot, the session is lost for good, and an alert is sent to the webhook.
package session
