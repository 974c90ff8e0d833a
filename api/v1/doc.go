// Package v1 declares the types that travel between a recluse server and its clients.
//
// It is a leaf: it imports the standard library only, so that a client pays for nothing else. Each type has one JSON form, the same in
// requests and in responses: what a server returns can be sent back to it. The command line and the configuration read the same types, so
// a fact that is added here needs no second declaration there.
package v1
