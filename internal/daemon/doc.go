// Package daemon finds, starts and replaces the server of one user.
//
// One data directory has at most one server. The server holds a lock in that directory as long as it lives. A file
// beside the lock describes the server: its pid, the start time of that process, and its phase. The file is trusted
// only while the lock is held and that very process exists, because a killed server leaves its file behind, and the
// next server needs a moment to write its own. Beside the lock are two sockets: one for the API, and a control socket.
// Over the control socket a caller reads the status of the server, keeps the server from exiting while the caller
// works, or asks it to exit.
//
// A caller that needs a server and finds none starts one. A second lock, held only while a server is started, makes
// twenty first callers start one server. A background server, which a caller has started, exits when it has no callers
// and no work. A server started with recluse serve stays.
package daemon
