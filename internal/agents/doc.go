// Package agents connects recluse with coding agents. It writes their configuration, and rewrites the shell commands
// that they pass to a hook, so that the commands run in a session.
//
// Nothing else is changed. A configuration file keeps its other settings, their order and the comments. A command
// reaches the sandbox byte for byte as the agent wrote it, or does not run.
package agents
