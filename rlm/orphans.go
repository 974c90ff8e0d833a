package rlm

import (
	"context"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// labelPrefix is the prefix of labels that callers cannot set.
const labelPrefix = "recluse."

// LabelRun is the label of a sandbox or snapshot with the ID of its run.
const LabelRun = labelPrefix + "run"

// orphanTTL is how long the sandbox of a run is kept after its program was killed. The run itself is kept: if it is
// resumed later, it gets a new sandbox.
const orphanTTL = 24 * time.Hour

// Sweep ends the sandboxes of runs that do not run and were not resumed within orphanTTL. It ignores runs that none of
// the engines stores, and runs for which spare returns true because they will be resumed; spare may be nil. Sweep does
// nothing if the backend does not answer.
func Sweep(ctx context.Context, b sandbox.Backend, spare func(run string) bool, engines ...*Engine) {
	list, err := b.List(ctx)
	if err != nil {
		return // the backend does not answer; calls that need it report that
	}
	for _, i := range list {
		id := i.Labels[LabelRun]
		if id == "" || time.Since(i.Created) < orphanTTL {
			continue
		}
		if spare != nil && spare(id) {
			// This check is before Show: a run that is resumed between the two checks is then seen as running.
			continue
		}
		for _, e := range engines {
			if info, err := e.Show(id); err == nil && !info.Running {
				_ = b.Stop(ctx, i.ID) // the next sweep retries
				break
			}
		}
	}
}
