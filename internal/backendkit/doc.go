// Package backendkit has what backends share, so that a new one writes only what is its own: how it
// starts the guest and how it reaches it.
package backendkit
