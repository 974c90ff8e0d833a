package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/doctor"
)

// version and commit are set by make build. Without them, the build information is used, as after go install.
var version, commit string

// build describes this program.
type build struct {
	Version  string          `json:"version"`
	Commit   string          `json:"commit,omitempty"`
	Time     string          `json:"time,omitempty"`
	Modified bool            `json:"modified"` // built from files that differ from the commit, as far as is known
	Go       string          `json:"go"`
	Platform string          `json:"platform"`
	Engine   *doctor.Program `json:"engine,omitempty"`
	Guest    *doctor.Program `json:"guest,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the versions of recluse, its engine and its guest",
		Example: "  recluse version\n  recluse version --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b := thisBuild()
			b.Engine, b.Guest = doctor.FindProgram(c.Context(), bundle.Engine), doctor.FindProgram(c.Context(), bundle.Guest)
			if a.json {
				return console.WriteJSON(a.stdout, b)
			}
			fmt.Fprintf(a.stdout, "recluse %s\n", b.Version)
			if b.Commit != "" {
				note := ""
				if b.Modified {
					note = ", with changes"
				}
				if b.Time != "" {
					note = " of " + b.Time + note
				}
				fmt.Fprintf(a.stdout, "commit  %s%s\n", b.Commit, note)
			}
			fmt.Fprintf(a.stdout, "built   with %s for %s\n", b.Go, b.Platform)
			fmt.Fprintf(a.stdout, "engine  %s\n", b.Engine)
			fmt.Fprintf(a.stdout, "guest   %s\n", b.Guest)
			return nil
		},
	}
}

func thisBuild() build {
	b := build{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version = info.Main.Version
	if version != "" {
		b.Version, b.Commit = version, commit
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}
