// Package v1 declares the types that travel between a recluse server and its clients: specs, cells, commands, verdicts,
// files, sessions, runs, events, errors and their codes.
//
// The package imports only the standard library, so that clients have few dependencies. Packages sandbox, session,
// gate, llm and rlm use the same types under their own names, so a field that is added here is not declared again
// there. Most types have the same JSON in requests and in responses: a client can send back what a server returns.
//
// Durations that a caller sets are strings such as "90s" or "none": see [Duration]. Measured durations are nanoseconds,
// in fields that end in _ns. Strings that may contain any bytes (code, arguments, paths, output) are [Text].
package v1
