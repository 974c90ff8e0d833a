// Package examples has one small program per directory, each about one part of the library. README.md
// lists them. The tests of this package build all of them and compare what they print.
package examples
