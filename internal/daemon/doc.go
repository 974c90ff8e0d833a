// Package daemon finds, starts and replaces the server that looks after one user's sessions.
//
// One data directory has one server at a time. The server holds a lock in that directory for as long as it lives, so what
// the file beside it says about the server (its pid, when that process began, what it is doing) is believed only while the lock is held
// and that very process is there: a killed server leaves its words behind, and the next one needs a moment to write its own. Beside the lock lie two sockets: one for the API, and a control socket over which a
// caller asks who is there, keeps the server from leaving while it works, or asks it to make room for another.
//
// Whoever needs a server and finds none starts it. A second lock, held only meanwhile, makes twenty first callers start
// one server. A server that was started so ends by itself when it has nothing to look after; one that a person started stays.
package daemon
