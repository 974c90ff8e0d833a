// Package session binds a caller's own key to a sandbox that is always found again.
//
// A [Manager] opens sessions by key. The first Open of a key makes a sandbox; every later one, also after the program was
// killed and started again, finds the same live interpreters with their variables. A session nobody uses is written to
// disk and its memory given back; the next call brings it back.
//
// The backend is the truth about what runs. The store only adds what a backend cannot know: keys, lifetimes, names of snapshots.
package session
