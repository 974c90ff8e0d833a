package rlm

import (
	"context"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// ourLabels is how labels begin that callers cannot set.
const ourLabels = "recluse."

// LabelRun is the label of a sandbox or snapshot that names the run it belongs to.
const LabelRun = ourLabels + "run"

// orphanKept is how long the sandbox of a run whose program was killed waits for somebody who resumes it. The run itself is kept:
// it then begins in a new sandbox.
const orphanKept = 24 * time.Hour

// Sweep ends sandboxes of runs that nobody came back for. Runs that none of the engines keeps are others' business, and those that spare names are
// still to go on; nil: none are. It only looks at what there is: no backend is tried out for it.
func Sweep(ctx context.Context, b sandbox.Backend, spare func(run string) bool, engines ...*Engine) {
	list, err := b.List(ctx)
	if err != nil {
		return // it is away; whoever needs it will tell
	}
	for _, i := range list {
		id := i.Labels[LabelRun]
		if id == "" || time.Since(i.Created) < orphanKept {
			continue
		}
		if spare != nil && spare(id) {
			continue // asked first: one that has just gone on is seen to run
		}
		for _, e := range engines {
			if info, err := e.Show(id); err == nil && !info.Running {
				_ = b.Stop(ctx, i.ID) // the next one tries again
				break
			}
		}
	}
}
