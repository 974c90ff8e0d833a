// Package procgroup kills a program of the host together with its children, and stores the end of its output.
package procgroup
