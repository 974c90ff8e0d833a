package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/sandbox/vm"
)

func (a *app) vmCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "vm",
		Short:   "Set up virtual machines for the vm backend",
		Example: "  recluse vm setup",
	}
	var o vm.SetupOptions
	setup := &cobra.Command{
		Use:   "setup",
		Short: "Prepare a kernel and a root file system for virtual machines",
		Long: `Prepare a kernel and a root file system for virtual machines.

The kernel is the one that the configuration names (vm.kernel and vm.modules), the newest one
in /boot that has the modules needed, or that of Debian's package linux-image-cloud-amd64,
which is downloaded but not installed. The root file system is made from the programs of
this machine, from a directory, or from Debian packages.

Run it again after programs of this machine have changed: sandboxes use what the last setup
has made. An interrupted setup can be repeated.`,
		Example: `  recluse vm setup
  recluse exec --backend vm -- uname -r
  recluse vm setup --packages python3,python3-pandas
  recluse doctor --backend vm`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.vmSetup(c.Context(), o) },
	}
	f := setup.Flags()
	f.StringVar(&o.RootFS, "rootfs", "", "`directory` with a system, instead of the programs of this machine")
	f.StringSliceVar(&o.Packages, "packages", nil, "Debian `packages` of a new system, instead of the programs of this machine")
	setup.MarkFlagsMutuallyExclusive("rootfs", "packages")
	c.AddCommand(setup)
	return c
}

func (a *app) vmSetup(ctx context.Context, o vm.SetupOptions) error {
	ctx = a.watch(ctx)
	cfg, err := a.config()
	if err != nil {
		return err
	}
	b, err := a.vm()
	if err != nil {
		return err
	}
	o.Kernel, o.Modules = cfg.VM.Kernel, cfg.VM.Modules
	if !a.json {
		o.Report = func(line string) { fmt.Fprintln(a.stdout, line) }
	}
	done, err := b.Setup(ctx, o)
	if err != nil {
		return cause(ctx, err)
	}
	return a.result(done, "ready: recluse exec --backend vm …\n")
}
