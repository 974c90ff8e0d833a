// Package dockersetup prepares a Docker engine for the docker backend: it builds an image from this machine
// where no registry can be reached, and registers our engine as a runtime, so that containers get a kernel of
// their own.
package dockersetup
