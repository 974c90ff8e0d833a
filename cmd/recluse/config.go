package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/sandbox"
)

// config gives the configuration, read once.
func (a *app) config() (*config.Config, error) {
	if a.cfg == nil {
		c, err := config.Load(a.configFile, os.Environ())
		if err != nil {
			return nil, err
		}
		a.cfg = c
	}
	return a.cfg, nil
}

func (a *app) configCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "config",
		Short:   "Say how recluse is configured",
		Example: "  recluse config show",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	show := &cobra.Command{
		Use:   "show",
		Short: "Print every key, its value and where that comes from",
		Long: `Print every key, its value and where that comes from: the default, a line of the file, or a variable.
What is printed can be used as a file, but for secrets, which are redacted.`,
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
		return writeJSON(a.stdout, settings)
	}
	p := a.paint()
	section := ""
	for _, s := range settings {
		head, key, _ := strings.Cut(s.Key, ".")
		if head != section {
			section = head
			fmt.Fprintf(a.stdout, "%s%s:%s\n", p.bold, head, p.off)
		}
		value := s.Value
		if value == "" || strings.ContainsAny(value, ":,#[]{} ") {
			value = fmt.Sprintf("%q", value)
		}
		fmt.Fprintf(a.stdout, "  %-40s %s# %s%s\n", key+": "+value, p.dim, s.Source, p.off)
	}
	return nil
}

// configure fills in what the configuration says about backends, where flags do not.
func (c *choice) configure(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if !c.flags.Changed("backend") {
		c.backend = strings.Join(cfg.Backend.Order, ",")
	}
	if !c.flags.Changed("allow-no-isolation") {
		c.allowNone = cfg.Backend.AllowNoIsolation
	}
	if !c.flags.Changed("allow-container") {
		c.container = cfg.Backend.AllowContainer
	}
	if c.flags.Changed("pull") {
		cfg.Docker.Pull = c.pull // docker.New judges it
	}
	if !c.flags.Changed("min-isolation") {
		return c.min.UnmarshalText([]byte(cfg.Backend.MinIsolation))
	}
	return nil
}

// configure fills in what the configuration says about the sandbox, too.
func (m *machine) configure(a *app) error {
	if err := m.choice.configure(a); err != nil {
		return err
	}
	l := limitsOf(a.cfg)
	if m.memory == 0 {
		m.memory = size(l.Memory)
	}
	if m.cpus == 0 {
		m.cpus = cpus(l.CPUs)
	}
	if m.processes == 0 {
		m.processes = count(l.Processes)
	}
	if m.disk == 0 {
		m.disk = size(l.Disk)
	}
	if m.openFiles == 0 {
		m.openFiles = count(l.OpenFiles)
	}
	return nil
}

// limitsOf gives the limits that somebody configured; what nobody did stays zero, so that it is nobody's demand.
func limitsOf(c *config.Config) sandbox.Limits {
	var l sandbox.Limits
	if _, ok := c.Set("limits.memory"); ok {
		l.Memory = int64(c.Limits.Memory)
	}
	if _, ok := c.Set("limits.cpus"); ok {
		l.CPUs = c.Limits.CPUs
	}
	if _, ok := c.Set("limits.processes"); ok {
		l.Processes = c.Limits.Processes
	}
	if _, ok := c.Set("limits.disk"); ok {
		l.Disk = int64(c.Limits.Disk)
	}
	if _, ok := c.Set("limits.open_files"); ok {
		l.OpenFiles = c.Limits.OpenFiles
	}
	return l
}
