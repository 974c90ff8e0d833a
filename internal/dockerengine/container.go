package dockerengine

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/ids"
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

// killContainer kills what is in a container's cgroup: its processes, or those of the kernel that runs them. The name
// of the cgroup contains the container's id with every engine and both versions of cgroups. On other systems than Linux the engine's processes are in a machine of their own, and none is found.
func killContainer(container string) {
	all, _ := filepath.Glob("/proc/[0-9]*/cgroup") // the pattern is right
	for _, file := range all {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || !mentions(file, container) {
			continue
		}
		p, err := os.FindProcess(pid) // means this very process, so that it can be looked at again
		if err != nil {
			continue
		}
		if mentions(file, container) {
			_ = p.Kill() // it may have ended, or not be ours to kill
		}
		_ = p.Release()
	}
}

func mentions(file, text string) bool {
	b, err := os.ReadFile(file)
	return err == nil && strings.Contains(string(b), text)
}

// A carrier is a container that is never started. Through it files are brought to the engine, or read from an image,
// wherever the engine is. Its maker removes it; if that dies before, the next program does that finds it by its labels.
const (
	LabelCarrier = "dev.recluse.carrier" // a mark that no other carrier has
	LabelOwner   = "dev.recluse.owner"   // the program that has made it
)

// CarrierName returns a name for a carrier that no other has.
func CarrierName() string { return "recluse-carrier-" + ids.Hex(6) }

// CarrierOwner reads from a carrier's labels which program has made it. Without one none is known to be dead.
func CarrierOwner(labels map[string]string) (p backendkit.Process) {
	if json.Unmarshal([]byte(labels[LabelOwner]), &p) != nil {
		return backendkit.Process{}
	}
	return p
}

// Carrier makes a carrier, with labels on top of those of Options.
func (e *Engine) Carrier(
	ctx context.Context, name, image string, labels map[string]string, hc *container.HostConfig,
) (id string, remove func() error, err error) {
	own, err := json.Marshal(backendkit.Self())
	if err != nil {
		return "", nil, err
	}
	mark := ids.Hex(6)
	l := map[string]string{LabelCarrier: mark, LabelOwner: string(own)}
	maps.Copy(l, e.labels)
	maps.Copy(l, labels)
	// An entry point of our own: not every image has one, and the engine insists.
	config := &container.Config{Image: image, Entrypoint: []string{"/never-started"}, Labels: l}
	res, err := e.Create(ctx, client.ContainerCreateOptions{Name: name, Config: config, HostConfig: hc})
	clean := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanWait)
		defer cancel()
		return f(ctx)
	}
	if NameTaken(err) { // nothing was made
		return "", nil, err
	}
	if err != nil {
		return "", nil, errors.Join(err, clean(func(ctx context.Context) error { return e.removeMarked(ctx, mark) }))
	}
	return res.ID, func() error {
		return clean(func(ctx context.Context) error { return e.Remove(ctx, res.ID) })
	}, nil
}

// removeMarked removes the carrier with a mark, if it was made after all. Its name may be another's.
func (e *Engine) removeMarked(ctx context.Context, mark string) error {
	f := client.Filters{}.Add("label", LabelCarrier+"="+mark)
	res, err := e.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: f})
	for _, c := range res.Items {
		if c.Labels[LabelCarrier] == mark {
			err = errors.Join(err, e.Remove(ctx, c.ID))
		}
	}
	return err
}

// ReadFile reads at most limit bytes of a file of an image. Without the file the error is errdefs.ErrNotFound.
func (e *Engine) ReadFile(ctx context.Context, image, path string, limit int64) (text []byte, err error) {
	id, remove, err := e.Carrier(ctx, CarrierName(), image, nil, &container.HostConfig{NetworkMode: "none"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	res, err := e.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: path})
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Content.Close() }()
	archive := tar.NewReader(res.Content)
	if _, err := archive.Next(); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(archive, limit))
}
