// Package audit writes the audit log and the events of sessions to the store.
//
// A [Journal] collects lines in memory and writes them in batches, because a cell in a warm sandbox must not wait for
// the store. Entries of the audit log are also written to a spool, two files beside the store, so that they survive if
// the program is killed. Events that are not written yet are then lost: those of the last quarter of a second at most.
//
// While the store cannot be written, lines wait in memory. When the journal is full, [Journal.Blocked] returns an
// error, and no code may run, because the audit log could not record it.
package audit
