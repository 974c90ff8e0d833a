// Package runs looks after the runs of a server: it starts them for tenants, keeps those that are under way, and finds those that are kept on disk.
//
// A run outlives the request that began it, and the server as well: when that leaves or is killed, the next one goes on with its runs (Keeper.Recover).
package runs
