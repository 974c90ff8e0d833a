package local

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/internal/fifo"
	"github.com/recluse-dev/recluse/internal/guest/agent"
	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/statefile"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// What lies in a sandbox's directory, beside the pipes.
const (
	stateFile = "state.json"
	lockFile  = "lock"
	logFile   = "guest.log" // what the guest says on stderr: nothing, unless it breaks
	homeDir   = "home"
	runDir    = "run" // the guest's own: spooled output
)

// marker is set in the environment of everything that runs in a sandbox, so that it is found even when
// guest and nanny were killed and nothing else tells whose it is.
const marker = "RECLUSE_SANDBOX"

var goodID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// Backend runs sandboxes as plain processes of this machine.
type Backend struct {
	opts  Options
	noDir error // why there is no place for sandboxes, or nil

	sweepOnce sync.Once

	mu     sync.Mutex
	guests map[string]*guest // guarded by mu; those that this program has started or attached to
}

func newBackend(opts Options) *Backend {
	b := &Backend{opts: opts, guests: map[string]*guest{}}
	if b.opts.Dir == "" {
		b.opts.Dir, b.noDir = xdg.Data()
	}
	return b
}

func (b *Backend) Name() string { return Name }

func (b *Backend) Capabilities(context.Context) sandbox.Capabilities {
	_, noPython := exec.LookPath("python3")
	_, noBash := exec.LookPath("bash")
	return sandbox.Capabilities{
		Isolation: sandbox.IsolationNone, Snapshots: sandbox.SnapshotsNone,
		Python: noPython == nil, Bash: noBash == nil, Files: true, PTY: true,
		ColdStart: 20 * time.Millisecond,
		Notes: []string{
			"code runs as a plain process of this machine, with this user's rights, files and network",
			"limits cannot be kept, and are refused when asked for; the defaults are not kept either",
		},
	}
}

func (b *Backend) Health(ctx context.Context) sandbox.Health {
	began := time.Now()
	h := b.health(ctx)
	h.Took = time.Since(began)
	return h
}

func (b *Backend) health(ctx context.Context) sandbox.Health {
	path, _, err := b.guestBinary(ctx)
	if err = errors.Join(b.noDir, err); err != nil {
		return sandbox.Health{Reason: err.Error()}
	}
	if err := runs(ctx, path); err != nil {
		return sandbox.Health{Reason: fmt.Sprintf("the guest %s does not run: %v", path, err), Remedy: "rebuild it with make build"}
	}
	if err := os.MkdirAll(b.root(), 0o700); err != nil {
		return sandbox.Health{Reason: "no place for the state of sandboxes: " + err.Error(), Remedy: "set XDG_DATA_HOME to a directory that can be written"}
	}
	return sandbox.Health{OK: true, Reason: "no isolation: code runs with this user's rights"}
}

// runs tells whether the guest's binary can be run here. Without its configuration it complains and exits with 2.
func runs(ctx context.Context, path string) error {
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == 2 {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("it is not the guest: %.100q", out)
	}
	return err
}

func (b *Backend) root() string         { return filepath.Join(b.opts.Dir, Name) }
func (b *Backend) dir(id string) string { return filepath.Join(b.root(), id) }
func failed(op, what string, err error) error {
	return &sandbox.Error{Code: sandbox.CodeStartFailed, Op: op, Message: what, Err: err}
}

// state is what another program needs to take a sandbox over.
type state struct {
	ID         string          `json:"id"`
	PID        int             `json:"pid"`
	Start      uint64          `json:"start"` // of the process, so that a pid used again is not taken for it
	Spec       sandbox.Spec    `json:"spec"`
	Token      string          `json:"token"`
	Generation string          `json:"generation"`
	Created    time.Time       `json:"created"`
	Guest      string          `json:"guest"` // hash of its binary
	Owner      statefile.Owner `json:"owner"` // the program that must end it
}

// orphan says whether nobody is left to end the sandbox.
func (st state) orphan() bool { return !st.Spec.Persist && !st.Owner.Alive() }

func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	const op = "start sandbox"
	if err := consent(op); err != nil {
		return nil, err
	}
	if err := refuseSpec(spec); err != nil {
		return nil, err
	}
	if b.noDir != nil {
		return nil, b.noDir
	}
	b.sweepOnce.Do(func() { b.sweepOrphans(ctx) })
	path, hash, err := b.guestBinary(ctx)
	if err != nil {
		return nil, err
	}
	st := state{ID: "l-" + statefile.Random(6), Spec: spec, Token: statefile.Random(wire.TokenSize), Generation: statefile.Random(8), Created: time.Now(), Guest: hash, Owner: statefile.Self()}
	dir := b.dir(st.ID)
	for _, d := range []string{dir, filepath.Join(dir, homeDir), filepath.Join(dir, runDir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, failed(op, "no place for its state", errors.Join(err, os.RemoveAll(dir)))
		}
	}
	undo := func(err error) error {
		return errors.Join(err, b.Stop(context.WithoutCancel(ctx), st.ID), os.RemoveAll(dir))
	}
	lock, err := acquire(dir)
	if err != nil {
		return nil, undo(err)
	}
	// Written before there is a process and again with it: should we die in between, Stop still finds everything.
	if err := writeState(dir, st); err != nil {
		lock.Release()
		return nil, undo(failed(op, "its state could not be written", err))
	}
	g, err := b.spawn(path, dir, &st)
	if err != nil {
		lock.Release()
		return nil, undo(failed(op, "the guest could not be started", err))
	}
	b.mu.Lock()
	b.guests[st.ID] = g
	b.mu.Unlock()
	go func() {
		<-g.gone
		b.forget(st.ID, g)
	}()
	if err := writeState(dir, st); err != nil {
		lock.Release()
		return nil, undo(failed(op, "its state could not be written", err))
	}
	m, err := b.connect(g, st, lock)
	if err != nil {
		return nil, undo(failed(op, "the guest's pipes", err))
	}
	return m, nil
}

// consent refuses in production what is without isolation, also to programs that do not choose by backend.Select.
func consent(op string) error {
	production, err := backend.Production()
	if err != nil || !production {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeConsentMissing, Op: op, Message: "RECLUSE_ENV=production forbids running without isolation", Remedy: "use another backend, such as gvisor",
	}
}

func refuseSpec(spec sandbox.Spec) error {
	var what string
	switch {
	case spec.Image != "":
		what = "use an image"
	case spec.RootFS != "":
		what = "use a root file system"
	case len(spec.Mounts) > 0:
		what = "mount directories"
	case spec.Hostname != "":
		what = "set a host name"
	case spec.User != "":
		what = "run code as another user"
	case len(spec.Volumes) > 0:
		what = "show named volumes"
	case spec.Options[Name] != nil:
		what = "take options of its own in a spec"
	default:
		return refuseLimits(spec.Limits)
	}
	return backend.NotSupported(Name, what, "use another backend, such as gvisor")
}

// refuseLimits refuses every limit that was asked for. The defaults are not told from nothing asked.
func refuseLimits(l sandbox.Limits) error {
	d := sandbox.Limits{}.WithDefaults()
	var what string
	switch {
	case l.Memory != d.Memory:
		what = "memory"
	case l.CPUs != d.CPUs:
		what = "cpus"
	case l.Processes != d.Processes:
		what = "processes"
	case l.Disk != d.Disk:
		what = "disk"
	case l.OpenFiles != d.OpenFiles:
		what = "open files"
	default:
		return nil
	}
	return backend.NotSupported(Name, "limit "+what, "leave the limit out, or use another backend, such as gvisor")
}

// spawn starts the guest in a session of its own, where it outlives us.
func (b *Backend) spawn(path, dir string, st *state) (*guest, error) {
	ends, err := fifo.Make(dir)
	if err != nil {
		return nil, err
	}
	defer ends.Close()
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	home := filepath.Join(dir, homeDir)
	cfg := agent.Config{
		Token: st.Token, UID: -1, GID: -1, Home: home, Dir: home, State: filepath.Join(dir, runDir),
		Env: []string{"PATH=" + os.Getenv("PATH"), marker + "=" + st.ID},
	}
	if st.Spec.Dir != "" {
		cfg.Dir = st.Spec.Dir
	}
	config, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, st.ID) //nolint:forbidigo // the id is for whoever looks at the process table, as Stop does; no context, because it outlives every one
	cmd.Stdin, cmd.Stdout, cmd.Stderr = ends.In, ends.Out, log
	cmd.Dir = home
	cmd.Env = []string{agent.ConfigEnv + "=" + string(config), "HOME=" + home}
	for _, k := range []string{"PATH", "USER", "TMPDIR"} {
		if v := os.Getenv(k); v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	st.PID = cmd.Process.Pid
	if p, ok := proc.Get(st.PID); ok {
		st.Start = p.Start
	}
	return ourChild(cmd, filepath.Join(dir, logFile)), nil
}

// connect opens the host's side of the pipes. It takes the lock over.
func (b *Backend) connect(g *guest, st state, l *statefile.Lock) (*machine, error) {
	s, err := fifo.Open(b.dir(st.ID))
	if err != nil {
		l.Release()
		return nil, err
	}
	token, err := hex.DecodeString(st.Token)
	if err != nil {
		l.Release()
		return nil, errors.Join(err, s.Close())
	}
	return &machine{state: st, token: token, guest: g, stream: &stream{Stream: s, lock: l}}, nil
}

func (b *Backend) Attach(_ context.Context, id string) (sandbox.Machine, error) {
	const op = "attach"
	if err := consent(op); err != nil {
		return nil, err
	}
	if b.noDir != nil {
		return nil, b.noDir
	}
	missing := func(err error) error {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Op: op, Message: fmt.Sprintf("no local sandbox %q", id), Err: err}
	}
	if !goodID.MatchString(id) {
		return nil, missing(nil)
	}
	st, err := readState(b.dir(id))
	if err != nil {
		return nil, missing(err)
	}
	l, err := acquire(b.dir(id))
	if err != nil {
		return nil, err
	}
	// From here on it is ours to end, and no sweep of another program may.
	st.Owner = statefile.Self()
	if err := writeState(b.dir(id), st); err != nil {
		l.Release()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, missing(err) // ended between the two
		}
		return nil, failed(op, "its state could not be written", err)
	}
	g, err := b.find(st)
	if err != nil {
		l.Release()
		return nil, &sandbox.Error{Code: sandbox.CodeGuestLost, Op: op, Message: fmt.Sprintf("the guest of %s, process %d, has ended", id, st.PID), Remedy: "stop the sandbox and make a new one", Err: err}
	}
	m, err := b.connect(g, st, l)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeGuestLost, Op: op, Message: "the guest of " + id + " cannot be reached", Err: err}
	}
	return m, nil
}

// sweepOrphans ends the sandboxes whose program has died without ending them.
func (b *Backend) sweepOrphans(ctx context.Context) {
	entries, err := os.ReadDir(b.root())
	if err != nil {
		return
	}
	for _, e := range entries {
		if goodID.MatchString(e.Name()) {
			b.sweep(ctx, e.Name())
		}
	}
}

// sweep ends a sandbox if it is an orphan. Best effort: it is tried again by the next program, and Start must not fail for it.
func (b *Backend) sweep(ctx context.Context, id string) {
	dir := b.dir(id)
	if st, err := readState(dir); err != nil || !st.orphan() {
		return
	}
	l, err := acquire(dir)
	if err != nil {
		return // somebody is attached
	}
	defer l.Release()
	// Somebody may have attached and let go since it was read.
	if st, err := readState(dir); err != nil || !st.orphan() {
		return
	}
	_ = b.Stop(ctx, id)
}

// find gives the guest of a sandbox: the one this program knows, or a process it has never seen.
func (b *Backend) find(st state) (*guest, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.guests[st.ID]; g != nil {
		return g, nil
	}
	g, err := stranger(st.PID, st.Start)
	if err != nil {
		return nil, err
	}
	b.guests[st.ID] = g
	go func() {
		<-g.gone
		b.forget(st.ID, g)
	}()
	return g, nil
}

func (b *Backend) forget(id string, g *guest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.guests[id] == g {
		delete(b.guests, id)
	}
}

func (b *Backend) Stop(ctx context.Context, id string) error {
	if !goodID.MatchString(id) || b.noDir != nil {
		return nil //nolint:nilerr // nothing of that name can be there
	}
	dir := b.dir(id)
	b.mu.Lock()
	g := b.guests[id]
	b.mu.Unlock()
	if g != nil {
		g.stopping()
	}
	st, err := readState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if g == nil {
			return os.RemoveAll(dir)
		}
		st.ID, st.PID = id, g.pid // killed between its start and its state
	} else if err != nil {
		return failed("stop sandbox", "its state cannot be read", err)
	}
	if err := endTree(ctx, st); err != nil {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: "stop sandbox", Message: "some of its processes are still there", Retry: true, Err: err}
	}
	if g != nil {
		select {
		case <-g.gone:
		case <-ctx.Done():
		}
	}
	return os.RemoveAll(dir)
}

func (b *Backend) List(context.Context) ([]sandbox.Info, error) {
	if b.noDir != nil {
		return nil, b.noDir
	}
	entries, err := os.ReadDir(b.root())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: "list sandboxes", Err: err}
	}
	var out []sandbox.Info
	for _, e := range entries {
		st, err := readState(b.dir(e.Name()))
		if err != nil {
			continue // being made, or being removed
		}
		out = append(out, sandbox.Info{
			ID: st.ID, Backend: Name, Created: st.Created, Running: alive(st.PID, st.Start), Labels: st.Spec.Labels, Spec: st.Spec, PID: st.PID,
		})
	}
	slices.SortFunc(out, func(x, y sandbox.Info) int { return x.Created.Compare(y.Created) })
	return out, nil
}

const snapshotRemedy = "use a backend with snapshots, such as gvisor"

func (b *Backend) Snapshot(context.Context, string, sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	return nil, backend.NotSupported(Name, "snapshot", snapshotRemedy)
}

func (b *Backend) Restore(context.Context, *sandbox.Snapshot, sandbox.RestoreOptions) (sandbox.Machine, error) {
	return nil, backend.NotSupported(Name, "restore", snapshotRemedy)
}

func (b *Backend) DeleteSnapshot(context.Context, string) error { return nil }

func (b *Backend) Snapshots(context.Context) ([]*sandbox.Snapshot, error) { return nil, nil }

// machine is one attachment to a guest.
type machine struct {
	state  state
	token  []byte
	guest  *guest
	stream *stream
}

func (m *machine) ID() string                  { return m.state.ID }
func (m *machine) Spec() sandbox.Spec          { return m.state.Spec }
func (m *machine) Stream() io.ReadWriteCloser  { return m.stream }
func (m *machine) Token() []byte               { return m.token }
func (m *machine) Generation() string          { return m.state.Generation }
func (m *machine) Gone() <-chan struct{}       { return m.guest.gone }
func (m *machine) Cause() error                { return m.guest.why() }
func (m *machine) MemoryKills() (uint64, bool) { return 0, false }

// stream gives the lock back when it is closed.
type stream struct {
	*fifo.Stream
	lock *statefile.Lock
	once sync.Once
}

func (s *stream) Close() error {
	err := s.Stream.Close()
	s.once.Do(s.lock.Release)
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// acquire takes the lock of whoever is attached to the sandbox in dir, or says who has it.
func acquire(dir string) (*statefile.Lock, error) {
	l, err := statefile.Acquire(filepath.Join(dir, lockFile), statefile.Patience)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Op: "attach", Message: "the sandbox has gone", Err: err}
	}
	return l, err
}

func readState(dir string) (state, error) {
	var st state
	err := statefile.Read(filepath.Join(dir, stateFile), &st)
	return st, err
}

func writeState(dir string, st state) error {
	return statefile.Write(filepath.Join(dir, stateFile), st)
}
