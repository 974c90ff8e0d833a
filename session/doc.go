// Package session binds a session key to a sandbox and finds that sandbox again, even after a restart.
//
// A [Manager] opens sessions by key. The first Open of a key creates a sandbox. Every later Open finds the same live
// interpreters with their variables, even after the program was killed and started again. An idle session is written
// to disk and its memory is freed. The next call wakes it:
//
//	m, err := session.New(ctx, session.Options{Backends: []sandbox.Backend{b}})
//	…
//	defer m.Detach(ctx) // keeps the sessions; Close would end them
//	s, _, err := m.Open(ctx, session.Key{Name: "work"}, session.OpenOptions{})
//	…
//	v, err := s.Cell(ctx, sandbox.Cell{Code: "x = 41\nx + 1"})
//	fmt.Println(v.Result.Text()) // 42
//
// The backend knows which sandboxes run. The store only adds what a backend cannot know: keys, lifetimes and names of
// snapshots.
//
// # States
//
// The table has all transitions of a session. Every state has a reason, and every change emits an event. Ready and
// executing are one state in the store: a ready session is executing while a cell, a command or a transfer is in
// progress.
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
// Beside its state, a session has an attachment: its relation to its sandbox. Callers do not see the attachment. The
// state is what the manager promised to the caller, and is kept in the store. The attachment is the connection of this
// manager to the sandbox, and is lost when the manager ends.
//
//	detached     no sandbox is attached; the next call or health check attaches, wakes or restores one
//	unknown      detached, and the backend did not answer when the manager started:
//	             the sandbox may run, be hibernated, or be gone
//	attached     calls use the sandbox
//	unverified   attached, but the operations that run in the sandbox are not known; a health check queries them
//	reserved     the sandbox is about to be stopped, replaced or queried; calls wait
//	reattaching  the connection broke, and a new one is being opened
//	unreachable  the sandbox may run, but its backend could not be queried; the next call or health check tries again
//	restoring    the sandbox is lost, and a snapshot is being restored; calls wait
//	stalled      restoring, and the backend does not answer; calls fail with the error of the backend
//
// A session that is creating, hibernated, ended or lost for good is detached or unknown. A ready or paused session has
// any attachment except restoring and stalled, which only a lost session has. A reservation returns to the previous
// attachment, or changes to the one that it was made for. The table has all transitions:
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
// Two times bound the life of a session:
//
//   - The idle timeout (Policy.Idle) runs while the session is not used. Each use renews it.
//   - The expiry (Policy.Expires), if there is one, is counted from the creation of the session. Use does not renew it,
//     and it also counts while the session hibernates. Only Extend moves it, and never beyond the operator's max_age.
//     After the expiry, new calls are refused, and the session expires as soon as nothing runs in it, at the latest
//     five minutes later.
//
// These calls are use: running a cell or a command, transferring files, beginning to watch files, sending signals,
// setting variables, taking snapshots. These are not: listing, following, reading variables and events. A background
// command is use as long as it runs, and so is an open connection to a port. Survivors of an ended command are not
// use: they hibernate and wake with the session, and end with it.
//
// When a session ends, everything that runs in it gets SIGTERM and, after EndGrace, SIGKILL. The processes of a paused
// session, and survivors of an operation that the guest has forgotten, get SIGKILL only.
//
// # Loss of a sandbox
//
// A sandbox that hangs counts as lost: it missed several pings and cannot be attached again. Calls in progress in it
// fail. The session is restored from the snapshot that its state came from last. The metadata of the next verdict
// reports the restore under [MetaStateFrom]; Info.StateFrom and an event report it, too. After three restores within
// five minutes, or without a snapshot, the session is lost for good, and an alert is sent to the webhook.
package session
