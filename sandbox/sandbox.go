package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/ids"
)

// Timeouts and intervals in the life of a sandbox.
const (
	attachTimeout = 30 * time.Second       // until the guest answers a hello
	stopTimeout   = 30 * time.Second       // until a backend has ended a sandbox
	lostWait      = 2 * time.Second        // until the backend reports the cause, once the stream has ended
	verdictWait   = 15 * time.Second       // until the verdict of a cancelled operation arrives
	abandonPause  = 200 * time.Millisecond // between attempts to cancel an operation that may not have begun
	abandonTries  = 5
)

// entropySize is the number of random bytes that a guest with a kernel of its own gets at every attachment.
const entropySize = 64

// Sandbox is a running sandbox with our guest in it. Its methods may be called from
// several goroutines.
type Sandbox struct {
	backend Backend
	machine Machine
	network *network // nil: the backend provides none

	closeMu sync.Mutex
	done    bool // guarded by closeMu; the sandbox was ended or detached

	mu      sync.Mutex
	client  *host.Client // guarded by mu
	handler HostFunc     // guarded by mu
	stopped bool         // guarded by mu
	nextID  uint64       // guarded by mu
	epoch   string       // makes operation ids of this attachment differ from earlier ones
}

// HostFunc handles a call that code in the sandbox makes with recluse.call. Its error
// is raised there as an exception. ctx ends when the calling cell has ended.
type HostFunc func(ctx context.Context, call HostCall) ([]byte, error)

// HostCall is a call of recluse.call by code in the sandbox.
type HostCall struct {
	Op      string // ID of the calling cell
	Context string
	Name    string
	Payload []byte
}

// DiskStorer is a backend that can give a sandbox a writable root whose files are on disk.
type DiskStorer interface {
	// FilesOnDisk reports whether the files of a sandbox with this spec are on disk.
	FilesOnDisk(spec Spec) bool
}

// diskAdviser is a backend that knows how the files of a sandbox could be on disk instead of in memory.
type diskAdviser interface {
	DiskRemedy(spec Spec) string
}

func withRemedy(err error, remedy string) error {
	if e, ok := errors.AsType[*v1.Error](err); ok && remedy != "" {
		c := *e
		c.Remedy = remedy
		return &c
	}
	return err
}

// Resolve checks a spec and fills in its zero fields, as the backend does.
func Resolve(b Backend, spec Spec) (Spec, error) {
	spec = spec.WithDefaults()
	d, ok := b.(DiskStorer)
	onDisk := ok && d.FilesOnDisk(spec)
	spec.Limits = spec.Storage(onDisk)
	if err := spec.Check(); err != nil {
		return spec, err
	}
	if !onDisk {
		err := spec.Limits.CheckInMemory()
		if a, ok := b.(diskAdviser); ok && err != nil {
			err = withRemedy(err, a.DiskRemedy(spec))
		}
		return spec, err
	}
	return spec, nil
}

// Open makes a sandbox and waits until its guest answers. The caller must call Close.
func Open(ctx context.Context, b Backend, spec Spec) (*Sandbox, error) {
	spec, err := Resolve(b, spec)
	if err != nil {
		return nil, err
	}
	if err := checkOptions(spec, b.Name()); err != nil {
		return nil, err
	}
	if err := CheckPolicy(ctx, b, spec.Network); err != nil {
		return nil, err
	}
	m, err := b.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return adopt(ctx, b, m, true, nil)
}

// Attach connects to a sandbox that already runs, e.g. after the program that made it
// has died. Interpreters, their state and detached operations are unchanged.
func Attach(ctx context.Context, b Backend, id string) (*Sandbox, error) {
	return AttachWith(ctx, b, id, AttachOptions{})
}

// AttachOptions are the options of AttachWith.
type AttachOptions struct {
	// Network, if set, is the network policy. Otherwise it is that of the spec: Attach does not know of SetNetwork in
	// another program.
	Network *NetworkState
}

// AttachWith is Attach with options.
func AttachWith(ctx context.Context, b Backend, id string, o AttachOptions) (*Sandbox, error) {
	m, err := b.Attach(ctx, id)
	if err != nil {
		return nil, err
	}
	return adopt(ctx, b, m, false, o.Network)
}

// Restore makes a new sandbox from a snapshot. It has the same memory, processes and files, but
// its own identity, clock and random numbers.
func Restore(ctx context.Context, b Backend, snap *Snapshot, opts RestoreOptions) (*Sandbox, error) {
	env := maps.Clone(opts.Env)
	if env != nil && snap != nil {
		for k, v := range snap.Spec.Env {
			if _, ok := env[k]; !ok {
				env[k] = v
			}
		}
	}
	if err := v1.CheckEnv("restore", env); err != nil {
		return nil, err
	}
	m, err := b.Restore(ctx, snap, opts)
	if err != nil {
		return nil, err
	}
	return adopt(ctx, b, m, true, opts.Network)
}

// adopt connects to the guest. If the guest does not answer, a sandbox that this call has made is ended. The network
// policy is that of the spec, unless n is set.
func adopt(ctx context.Context, b Backend, m Machine, made bool, n *NetworkState) (*Sandbox, error) {
	s := &Sandbox{backend: b, machine: m, epoch: ids.Hex(3)}
	if err := s.openNetwork(n, networkTermsOf(ctx)); err != nil {
		return nil, errors.Join(err, s.abandon(ctx, made))
	}
	attachCtx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	go func() {
		select {
		case <-m.Gone():
			cancel()
		case <-attachCtx.Done():
		}
	}()
	c, err := host.Attach(attachCtx, m.Stream(), host.Options{
		Token:    m.Token(),
		Identity: identity(m, s.Spec().Network),
		Handler:  s.hostHandler,
		Network:  s.hostNetwork(),
	})
	if err == nil {
		s.client = c
		err = s.checkShell(attachCtx, made)
		if err == nil {
			err = s.applyNetwork(attachCtx, n != nil)
		}
		if err != nil && made {
			return nil, errors.Join(err, s.Close())
		}
		if err != nil {
			s.Detach()
			return nil, err
		}
		return s, nil
	}
	s.closeNetwork()
	if wire.IsClosed(err) && ctx.Err() == nil && attachCtx.Err() == nil {
		awaitCause(m)
	}
	cause := m.Cause()
	err = errors.Join(err, s.abandon(ctx, made))
	if ctx.Err() != nil {
		return nil, &v1.Error{
			Code:    v1.CodeCancelled,
			Op:      "connect to the guest",
			Message: "cancelled before the guest answered",
			Err:     ctx.Err(),
		}
	}
	if cause != nil {
		return nil, cause
	}
	return nil, &v1.Error{
		Code:    v1.CodeGuestLost,
		Op:      "connect to the guest",
		Message: "the guest does not answer",
		Retry:   true,
		Err:     err,
	}
}

// abandon ends a sandbox to which the host could not connect, if it was made for that, and otherwise leaves it alone.
func (s *Sandbox) abandon(ctx context.Context, made bool) error {
	if !made {
		return s.machine.Stream().Close()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return s.backend.Stop(ctx, s.machine.ID())
}

// checkShell returns an error if a new sandbox lacks the shell of its spec, so that the caller learns it before
// anything runs.
func (s *Sandbox) checkShell(ctx context.Context, made bool) error {
	shell := s.Spec().Shell
	if shell == "" || !made {
		return nil
	}
	g, err := s.Guest(ctx)
	if err != nil || g.Shell != "" {
		return err
	}
	return &v1.Error{
		Code:    v1.CodeNoShell,
		Op:      "start sandbox",
		Message: fmt.Sprintf("there is no shell %q inside", shell),
		Remedy:  "use a shell of the image, or leave the shell out to use bash or sh",
	}
}

func identity(m Machine, n v1.Network) *wire.Identity {
	spec := m.Spec()
	spec.Network = n
	id := &wire.Identity{
		Hostname:   spec.Hostname,
		Env:        networkEnv(m, spec),
		Generation: m.Generation(),
		Shell:      spec.Shell,
		Entropy:    make([]byte, entropySize),
		UnixNanos:  time.Now().UnixNano(),
	}
	_, _ = rand.Read(id.Entropy) // never fails
	if id.Hostname == "" {
		id.Hostname = m.ID()
	}
	return id
}

// ID returns the name of the sandbox, unique within its backend.
func (s *Sandbox) ID() string { return s.machine.ID() }

// Backend returns the backend that made the sandbox.
func (s *Sandbox) Backend() Backend { return s.backend }

// Spec returns the spec that the sandbox was made from, with the current network policy.
func (s *Sandbox) Spec() Spec {
	spec := s.machine.Spec()
	if s.network != nil {
		spec.Network = s.network.current().Policy
	}
	return spec
}

// Gone returns a channel that is closed once the sandbox has ended, for whatever reason.
func (s *Sandbox) Gone() <-chan struct{} { return s.machine.Gone() }

// OnHostCall sets the function that handles recluse.call of code in the sandbox.
func (s *Sandbox) OnHostCall(f HostFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = f
}

func (s *Sandbox) hostHandler() host.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.handler
	if f == nil {
		return nil
	}
	return func(ctx context.Context, c host.Call) ([]byte, error) {
		b, err := f(ctx, HostCall{Op: c.Op, Context: c.Context, Name: c.Name, Payload: c.Payload})
		if e, ok := errors.AsType[*v1.Error](err); ok {
			err = &host.Error{Code: string(e.Code), Message: e.Error()}
		}
		return b, err
	}
}

// Close ends the sandbox and removes everything of it. A second Close does nothing, unless the first has failed: then
// it tries again.
func (s *Sandbox) Close() error {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.done {
		return nil
	}
	c := s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := s.backend.Stop(ctx, s.ID())
	if c != nil {
		c.Close()
		s.closeNetwork()
	}
	s.done = err == nil
	return err
}

// Detach ends the attachment without ending the sandbox. Attach connects to it again by its ID.
func (s *Sandbox) Detach() {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	s.done = true
	if c := s.stop(); c != nil {
		c.Close()
		s.closeNetwork()
	}
}

// stop marks the sandbox as closed for its callers and returns the client to close, or nil if stop was called before.
func (s *Sandbox) stop() *host.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	return s.client
}

// Ping makes a round trip through the guest.
func (s *Sandbox) Ping(ctx context.Context) error {
	return s.explain("ping", s.guest().Ping(ctx))
}

// Guest returns the guest's description of the inside of the sandbox.
func (s *Sandbox) Guest(ctx context.Context) (*Guest, error) {
	f, err := s.guest().Call(ctx, &wire.Request{Call: &wire.Request_Info{Info: &wire.Info{}}})
	if err != nil {
		return nil, s.explain("query the guest", err)
	}
	g := f.GetInfo()
	return &Guest{
		Version: g.GetVersion(),
		Kernel:  g.GetKernel(),
		Python:  g.GetPython(),
		Shell:   g.GetShell(),
		UID:     int(g.GetUid()),
		Home:    g.GetHome(),
		CPUs:    int(g.GetCpus()),
		Memory:  g.GetMemory(),
		Uptime:  time.Duration(g.GetUptimeNs()),

		MemoryUsed:   g.GetMemoryUsed(),
		MemoryCached: g.GetMemoryCached(),
		CPUTime:      time.Duration(g.GetCpuNs()),
		Disk:         g.GetDisk(),
		DiskUsed:     g.GetDiskUsed(),
	}, nil
}

// Warm starts an interpreter and everything else that the first calls would otherwise wait for.
func (s *Sandbox) Warm(ctx context.Context) error {
	return s.explain("warm the sandbox", s.guest().Warm(ctx, true, true))
}

func (s *Sandbox) guest() *host.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

// newID returns an ID for an operation whose caller has set none.
func (s *Sandbox) newID(prefix string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextID++
	return fmt.Sprintf("%s%d-%s", prefix, s.nextID, s.epoch)
}

// Snapshot writes the sandbox to disk: memory, interpreters and files. The sandbox is halted
// during the write itself and then continues. With opts.Stop, both results are set if the snapshot
// was written but the sandbox could not be ended.
func (s *Sandbox) Snapshot(ctx context.Context, opts SnapshotOptions) (*Snapshot, error) {
	held, err := s.guest().Quiesce(ctx)
	if err != nil {
		return nil, s.explain("snapshot", err)
	}
	opts.Held = append(opts.Held, held...)
	policy := s.Spec().Network
	opts.Network = &policy
	snap, err := s.backend.Snapshot(ctx, s.ID(), opts)
	if err == nil && opts.Stop {
		s.Detach()
	}
	return snap, err
}

// Fork makes n live copies. If some copies fail, Fork returns the others beside the
// error. The caller must call Close on each copy.
func (s *Sandbox) Fork(ctx context.Context, n int) ([]*Sandbox, error) {
	if n < 1 {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "fork",
			Message: fmt.Sprintf("invalid number of copies %d", n),
		}
	}
	snap, err := s.Snapshot(ctx, SnapshotOptions{Labels: map[string]string{"recluse.fork-of": s.ID()}})
	if err != nil {
		return nil, err
	}
	copies := make([]*Sandbox, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { copies[i], errs[i] = Restore(ctx, s.backend, snap, RestoreOptions{Copy: true}) })
	}
	wg.Wait()
	errs = append(errs, s.backend.DeleteSnapshot(context.WithoutCancel(ctx), snap.ID))
	var made []*Sandbox
	for _, c := range copies {
		if c != nil {
			made = append(made, c)
		}
	}
	return made, errors.Join(errs...)
}

// explain converts an error of a call to the guest into a *v1.Error.
func (s *Sandbox) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*host.Error](err); ok {
		return guestError(op, e)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &v1.Error{Code: v1.CodeCancelled, Op: op, Message: "cancelled by the caller", Err: err}
	}
	if errors.Is(err, host.ErrDetached) {
		return s.lost(op, err)
	}
	if errors.Is(err, wire.ErrTooLarge) {
		return &v1.Error{
			Code:    v1.CodeTooLarge,
			Op:      op,
			Message: "the request is too large",
			Remedy:  "write it to a file",
			Err:     err,
		}
	}
	return &v1.Error{Code: v1.CodeProtocol, Op: op, Message: "protocol error in the connection to the guest", Err: err}
}

// lost returns the reason why the guest can no longer be reached.
func (s *Sandbox) lost(op string, err error) error {
	s.mu.Lock()
	stopped := s.stopped
	s.mu.Unlock()
	if stopped {
		return &v1.Error{Code: v1.CodeSandboxLost, Op: op, Message: "the sandbox has been closed"}
	}
	if !awaitCause(s.machine) {
		return &v1.Error{
			Code:    v1.CodeGuestLost,
			Op:      op,
			Message: "the guest no longer answers",
			Remedy:  "attach again, or end the sandbox",
			Retry:   true,
			Err:     err,
		}
	}
	cause := s.machine.Cause()
	if e, ok := errors.AsType[*v1.Error](cause); ok {
		return &v1.Error{Code: e.Code, Op: op, Message: e.Message, Remedy: e.Remedy, Retry: e.Retry, Err: e.Err}
	}
	return &v1.Error{
		Code:    v1.CodeSandboxLost,
		Op:      op,
		Message: "the sandbox has ended",
		Remedy:  "make a new sandbox, or restore a snapshot",
		Err:     cause,
	}
}

// awaitCause waits for the end of a sandbox whose stream has ended, and reports whether the sandbox has ended, too. If
// so, Cause returns the reason. The wait is needed because the backend may notice the end later than the stream.
func awaitCause(m Machine) bool {
	t := time.NewTimer(lostWait)
	defer t.Stop()
	select {
	case <-m.Gone():
		return true
	case <-t.C:
		return false
	}
}

// fileCodes maps the guest's error codes of files to those of package v1.
var fileCodes = map[string]v1.Code{
	"file_not_found":   v1.CodeFileNotFound,
	"file_exists":      v1.CodeFileExists,
	"file_permission":  v1.CodeFilePermission,
	"file_not_regular": v1.CodeFileNotRegular,
	"file_is_dir":      v1.CodeFileIsDirectory,
	"file_not_dir":     v1.CodeFileNotDirectory,
	"file_escapes":     v1.CodePathEscapes,
	"file_invalid":     v1.CodePathInvalid,
	"file_too_large":   v1.CodeTooLarge,
	"file_too_many":    v1.CodeTooMany,
	"file_no_space":    v1.CodeDiskFull,
	"file_not_empty":   v1.CodeFileNotEmpty,
	"file_cancelled":   v1.CodeCancelled,
	"file_internal":    v1.CodeInternal,
}

func guestError(op string, e *host.Error) error {
	code := v1.Code(e.Code)
	if c, ok := fileCodes[e.Code]; ok {
		code = c
	}
	out := &v1.Error{Code: code, Op: op, Message: e.Message}
	if e.Path != "" {
		out.Message = fmt.Sprintf("%q: %s", e.Path, e.Message)
	}
	switch code {
	case v1.CodeNoPython:
		out.Remedy = "use an image or root file system with Python 3; commands work without Python"
	case v1.CodeBusy:
		out.Retry = true
	case v1.CodeNoShell:
		out.Remedy = "run a program directly, or use an image with a shell"
	case v1.CodeDiskFull:
		out.Remedy = "remove files, or raise the disk limit of the sandbox"
	}
	return out
}

// checkOptions rejects options for another backend than the given one.
func checkOptions(s Spec, backend string) error {
	for name := range s.Options {
		if name != backend {
			return &v1.Error{
				Code:    v1.CodeNotSupported,
				Op:      "check spec",
				Message: fmt.Sprintf("the spec has options for the %s backend, but the backend is %s", name, backend),
				Remedy:  "remove these options, or use the " + name + " backend",
			}
		}
	}
	return nil
}
