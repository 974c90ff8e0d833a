// Package runs manages the runs of a server. It starts runs for tenants, keeps track of the live ones, and reads the
// stored ones from disk.
//
// A run outlives the request that started it. It also outlives the server: when a server stops or is killed, the next
// server resumes its runs (Keeper.Recover).
package runs
