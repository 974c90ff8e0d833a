package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/internal/bundle"
)

// Set by make build. A program that was made by go install knows them from its build information.
var version, commit string

// build says which recluse this is.
type build struct {
	Version  string   `json:"version"`
	Commit   string   `json:"commit,omitempty"`
	Time     string   `json:"time,omitempty"`
	Modified bool     `json:"modified"` // built from files that differ from the commit, as far as is known
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	Engine   *program `json:"engine,omitempty"`
	Guest    *program `json:"guest,omitempty"`
}

// program is a program of ours, or why there is none.
type program struct {
	bundle.Program
	Error *failure `json:"error,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Say which recluse this is, and which engine and guest it uses",
		Example: "  recluse version\n  recluse version --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b := thisBuild()
			b.Engine, b.Guest = findProgram(c.Context(), bundle.Engine), findProgram(c.Context(), bundle.Guest)
			if a.json {
				return writeJSON(a.stdout, b)
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

func findProgram(ctx context.Context, find func(context.Context) (bundle.Program, error)) *program {
	p, err := find(ctx)
	if err != nil {
		f := failureOf(err)
		return &program{Error: &f}
	}
	return &program{Program: p}
}

// String is one line about it.
func (p *program) String() string {
	if p.Error != nil {
		return "not found: " + p.Error.Message
	}
	return fmt.Sprintf("%.16s  %s", p.Hash, p.Origin)
}
