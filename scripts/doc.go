// Package scripts contains the programs and scripts that the Makefile calls, and their tests.
package scripts
