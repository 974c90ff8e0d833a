// Package audit writes the audit log, and the events of sessions beside it, to the store.
//
// A [Journal] collects lines in memory and writes them in batches, because a warm cell must not wait for the store. Entries
// of the audit log are also written to a spool, two files beside the store, so that a killed program loses none of them;
// events that wait when the program is killed are lost, a quarter of a second of them at most.
//
// When the store cannot be written, lines wait. [Journal.Blocked] then reports when there is no room for more, and no code
// may run that the audit log could not record.
package audit
