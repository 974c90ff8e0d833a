package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/internal/console"
)

// config returns the configuration. It is read once.
func (a *app) config() (*config.Config, error) {
	if a.cfg == nil {
		c, err := config.Load(a.configFile, os.Environ())
		if err != nil {
			return nil, err
		}
		for _, w := range c.Warnings {
			a.notice("%s", w)
		}
		a.cfg = c
	}
	return a.cfg, nil
}

func (a *app) configCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "config",
		Short:   "Show the configuration",
		Example: "  recluse config show",
	}
	show := &cobra.Command{
		Use:   "show",
		Short: "Print every key, its value and its source",
		Long: `Print every key, its value and its source.

The source is the default, a line of the file, or an environment variable. The output can
be used as a configuration file, except for secrets, which are redacted.`,
		Example: `  recluse config show
  RECLUSE_SESSION_IDLE=1h recluse config show
  recluse config show --json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.showConfig() },
	}
	c.AddCommand(show)
	return c
}

func (a *app) showConfig() error {
	c, err := a.config()
	if err != nil {
		return err
	}
	settings := c.Settings()
	if a.json {
		return console.WriteJSON(a.stdout, settings)
	}
	p := console.NewPaint(a.stdout)
	section := ""
	for _, s := range settings {
		head, key, _ := strings.Cut(s.Key, ".")
		if head != section {
			section = head
			fmt.Fprintf(a.stdout, "%s%s:%s\n", p.Bold, head, p.Off)
		}
		value := s.Value
		if value == "" || strings.ContainsAny(value, ":,#[]{} ") {
			value = fmt.Sprintf("%q", value)
		}
		fmt.Fprintf(a.stdout, "  %-40s %s# %s%s\n", key+": "+value, p.Dim, s.Source, p.Off)
	}
	return nil
}
