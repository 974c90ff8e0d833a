// Package daemon finds, starts and replaces the server that looks after one user's sessions.
//
// One data directory has one server at a time. The server holds a lock in that directory for as long as it lives, so what
// the lock's file says about it (its pid, what it is doing) is true exactly while the lock is held, and a killed server
// leaves nothing to be believed. Beside the lock lie two sockets: one for the API, and a control socket over which a
// caller asks who is there, keeps the server from leaving while it works, or asks it to make room for another.
//
// Whoever needs a server and finds none starts it. A second lock, held only meanwhile, makes twenty first callers start
// one server. A server that was started so ends by itself when it has nothing to look after; one that a person started stays.
package daemon
