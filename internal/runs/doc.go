// Package runs looks after the runs of a server: it starts them for tenants, keeps those that are under way, and finds those that are kept on disk.
//
// A run outlives the request that began it. When the server leaves, its runs are stopped; they are kept, and can be resumed.
package runs
