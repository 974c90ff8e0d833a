package main

import (
	"context"

	"github.com/spf13/cobra"
)

func (a *app) imageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "image",
		Short:   "Build images for the docker backend",
		Example: "  recluse image from-host",
	}
	var tag string
	host := &cobra.Command{
		Use:   "from-host",
		Short: "Build a small image from the programs of this machine",
		Long: `Build a small image from the programs of this machine.

Use it where no registry can be reached. The image has the shell, tools and Python of this
machine, and no files of users. It is loaded into the Docker engine.`,
		Example: `  recluse image from-host
  recluse exec --backend docker --image recluse-host --python 'print(1 + 1)'
  RECLUSE_DOCKER_IMAGE=recluse-host recluse serve --backend docker`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.imageFromHost(c.Context(), tag) },
	}
	host.Flags().StringVar(&tag, "tag", "recluse-host", "`name` of the image")
	c.AddCommand(host)
	return c
}

func (a *app) imageFromHost(ctx context.Context, tag string) error {
	ctx = a.watch(ctx)
	b, err := a.docker()
	if err != nil {
		return err
	}
	if err := b.ImportHost(ctx, tag); err != nil {
		return cause(ctx, err)
	}
	return a.result(map[string]any{"image": tag}, "%s\n", tag)
}
