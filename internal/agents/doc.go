// Package agents joins recluse with coding agents: it writes their configuration, and rewrites the shell commands that their
// hooks hand over so that these run in a session.
//
// Both halves have one rule: what is not ours is not touched. A file keeps the settings, the order and the comments of its
// owner; a command reaches the sandbox as the very bytes that the agent wrote, or not at all.
package agents
