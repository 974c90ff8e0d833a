package docker

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/guest/agent"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Backend makes sandboxes that are containers. Its methods may be called from several goroutines.
type Backend struct {
	opts     Options
	cli      *client.Client
	dir      string
	instance string
	engine   engineFacts

	namedGuest func() (bundle.Program, error) // of Options.GuestPath; read once

	sweeping sweeping
	watchers sync.WaitGroup
	ctx      context.Context // of everything that outlives a call
	cancel   context.CancelFunc

	filling chan struct{} // has one place: who has it looks at a guest's volume

	mu       sync.Mutex
	filled   map[string]bool         // guarded by mu; guests' volumes that were seen to be whole
	users    map[string]sandbox.User // guarded by mu; who a name is, by image and name
	attached map[string]*machine     // guarded by mu; by sandbox, nil while an attachment is being made
	closed   bool                    // guarded by mu
	proven   time.Time               // guarded by mu; when a sandbox could be made last
	trying   *trial                  // guarded by mu; the last attempt to make one, for Health
}

var _ sandbox.Backend = (*Backend)(nil)

// New gives the backend. It fails for options that make no sense; whether the engine is there is told by Health.
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
	b := &Backend{opts: opts, dir: opts.Dir, instance: opts.Instance, filling: make(chan struct{}, 1), filled: map[string]bool{}, users: map[string]sandbox.User{}, attached: map[string]*machine{}}
	if b.dir == "" {
		data, err := xdg.Data()
		if err != nil {
			return nil, err
		}
		b.dir = filepath.Join(data, Name)
	}
	var err error
	if b.instance == "" {
		if b.instance, err = instanceName(b.dir); err != nil {
			return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: "name this instance", Message: b.dir + " cannot be used", Err: err}
		}
	}
	if b.cli, err = connect(opts); err != nil {
		return nil, err
	}
	b.namedGuest = sync.OnceValues(func() (bundle.Program, error) { return readGuest(opts.GuestPath) })
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

// Close lets the engine go. Sandboxes go on, and are found again by the next program of this instance.
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

// Capabilities implements sandbox.Backend.
func (b *Backend) Capabilities(ctx context.Context) sandbox.Capabilities {
	c := sandbox.Capabilities{
		Isolation: sandbox.IsolationContainer, Snapshots: sandbox.SnapshotsFiles, NetworkOff: true, Images: true, Mounts: b.local(),
		OpenFileLimit: true, DiskLimit: true, Python: true, Bash: true, Files: true, PTY: true, ColdStart: 500 * time.Millisecond,
		Notes: []string{noMemory},
	}
	if !c.Mounts {
		c.Notes = append(c.Notes, "the engine is on another machine, whose directories are not this one's")
	}
	if n := b.network(); n != "none" {
		c.Notes = append(c.Notes, "sandboxes are in the network "+n)
	}
	if len(b.opts.Volumes) > 0 {
		c.Notes = append(c.Notes, "what is written to a named volume counts for no limit")
	}
	f, err := b.facts(ctx)
	if err != nil {
		c.Isolation = sandbox.IsolationNone
		c.Notes = append(c.Notes, "nothing is known of the engine: "+err.Error())
		return c
	}
	c.Isolation = b.level(f)
	c.MemoryLimit, c.CPULimit, c.ProcessLimit = f.memory, f.cpu, f.pids
	c.Notes = append(c.Notes, fmt.Sprintf("%s %s, API %s, runtime %s of %s", f.product(), f.version, f.api, f.runtime, strings.Join(f.all, ", ")))
	if f.podman {
		c.Notes = append(c.Notes, "Podman does not limit the number of files, only what they take together; it does not tell a stop, or a guest that was killed for memory, from a kill")
	}
	if b.opts.UnsafeRoot {
		c.Notes = append(c.Notes, "code may be root inside, where a spec asks for it")
	}
	if b.opts.UnsafeHostConfig {
		c.Notes = append(c.Notes, "a spec may loosen the walls with a host config of its own")
	}
	if len(b.opts.HostConfig) > 0 {
		c.Notes = append(c.Notes, "a host config of the caller's has loosened the walls")
	}
	if !f.memory || !f.cpu || !f.pids {
		c.Notes = append(c.Notes, "the engine cannot keep limits for which its machine has no cgroups")
	}
	return c
}

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	if spec.RootFS != "" {
		return nil, backend.NotSupported(Name, "use a directory as root file system", "make an image of it: tar -C DIR -c . | docker import - NAME")
	}
	if image.IsPath(spec.Image) {
		return nil, backend.NotSupported(Name, "use an image from a file", "docker load it, and name it as the engine does")
	}
	return b.start(ctx, spec, spec.Image, "")
}

// start makes a sandbox from an image, which begins with the files of a snapshot if the image is one's.
func (b *Backend) start(ctx context.Context, spec sandbox.Spec, image, snapshot string) (sandbox.Machine, error) {
	const op = "start sandbox"
	if err := b.judgeMounts(&spec); err != nil {
		return nil, err
	}
	opts, err := specOptions(spec)
	if err != nil {
		return nil, err
	}
	if err := b.judgeHostConfig(opts); err != nil {
		return nil, err
	}
	f, err := b.facts(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.consent(f); err != nil {
		return nil, err
	}
	if image == "" {
		image = b.opts.Image
	}
	p := &plan{
		record: record{ID: "d-" + randomHex(6), Spec: spec, Created: time.Now().UTC(), Owner: self(), Generation: randomHex(8), Restored: snapshot},
		facts:  f, options: opts, token: randomHex(wire.TokenSize),
	}
	if p.image, err = b.image(ctx, image); err != nil {
		return nil, err
	}
	if a := p.image.Architecture; a != "" && a != f.arch {
		return nil, &sandbox.Error{
			Code: sandbox.CodeImageArch, Op: op, Message: fmt.Sprintf("the image %s is for %s, and the engine's machine is %s", image, a, f.arch), Remedy: "use an image for " + f.arch,
		}
	}
	if p.User, err = b.user(ctx, f, spec, p.image.ID); err != nil {
		return nil, err
	}
	if p.oomScore, err = b.oomScore(f, opts); err != nil {
		return nil, err
	}
	guest, err := b.guestProgram(ctx, f.arch)
	if err != nil {
		return nil, err
	}
	p.Guest = guest.Hash
	if p.volume, err = b.guestVolume(ctx, guest, f, p.image.ID); err != nil {
		return nil, err
	}
	b.sweepFirst(ctx)
	if err := b.markUsed(); err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: op, Message: b.dir + " cannot be used", Err: err}
	}
	m, err := b.launch(ctx, p)
	if err != nil {
		if ctx.Err() == nil {
			b.doubt(p.volume)
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanWait)
		defer cancel()
		return nil, errors.Join(failed(ctx, op, "the container could not be started", err), b.remove(clean, cmp.Or(p.Container, containerName(p.ID))))
	}
	b.mu.Lock()
	b.proven = time.Now()
	b.mu.Unlock()
	return m, nil
}

// consent refuses in production what shares the host's kernel.
func (b *Backend) consent(f *facts) error {
	production, err := backend.Production()
	if err != nil || !production || b.level(f) >= sandbox.IsolationKernel {
		return err
	}
	if f.userSpace() {
		return &sandbox.Error{
			Code: sandbox.CodeConsentMissing, Op: "start sandbox", Message: "RECLUSE_ENV=production forbids what loosens a container's walls: a host config, or the consent to one or to root",
			Remedy: "leave host_config, unsafe_host_config and unsafe_root out",
		}
	}
	return &sandbox.Error{
		Code: sandbox.CodeConsentMissing, Op: "start sandbox", Message: fmt.Sprintf("RECLUSE_ENV=production forbids the runtime %s, whose containers share the host's kernel", f.runtime),
		Remedy: "use the runtime runsc",
	}
}

func containerName(id string) string { return "recluse-" + id }

// launch makes and starts the container of a plan. When it fails, the caller removes what there is.
func (b *Backend) launch(ctx context.Context, p *plan) (*machine, error) {
	labels, err := p.labels(b.instance)
	if err != nil {
		return nil, err
	}
	hc, err := b.profile(p)
	if err != nil {
		return nil, err
	}
	config, err := p.containerConfig(labels)
	if err != nil {
		return nil, err
	}
	res, err := b.create(ctx, client.ContainerCreateOptions{Config: config, HostConfig: hc, Name: containerName(p.ID)})
	if err != nil {
		return nil, err
	}
	p.Container = res.ID
	token, err := hex.DecodeString(p.token)
	if err != nil {
		return nil, err
	}
	if err := b.reserve(p.ID); err != nil {
		return nil, err
	}
	l := b.lookout(p.Container)
	undo := func(err error) error {
		l.forget()
		b.release(p.ID, nil)
		return err
	}
	if _, err := b.cli.ContainerStart(ctx, p.Container, client.ContainerStartOptions{}); err != nil {
		return nil, undo(startError(err))
	}
	if err := b.shown(ctx, p.record); err != nil {
		return nil, undo(err)
	}
	m, err := b.attach(ctx, p.record, containerName(p.ID), token, l)
	if err != nil {
		return nil, undo(err)
	}
	return m, nil
}

// create makes a container. It is not given up halfway: the engine would make it all the same, after we had looked for it in vain.
func (b *Backend) create(ctx context.Context, o client.ContainerCreateOptions) (client.ContainerCreateResult, error) {
	if err := ctx.Err(); err != nil {
		return client.ContainerCreateResult{}, err
	}
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanWait)
	defer cancel()
	res, err := b.cli.ContainerCreate(whole, o)
	return res, errors.Join(err, ctx.Err())
}

// startError names what a container cannot be started for and the caller can change.
func startError(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "exec format error"):
		return &sandbox.Error{Code: sandbox.CodeImageArch, Op: "start sandbox", Message: "the guest is not for the engine's machine", Err: err}
	case strings.Contains(text, "no space left on device"):
		return &sandbox.Error{Code: sandbox.CodeDiskFull, Op: "start sandbox", Message: "the engine's disk is full", Err: err, Retry: true}
	}
	return err
}

// find looks for a sandbox of this instance.
func (b *Backend) find(ctx context.Context, id string) (record, *container.Summary, error) {
	if !goodID.MatchString(id) {
		return record{}, nil, notFound("find sandbox", "sandbox", id)
	}
	res, err := b.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: b.filter(labelSandbox + "=" + id)})
	if err != nil {
		return record{}, nil, failed(ctx, "find sandbox", "the engine does not tell", err)
	}
	for _, c := range res.Items {
		if r, ok := readRecord(c.ID, c.Labels); ok && r.ID == id && b.mine(c.Labels) {
			return r, &c, nil
		}
	}
	return record{}, nil, notFound("find sandbox", "sandbox", id)
}

// Attach implements sandbox.Backend. Another program's attachment is fenced out.
func (b *Backend) Attach(ctx context.Context, id string) (sandbox.Machine, error) {
	const op = "attach"
	r, _, err := b.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := b.reserve(id); err != nil {
		return nil, err
	}
	l := b.lookout(r.Container)
	undo := func(err error) error {
		l.forget()
		b.release(id, nil)
		return failed(ctx, op, "the guest cannot be reached", err)
	}
	res, err := b.cli.ContainerInspect(ctx, r.Container, client.ContainerInspectOptions{})
	if err != nil {
		return nil, undo(err)
	}
	st := res.Container.State
	switch {
	case st.Paused:
		return nil, undo(&sandbox.Error{Code: CodePaused, Op: op, Message: "the container is paused", Remedy: "docker unpause it first", Retry: true})
	case !st.Running:
		return nil, undo((&machine{record: r}).obituary(st, time.Now()))
	}
	token, err := tokenOf(res.Container.Config.Env)
	if err != nil {
		return nil, undo(&sandbox.Error{Code: sandbox.CodeNotFound, Op: op, Message: "the container is not one of ours", Err: err})
	}
	// From here on it is ours to end, and no sweep of another program may.
	note := b.readNote(r)
	note.Owner = self()
	if err := b.writeNote(id, note); err != nil {
		return nil, undo(&sandbox.Error{Code: sandbox.CodeInternal, Op: op, Message: "it cannot be noted that this program answers for it", Err: err})
	}
	m, err := b.attach(ctx, r, res.Container.Name, token, l)
	if err != nil {
		return nil, undo(err)
	}
	return m, nil
}

// tokenOf finds the token where the guest was given it.
func tokenOf(env []string) ([]byte, error) {
	for _, kv := range env {
		text, ok := strings.CutPrefix(kv, agent.ConfigEnv+"=")
		if !ok {
			continue
		}
		var c agent.Config
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			return nil, err
		}
		return hex.DecodeString(c.Token)
	}
	return nil, errors.New("it was started without a guest's configuration")
}

// Stop implements sandbox.Backend.
func (b *Backend) Stop(ctx context.Context, id string) error {
	r, _, err := b.find(ctx, id)
	if err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil
		}
		return err
	}
	m := b.attachment(id)
	if m != nil {
		m.stopping()
	}
	if err := b.remove(ctx, r.Container); err != nil {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: "stop sandbox", Message: "its container is still there", Retry: true, Err: err}
	}
	b.dropNote(id)
	if r.Restored != "" {
		b.dropNameless(ctx)
	}
	if m != nil {
		m.end(nil)
		b.release(id, m)
	}
	return nil
}

// remove ends a container and waits until nothing of it is left. One that is not there is no error.
func (b *Backend) remove(ctx context.Context, container string) error {
	defer b.insist(container)()
	for {
		_, err := b.cli.ContainerRemove(ctx, container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || missing(err) {
			return nil
		}
		// Somebody else is at it already.
		if !errdefs.IsConflict(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(removePause):
		}
	}
}

// List implements sandbox.Backend.
func (b *Backend) List(ctx context.Context) ([]sandbox.Info, error) {
	res, err := b.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: b.filter(labelSandbox)})
	if err != nil {
		return nil, b.excuse(failed(ctx, "list sandboxes", "the engine does not tell", err))
	}
	var out []sandbox.Info
	for _, c := range res.Items {
		r, ok := readRecord(c.ID, c.Labels)
		if !ok || !b.mine(c.Labels) || c.State == container.StateRemoving {
			continue
		}
		out = append(out, sandbox.Info{
			ID: r.ID, Backend: Name, Created: r.Created, Running: c.State == container.StateRunning || c.State == container.StatePaused, Labels: b.readNote(r).Labels, Spec: r.Spec,
		})
	}
	slices.SortFunc(out, func(x, y sandbox.Info) int { return x.Created.Compare(y.Created) })
	return out, nil
}
