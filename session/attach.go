package session

import (
	"context"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// heldWait is how long a sandbox may be held by the attachment before. One that broke is let go of in its own time, and a sandbox that
	// is being made keeps its maker attached until it has settled.
	heldWait = 5 * time.Second
	// heldPause is the time between two looks whether it still is.
	heldPause = 20 * time.Millisecond
)

// attach attaches a sandbox that we may have let go of only now. Whoever else holds it does so for longer: then it is busy.
func attach(ctx context.Context, b sandbox.Backend, id string) (*sandbox.Sandbox, error) {
	for end := time.Now().Add(heldWait); ; {
		sb, err := sandbox.Attach(ctx, b, id)
		if sandbox.CodeOf(err) != sandbox.CodeBusy || time.Now().After(end) {
			return sb, err
		}
		select {
		case <-time.After(heldPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}
