// Package session binds a caller's own key to a sandbox that is always found again.
//
// A [Manager] opens sessions by key. The first Open of a key makes a sandbox; every later one, also after the program was
// killed and started again, finds the same live interpreters with their variables. A session nobody uses is written to
// disk and its memory given back; the next call brings it back:
//
//	m, err := session.New(ctx, session.Options{Backends: []sandbox.Backend{b}})
//	…
//	defer m.Detach(ctx) // sessions live on; Close would end them
//	s, _, err := m.Open(ctx, session.Key{Name: "work"}, session.OpenOptions{})
//	…
//	v, err := s.Cell(ctx, sandbox.Cell{Code: "x = 41\nx + 1"})
//	fmt.Println(v.Result.Text()) // 42
//
// The backend is the truth about what runs. The store only adds what a backend cannot know: keys, lifetimes, names of snapshots.
//
// # States
//
// What is not in this table does not happen. Every state has a reason, and every change is an event. Ready and executing are one state in the
// store: which of the two it is depends on whether a cell, a command or a transfer is under way.
//
//	from        to
//	creating    ready; lost; ended
//	ready       executing; paused; hibernated; lost; ended; expired
//	executing   ready; paused; hibernated; lost; ended; expired
//	paused      ready; executing; hibernated; lost; ended; expired
//	hibernated  ready; executing; lost; ended; expired
//	lost        ready; ended; expired
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
// A session lives for its TTL, which does not count time spent hibernated and can be extended a few times. When it is over new calls are refused,
// and the session expires as soon as nothing runs in it. Apart from that its idle time runs while nobody uses it. Running a cell or a command,
// moving files, signals and snapshots are use; listing, following, reading variables and events are not. A command in the
// background is use for as long as it runs. What a command left behind when it ended is not: it sleeps and wakes with the session, and ends with it.
//
// Everything that runs hears of a session's end: it gets SIGTERM, EndGrace, and SIGKILL. Only what is paused hears nothing, and what was left
// behind by an operation that the guest no longer remembers.
//
// # When a sandbox dies
//
// One that hangs counts as dead: it does not answer several pings, nor can it be attached again. Calls under way in it end with an error.
// The session goes back to the snapshot its state came from last. The next verdict's metadata says so under [MetaStateFrom], as do
// Info.StateFrom and an event. After three times within five minutes, or without a snapshot, it is lost, and the webhook is told.
package session
