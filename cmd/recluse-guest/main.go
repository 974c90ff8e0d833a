//go:build linux

// Command recluse-guest is the agent that recluse starts inside a sandbox. It is
// not meant to be called by hand.
package main

import (
	"os"

	"github.com/recluse-dev/recluse/internal/guest/agent"
)

func main() { os.Exit(agent.Main()) }
