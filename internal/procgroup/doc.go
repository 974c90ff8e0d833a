// Package procgroup ends a program of the host with what it has started, and keeps what it said last.
package procgroup
