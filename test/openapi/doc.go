// Package openapi tests the OpenAPI document with tools of other projects: a linter, and a generator of TypeScript
// clients.
package openapi
