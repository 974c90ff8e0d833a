// Package mcpclients contains the end-to-end tests of the MCP server, with real processes and clients of other
// projects.
package mcpclients
