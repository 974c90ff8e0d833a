package dockerengine

import (
	"archive/tar"
	"bytes"
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
	// CleanWait limits the time for cleaning up after a failure.
	CleanWait = 20 * time.Second
	// removePause is the pause between attempts to remove a container that another program is removing.
	removePause = 20 * time.Millisecond
	// stubbornWait is how long the engine may take to kill a container before we kill its processes. The container is
	// being removed by force anyway, so nothing is lost if the engine is only slow.
	stubbornWait = 3 * time.Second
)

// Create creates a container. It cannot be cancelled halfway: the engine would still create the container, after the
// caller had searched for it without success.
func (e *Engine) Create(ctx context.Context, o client.ContainerCreateOptions) (client.ContainerCreateResult, error) {
	if err := ctx.Err(); err != nil {
		return client.ContainerCreateResult{}, err
	}
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanWait)
	defer cancel()
	res, err := e.ContainerCreate(whole, o)
	return res, errors.Join(err, ctx.Err())
}

// Remove removes a container by force and waits until it is gone. A missing container is not an error.
func (e *Engine) Remove(ctx context.Context, container string) error {
	defer e.insist(container)()
	for {
		_, err := e.ContainerRemove(ctx, container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || Missing(err) {
			return nil
		}
		if !errdefs.IsConflict(err) { // not a conflict with another removal
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(removePause):
		}
	}
}

// validContainer matches the engine's own ID of a container, which is unique.
var validContainer = regexp.MustCompile(`^[0-9a-f]{64}$`)

// insist kills the processes of a container that is being removed if the engine does not kill them in time. The
// returned stop cancels it. gVisor's runtime requests that the sandbox kills its processes, and waits forever if the
// sandbox hangs. Then the engine waits too, and cannot do anything else with the container, not even report its PID.
// insist has no effect if the engine's processes are on another machine or belong to another user.
func (e *Engine) insist(container string) (stop func() bool) {
	if !e.Local() || !validContainer.MatchString(container) {
		return func() bool { return true }
	}
	return time.AfterFunc(stubbornWait, func() { killContainer(container) }).Stop
}

// killContainer kills the processes in a container's cgroup: its processes, or those of the kernel that runs them.
// With every engine and both versions of cgroups, the name of the cgroup contains the container's ID. On systems
// other than Linux the engine runs in a virtual machine, and no process is found.
func killContainer(container string) {
	all, _ := filepath.Glob("/proc/[0-9]*/cgroup") // the pattern is valid
	for _, file := range all {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || !mentions(file, container) {
			continue
		}
		p, err := os.FindProcess(pid) // refers to this process even if the PID is reused, so the cgroup is checked again
		if err != nil {
			continue
		}
		if mentions(file, container) {
			_ = p.Kill() // it may have ended, or belong to another user
		}
		_ = p.Release()
	}
}

func mentions(file, text string) bool {
	b, err := os.ReadFile(file)
	return err == nil && strings.Contains(string(b), text)
}

// A carrier is a container that is never started. It is used to copy files to the engine, or to read files of an
// image, wherever the engine is. The program that creates a carrier removes it. If that program dies first, the next
// program finds the carrier by its labels and removes it.
const (
	LabelCarrier = "dev.recluse.carrier" // unique mark of a carrier
	LabelOwner   = "dev.recluse.owner"   // the program that created it
)

// CarrierName returns a unique name for a carrier.
func CarrierName() string { return "recluse-carrier-" + ids.Hex(6) }

// CarrierOwner returns the program that created a carrier, according to its labels. Without the label it returns the
// zero Process, which does not count as dead.
func CarrierOwner(labels map[string]string) (p backendkit.Process) {
	if json.Unmarshal([]byte(labels[LabelOwner]), &p) != nil {
		return backendkit.Process{}
	}
	return p
}

// Carrier creates a carrier, with labels in addition to those of Options.
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
	// The engine requires an entry point, and not every image has one.
	config := &container.Config{Image: image, Entrypoint: []string{"/never-started"}, Labels: l}
	res, err := e.Create(ctx, client.ContainerCreateOptions{Name: name, Config: config, HostConfig: hc})
	clean := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanWait)
		defer cancel()
		return f(ctx)
	}
	if NameTaken(err) { // nothing was created
		return "", nil, err
	}
	if err != nil {
		return "", nil, errors.Join(err, clean(func(ctx context.Context) error { return e.removeMarked(ctx, mark) }))
	}
	return res.ID, func() error {
		return clean(func(ctx context.Context) error { return e.Remove(ctx, res.ID) })
	}, nil
}

// removeMarked removes the carrier with a mark, if it was created despite an error. It is not found by its name,
// which may belong to another container.
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

// ReadFile reads at most limit bytes of a file of an image. If the file is missing, it returns errdefs.ErrNotFound.
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

// TrySize returns an error if the engine does not create containers with the options of its storage driver. It uses an
// empty image and a carrier with the labels, and removes both.
func (e *Engine) TrySize(ctx context.Context, labels, options map[string]string) (err error) {
	var empty bytes.Buffer
	if err := tar.NewWriter(&empty).Close(); err != nil {
		return err
	}
	name := CarrierName()
	// Not cancelled halfway, so that the image can be removed.
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanWait)
	defer cancel()
	source := client.ImageImportSource{Source: &empty, SourceName: "-"}
	res, err := e.ImageImport(whole, source, name, client.ImageImportOptions{})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res)
	_ = res.Close() // it was read completely
	if err != nil {
		return err
	}
	defer func() {
		_, gone := e.ImageRemove(whole, name, client.ImageRemoveOptions{Force: true})
		err = errors.Join(err, gone)
	}()
	_, remove, err := e.Carrier(whole, name, name, labels, &container.HostConfig{NetworkMode: "none", StorageOpt: options})
	if err != nil {
		return err
	}
	return remove()
}
