package dockerengine

import (
	"context"
	"errors"
	"regexp"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

const (
	// CleanWait bounds the undoing of what could not be finished.
	CleanWait = 20 * time.Second
	// removePause is the time between two looks at a container that somebody else is removing.
	removePause = 20 * time.Millisecond
	// stubbornWait is how long an engine may take to kill a container before we do it. It is removed with force
	// then, so nothing is lost if the engine was only slow.
	stubbornWait = 3 * time.Second
)

// Create makes a container. It does not give up half way: the engine would make the container all the same, after
// the caller had looked for it in vain.
func (e *Engine) Create(ctx context.Context, o client.ContainerCreateOptions) (client.ContainerCreateResult, error) {
	if err := ctx.Err(); err != nil {
		return client.ContainerCreateResult{}, err
	}
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanWait)
	defer cancel()
	res, err := e.ContainerCreate(whole, o)
	return res, errors.Join(err, ctx.Err())
}

// Remove ends a container and waits until nothing of it is left. A missing one is no error.
func (e *Engine) Remove(ctx context.Context, container string) error {
	defer e.insist(container)()
	for {
		_, err := e.ContainerRemove(ctx, container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || Missing(err) {
			return nil
		}
		if !errdefs.IsConflict(err) { // somebody else is removing it
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(removePause):
		}
	}
}

// validContainer is an engine's own id of a container, which is nobody else's.
var validContainer = regexp.MustCompile(`^[0-9a-f]{64}$`)

// insist kills a container that is being removed if the engine does not get to it, until stop is called. gVisor's
// runtime asks the sandbox to kill what is in it, and waits for ever for one that hangs; so does the engine then,
// which can do nothing else with the container meanwhile, not even report its process. Where its processes are not on
// this machine, or not ours to kill, nothing can be done about that.
func (e *Engine) insist(container string) (stop func() bool) {
	if !e.Local() || !validContainer.MatchString(container) {
		return func() bool { return true }
	}
	return time.AfterFunc(stubbornWait, func() { killContainer(container) }).Stop
}
