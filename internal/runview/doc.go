// Package runview displays a run: as a live tree on a terminal, or as plain lines elsewhere.
//
// Both are made from the events of the run only. Therefore a run in this program, a run in a server and a run that
// ended long ago look the same.
package runview
