// Package openapi tests the OpenAPI document with the tools of others: a linter, and a generator of TypeScript clients.
package openapi
