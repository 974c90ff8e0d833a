// Package scripts holds what make calls, and tests of it.
package scripts
