// Package v1 declares the types that travel between a recluse server and its clients: specs, cells, commands, verdicts, files, sessions,
// runs, events, errors and their codes.
//
// It is a leaf: it imports the standard library only, so that a client pays for nothing else. Packages sandbox, session, gate, llm and rlm
// use the same types under names of their own, so a field that is added here needs no second declaration there. Most types have one JSON
// form, the same in requests and in responses: what a server returns can be sent back to it.
//
// Times that a caller sets are texts ("90s", "none"): see [Duration]. Times that were measured are nanoseconds, in fields that end in _ns.
// Strings that may be any bytes (code, arguments, paths, output) are [Text].
package v1
