// Package runview shows a run to people while it goes on: as a live tree on a terminal, or as plain lines elsewhere.
//
// Both are made from the run's events alone, so a run in this program, one in a server and one that has long ended look the same.
package runview
