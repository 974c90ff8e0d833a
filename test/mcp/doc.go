// Package mcp holds the end-to-end tests of the MCP server: real processes, spoken to by others' clients.
package mcp
