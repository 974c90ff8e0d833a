package e2b

import (
	"context"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

const (
	// restartWait is how long a restart waits for processes to end after SIGKILL.
	restartWait = 30 * time.Second
	// restartEvery is the interval at which it looks.
	restartEvery = 50 * time.Millisecond
)

// endProcesses ends all processes and interpreters of a sandbox, whose files stay: what E2B calls a pause without
// memory, or a reboot. There is no way to drop only the memory that works on every backend.
func endProcesses(ctx context.Context, ses *session.Session) error {
	ctx, cancel := context.WithTimeout(ctx, restartWait)
	defer cancel()
	for {
		left, err := killAll(ctx, ses)
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-time.After(restartEvery):
		case <-ctx.Done():
			return &v1.Error{
				Code: v1.CodeBusy, Op: "end processes", Retry: true,
				Message: "processes of the sandbox did not end", Err: ctx.Err(),
			}
		}
	}
}

// killAll kills what runs, and returns how much it was.
func killAll(ctx context.Context, ses *session.Session) (left int, err error) {
	contexts, err := ses.Contexts(ctx)
	if err != nil {
		return 0, err
	}
	for _, c := range contexts {
		if err := ses.CloseContext(ctx, c.Name); err != nil && v1.CodeOf(err) != v1.CodeNotFound {
			return 0, err
		}
	}
	all, err := ses.Operations(ctx)
	if err != nil {
		return 0, err
	}
	for _, o := range all {
		if !o.Running {
			continue
		}
		left++
		err := ses.Signal(ctx, o.ID, syscall.SIGKILL, v1.SignalOptions{Tree: true})
		switch v1.CodeOf(err) {
		case "", v1.CodeNotFound: // it has ended meanwhile
		default:
			return 0, err
		}
	}
	return left, nil
}

// pausedVar is the variable of a session whose pauses keep only files, while it is paused with memory by request.
const pausedVar = "e2b.paused"

func pausedWithMemory(ctx context.Context, ses *session.Session) bool {
	_, err := ses.Var(ctx, pausedVar)
	return err == nil
}
