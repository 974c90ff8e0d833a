// Package e2b tests the API of E2B with its unmodified SDKs, over real sandboxes of a real server.
package e2b
