// Package procgroup ends a program of the host with what it has started.
package procgroup
