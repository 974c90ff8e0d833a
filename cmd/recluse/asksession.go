package main

import (
	"context"

	"github.com/recluse-dev/recluse/rlm"
)

func (a *app) askSession(_ context.Context, _ *watch, _ *askOptions, _ rlm.Question) error {
	return usage("--session: not yet")
}
