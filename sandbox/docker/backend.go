package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"gvisor.dev/gvisor/pkg/cleanup"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/volumes"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Backend makes sandboxes that are containers. Its methods may be called from several goroutines.
type Backend struct {
	backend.VolumeKeeper
	volumes *volumes.Keeper

	opts     Options
	cli      *dockerengine.Engine
	dir      string
	instance string
	own      backendkit.Instance
	notes    backendkit.Notes
	sweeper  backendkit.Sweeper
	proofs   backendkit.Proof[proof]
	trials   backendkit.Trials
	sizes    sizeTrial

	namedGuest func() (bundle.Program, error) // reads Options.GuestPath, once

	watchers sync.WaitGroup
	ctx      context.Context // ctx of everything that outlives a call
	cancel   context.CancelFunc

	filling chan struct{} // a lock with one slot; its holder checks and fills the guest's volume

	mu       sync.Mutex
	filled   map[string]bool     // guarded by mu; volumes whose guest is known to be complete
	attached map[string]*machine // guarded by mu; by sandbox ID, nil while an attachment is being made
	closed   bool                // guarded by mu
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ backend.Surveyor = (*Backend)(nil)

	_ backend.VolumeKeeper = (*Backend)(nil)
)

// notesDir is the directory of the notes on sandboxes, below the directory of the instance.
const notesDir = "notes"

// New returns the backend. It fails for invalid options; Health reports whether the Docker engine answers.
func New(opts Options) (*Backend, error) {
	if opts.Image == "" {
		opts.Image = DefaultImage
	}
	if opts.Pull == "" {
		opts.Pull = PullMissing
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	b := &Backend{
		opts: opts, dir: opts.Dir, filling: make(chan struct{}, 1),
		filled: map[string]bool{}, attached: map[string]*machine{},
	}
	if b.dir == "" {
		data, err := xdg.Data()
		if err != nil {
			return nil, err
		}
		b.dir = filepath.Join(data, Name)
	}
	home := opts.Dir
	if home == "" {
		home = filepath.Dir(b.dir)
	}
	b.volumes = &volumes.Keeper{
		Store:       volumes.In(home, Name),
		Limits:      func() error { return errors.New("the Docker engine does not limit named volumes") },
		Unlimited:   opts.UnlimitedDisk,
		Setting:     "docker.unlimited_disk",
		Unlimitable: volumes.KindEngine,
		Lives:       b.holds,
		Engine:      b,
	}
	b.VolumeKeeper = b.volumes
	var err error
	if b.own, err = backendkit.OpenInstance(b.dir, opts.Instance); err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "name this instance",
			Message: "cannot use the directory " + b.dir,
			Err:     err,
		}
	}
	b.instance = b.own.Name
	b.notes.Dir = filepath.Join(b.dir, notesDir)
	b.proofs.Path = filepath.Join(b.dir, "proof.json")
	b.sweeper = backendkit.Sweeper{Sweep: b.sweep, Limit: dockerengine.CleanWait, Go: b.background}
	b.trials = backendkit.Trials{Limit: trialLimit, Go: b.background}
	b.cli, err = dockerengine.Open(dockerengine.Options{
		Host:    opts.Host,
		Context: opts.Context,
		Runtime: opts.Runtime,
		// empty: the image may be a snapshot that has the label of its sandbox
		Labels: map[string]string{labelInstance: b.instance, labelSandbox: ""},
	})
	if err != nil {
		return nil, err
	}
	b.namedGuest = sync.OnceValues(func() (bundle.Program, error) { return readGuest(opts.GuestPath) })
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

// background runs f in a goroutine for which Close waits. It reports false if the backend is closed.
func (b *Backend) background(f func(ctx context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.watchers.Go(func() { f(b.ctx) })
	}
	return !b.closed
}

// Close detaches from all sandboxes and from the Docker engine. The sandboxes continue to run, and the next program
// of this instance finds them.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	var open []*machine
	for _, m := range b.attached {
		if m != nil {
			open = append(open, m)
		}
	}
	b.mu.Unlock()
	for _, m := range open {
		_ = m.stream.Close() // never fails
	}
	b.cancel()
	b.watchers.Wait()
	return b.cli.Close()
}

// Name implements sandbox.Backend.
func (b *Backend) Name() string { return Name }

func (b *Backend) facts(ctx context.Context) (*dockerengine.Facts, error) { return b.cli.Facts(ctx) }

// Capabilities implements sandbox.Backend.
func (b *Backend) Capabilities(ctx context.Context) sandbox.Capabilities {
	c := sandbox.Capabilities{
		Isolation:     sandbox.IsolationContainer,
		Snapshots:     sandbox.SnapshotsFiles,
		Egress:        sandbox.EgressNone,
		Images:        true,
		Mounts:        b.cli.Local(),
		OpenFileLimit: true,
		Python:        true,
		Bash:          true,
		Files:         true,
		PTY:           true,
		ColdStart:     500 * time.Millisecond,
		Notes:         []string{noMemory},
	}
	note := func(when bool, text string) {
		if when {
			c.Notes = append(c.Notes, text)
		}
	}
	if !b.opts.filtered() {
		c.Egress = sandbox.EgressUnfiltered
		note(true, "code has the network "+b.network()+" of the Docker engine (docker.network), which nothing filters")
	}
	note(!c.Mounts, "directories of this machine cannot be mounted, because the Docker engine is on another machine")
	note(len(b.opts.Volumes) > 0, "no limit applies to what is written to a named volume")
	f, err := b.facts(ctx)
	if err != nil {
		c.Isolation = sandbox.IsolationNone
		note(true, "the Docker engine cannot be queried: "+err.Error())
		return c
	}
	c.Isolation = b.level(f)
	if b.opts.filtered() {
		var text string
		c.Egress, text = b.egress(ctx, f)
		note(text != "", text)
		c.Notes = append(c.Notes, b.opts.Egress.Notes()...)
	}
	c.MemoryLimit, c.CPULimit, c.ProcessLimit = f.Memory, f.CPU, f.PIDs
	s := b.storage(ctx, f)
	c.WritableRoot, c.DiskLimit = s.writable, s.limited || !s.writable // files in memory are limited
	note(s.writable && !s.limited, "bytes on the disk are not limited (docker.unlimited_disk): "+s.why)
	note(!s.writable, "the root is read-only and files are in memory: "+s.why)
	c.Root = ownGuest(f) && limitsRoot(f)
	note(
		true,
		fmt.Sprintf(
			"%s %s, API %s, runtime %s of %s",
			f.Product(),
			f.Version,
			f.API,
			f.Runtime,
			strings.Join(f.Runtimes, ", "),
		),
	)
	note(f.Podman, "Podman limits the total size of files but not their number, and does not distinguish "+
		"a stop or an OOM kill of the guest from another kill")
	note(b.opts.UnsafeRoot, "a spec may run code as root")
	note(b.opts.UnsafeHostConfig, "a spec may weaken the isolation with its own host config")
	note(len(b.opts.HostConfig) > 0, "the configured host config weakens the isolation")
	note(
		!f.Memory || !f.CPU || !f.PIDs,
		"the Docker engine cannot enforce all limits, because its machine lacks cgroup controllers",
	)
	return c
}

// consent refuses sandboxes that share the host's kernel if the environment is production.
func (b *Backend) consent(f *dockerengine.Facts) error {
	forbidden, remedy := "", ""
	switch {
	case b.level(f) >= sandbox.IsolationKernel:
	case f.UserSpace():
		forbidden = "settings that weaken the isolation: host_config, unsafe_host_config, unsafe_root"
		remedy = "remove host_config, unsafe_host_config and unsafe_root"
	default:
		forbidden = fmt.Sprintf("the runtime %s, whose containers share the host's kernel", f.Runtime)
		remedy = "use the runtime runsc"
	}
	return backendkit.RefuseInProduction("start sandbox", forbidden, remedy)
}

func containerName(id string) string { return "recluse-" + id }

// find returns the record and the container of a sandbox of this instance.
func (b *Backend) find(ctx context.Context, id string) (record, *container.Summary, error) {
	if !goodID.MatchString(id) {
		return record{}, nil, notFound("find sandbox", "sandbox", id)
	}
	res, err := b.cli.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: b.filter(labelSandbox + "=" + id),
	})
	if err != nil {
		return record{}, nil, failed(ctx, "find sandbox", "the Docker engine cannot list containers", err)
	}
	for _, c := range res.Items {
		if r, ok := readRecord(c.ID, c.Labels); ok && r.ID == id && b.mine(c.Labels) {
			return r, &c, nil
		}
	}
	return record{}, nil, notFound("find sandbox", "sandbox", id)
}

// Attach implements sandbox.Backend. It invalidates the attachment of another program.
func (b *Backend) Attach(ctx context.Context, id string) (_ sandbox.Machine, err error) {
	const op = "attach"
	r, _, err := b.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := b.reserve(id); err != nil {
		return nil, err
	}
	l := b.beginWatch(r.Container)
	cu := cleanup.Make(func() {
		l.forget()
		b.release(id, nil)
		err = failed(ctx, op, "the guest cannot be reached", err)
	})
	defer cu.Clean()
	res, err := b.cli.ContainerInspect(ctx, r.Container, client.ContainerInspectOptions{})
	if err != nil {
		return nil, err
	}
	st := res.Container.State
	switch {
	case st.Paused:
		return nil, &v1.Error{
			Code:    CodePaused,
			Op:      op,
			Message: "the container is paused",
			Remedy:  "run docker unpause",
			Retry:   true,
		}
	case !st.Running:
		return nil, (&machine{record: r}).endCause(st, time.Now())
	}
	if r.Token, err = tokenOf(res.Container.Config.Env); err != nil {
		return nil, &v1.Error{Code: v1.CodeNotFound, Op: op, Message: "the container was not made by recluse", Err: err}
	}
	// From here on this program is responsible for the sandbox, and sweeps of other programs must not remove it.
	note := b.notes.Read(&r.Record)
	note.Owner = backendkit.Self()
	if err := b.notes.Write(id, note); err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeInternal,
			Op:      op,
			Message: "cannot record this program as the owner",
			Err:     err,
		}
	}
	m, err := b.attach(ctx, r, res.Container.Name, l)
	if err != nil {
		return nil, err
	}
	cu.Release()
	return m.withNetwork(), nil
}

// tokenOf reads the token from the guest's environment.
func tokenOf(env []string) (string, error) {
	for _, kv := range env {
		text, ok := strings.CutPrefix(kv, launch.ConfigEnv+"=")
		if !ok {
			continue
		}
		var c launch.Config
		err := json.Unmarshal([]byte(text), &c)
		return c.Token, err
	}
	return "", errors.New("the environment contains no guest configuration")
}

// Stop implements sandbox.Backend.
func (b *Backend) Stop(ctx context.Context, id string) error {
	r, _, err := b.find(ctx, id)
	if err != nil {
		if v1.CodeOf(err) == v1.CodeNotFound {
			return nil
		}
		return err
	}
	m := b.attachment(id)
	if m != nil {
		m.Stopping()
	}
	if err := b.cli.Remove(ctx, r.Container); err != nil {
		return &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "stop sandbox",
			Message: "the container cannot be removed",
			Retry:   true,
			Err:     err,
		}
	}
	b.notes.Remove(id)
	b.releaseVolumes(r)
	if r.Restored != "" {
		b.removeUntagged(ctx)
	}
	if m != nil {
		m.end(nil)
		b.release(id, m)
	}
	return nil
}

// List implements sandbox.Backend.
func (b *Backend) List(ctx context.Context) ([]sandbox.Info, error) {
	res, err := b.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: b.filter(labelSandbox)})
	if err != nil {
		return nil, b.ignoreIfUnused(failed(ctx, "list sandboxes", "the Docker engine cannot list containers", err))
	}
	var out []sandbox.Info
	for _, c := range res.Items {
		r, ok := readRecord(c.ID, c.Labels)
		if !ok || !b.mine(c.Labels) || c.State == container.StateRemoving {
			continue
		}
		i := r.Info(Name)
		i.Running, i.Labels = c.State == container.StateRunning ||
			c.State == container.StatePaused, b.notes.Read(
			&r.Record,
		).Labels
		out = append(out, i)
	}
	slices.SortFunc(out, func(x, y sandbox.Info) int { return x.Created.Compare(y.Created) })
	return out, nil
}

// Survey implements backend.Surveyor. It lists the sandboxes of all instances on the Docker engine.
func (b *Backend) Survey(ctx context.Context) ([]backend.Surveyed, error) {
	found, err := b.survey(ctx, labelSandbox)
	var out []backend.Surveyed
	for _, f := range found {
		out = append(out, f.Surveyed)
	}
	return out, err
}

// surveyed is a sandbox of any instance.
type surveyed struct {
	backend.Surveyed
	container string
	mine      bool
}

func (b *Backend) survey(ctx context.Context, label string) ([]surveyed, error) {
	res, err := b.cli.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: client.Filters{}.Add("label", label),
	})
	if err != nil {
		return nil, b.ignoreIfUnused(failed(ctx, "list sandboxes", "the Docker engine cannot list containers", err))
	}
	var out []surveyed
	for _, c := range res.Items {
		r, ok := readRecord(c.ID, c.Labels)
		if !ok || c.State == container.StateRemoving {
			continue
		}
		note := b.notesOf(c.Labels).Read(&r.Record)
		s := surveyed{
			Surveyed:  backend.Surveyed{Info: r.Info(Name), Owner: note.Owner.PID, Held: !note.Owner.Dead()},
			container: c.ID, mine: b.mine(c.Labels),
		}
		s.Running, s.Labels = c.State == container.StateRunning || c.State == container.StatePaused, note.Labels
		out = append(out, s)
	}
	slices.SortFunc(out, func(x, y surveyed) int { return x.Created.Compare(y.Created) })
	return out, nil
}

// notesOf returns the notes of the instance that owns a container. The notes of an instance on another machine cannot
// be read.
func (b *Backend) notesOf(l map[string]string) backendkit.Notes {
	if b.mine(l) || !filepath.IsAbs(l[labelDir]) {
		return b.notes
	}
	return backendkit.Notes{Dir: filepath.Join(l[labelDir], notesDir)}
}

// EndUnheld implements backend.Surveyor.
func (b *Backend) EndUnheld(ctx context.Context, id string) error {
	if !goodID.MatchString(id) {
		return notFound("end sandbox", "sandbox", id)
	}
	found, err := b.survey(ctx, labelSandbox+"="+id)
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return notFound("end sandbox", "sandbox", id)
	case found[0].Held:
		return backendkit.HeldError(id, found[0].Owner)
	case found[0].mine:
		return b.Stop(ctx, id)
	}
	if err := b.cli.Remove(ctx, found[0].container); err != nil {
		return &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "end sandbox",
			Message: "the container cannot be removed",
			Retry:   true,
			Err:     err,
		}
	}
	return nil
}

// ignoreIfUnused drops the error of an unreachable Docker engine if this instance has never made a sandbox: then there
// is nothing to list.
func (b *Backend) ignoreIfUnused(err error) error {
	if v1.CodeOf(err) == v1.CodeBackendMissing && b.own.Unused() {
		return nil
	}
	return err
}

// sweep removes what dead programs of this instance have left, several containers at once.
func (b *Backend) sweep(ctx context.Context) error {
	res, err := b.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: b.filter()})
	if err != nil {
		return err
	}
	return backendkit.EndAll(len(res.Items), func(i int) (err error) {
		c := res.Items[i]
		r, ok := readRecord(c.ID, c.Labels)
		switch {
		case !b.mine(c.Labels):
		case ok && !r.Spec.Persist && b.notes.Read(&r.Record).Owner.Dead():
			err = b.Stop(ctx, r.ID)
		case !ok && c.Labels[dockerengine.LabelCarrier] != "" && c.State == container.StateCreated &&
			dockerengine.CarrierOwner(c.Labels).Dead():
			err = b.cli.Remove(ctx, c.ID)
		}
		if err != nil {
			return fmt.Errorf("container %.12s: %w", c.ID, err)
		}
		return nil
	})
}
