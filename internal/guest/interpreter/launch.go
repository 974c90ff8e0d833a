//go:build linux

package interpreter

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// startWait is how long an interpreter may take to answer. The first start of Python on a busy machine reads its
// library from a cold disk.
const startWait = 60 * time.Second

// launch starts an interpreter for a context and waits until it answers.
func (c *Contexts) launch(name string, p Profile, env map[string]string) (*interpreter, *wire.Error) {
	k, bad := c.kernel(p.Language)
	if bad != nil {
		return nil, bad
	}
	program := k.Find()
	if program == "" {
		return nil, wire.Errorf("no_"+k.Language(), "%s not found in this sandbox", k.Language())
	}
	failed := func(what string, err error) *wire.Error {
		return wire.Errorf("no_"+k.Language(), "the %s interpreter %s: %s: %v", k.Language(), program, what, err)
	}
	i := &interpreter{
		contexts: c,
		context:  name,
		profile:  p,
		turn:     make(chan struct{}, 1),
		known:    map[nanny.Process]bool{},
		events:   make(chan *nanny.Event, 4),
		refused:  make(chan int, maxRefused),
		gone:     make(chan struct{}),
	}
	theirs, err := i.plumb()
	if err != nil {
		return nil, failed("create descriptors", err)
	}
	start := &nanny.Start{Path: []byte(program), Env: environ(env), Dir: []byte(c.cfg.Dir), Spared: true}
	if !p.User.Same(c.cfg.User) {
		start.User = &nanny.User{UID: p.User.UID, GID: p.User.GID}
		start.Dir = []byte(p.User.Dir())
		env = maps.Clone(env)
		for _, kv := range p.User.Env() {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
		start.Env = environ(env)
	}
	for _, a := range k.Command(program) {
		start.Argv = append(start.Argv, []byte(a))
	}
	err = i.spawn(start, theirs)
	closeAll(theirs) // the child has its own copies
	if err != nil {
		closeAll([]int{i.in, i.out, i.pipes[0], i.pipes[1]})
		_ = i.page.Close()
		return nil, failed("did not start", err)
	}
	go i.forwardEvents()
	go i.sendRefusals()
	for s := range i.pipes {
		go i.pump(s)
	}
	late := time.AfterFunc(startWait, func() { _ = i.nanny.SignalTree(i.tree, syscall.SIGKILL) })
	err = i.send(kernel.TypeSource, k.Source())
	if err == nil {
		err = i.awaitHello()
	}
	late.Stop()
	if err != nil {
		i.discard()
		return nil, failed("did not answer", err)
	}
	i.turn <- struct{}{}
	return i, nil
}

// plumb creates the pipes and the page of the interpreter. It returns the descriptors that become its fds 0 to 5.
func (i *interpreter) plumb() (theirs []int, err error) {
	var fds [4][2]int // stdout, stderr, control in, control out
	var made []int
	defer func() {
		if err != nil {
			closeAll(made)
		}
	}()
	for n := range fds {
		if err := unix.Pipe2(fds[n][:], unix.O_CLOEXEC); err != nil {
			return nil, err
		}
		made = append(made, fds[n][0], fds[n][1])
		if i.contexts.cfg.SwitchUser {
			// Code may open the pipe by name: /dev/stderr is a link to it. If the chown is refused, only such programs
			// fail.
			_ = unix.Fchown(fds[n][1], i.profile.User.UID, i.profile.User.GID)
		}
	}
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	made = append(made, null)
	page, file, err := kernel.NewPage()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	shared, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		_ = page.Close()
		return nil, err
	}
	i.page, i.in, i.out, i.pipes = page, fds[2][1], fds[3][0], [2]int{fds[0][0], fds[1][0]}
	i.frames = bufio.NewReaderSize(control{i}, 32<<10)
	return []int{null, fds[0][1], fds[1][1], fds[2][0], fds[3][1], shared}, nil
}

// spawn starts the process under a nanny.
func (i *interpreter) spawn(s *nanny.Start, files []int) error {
	pool := i.contexts.cfg.Nannies
	n, e, err := pool.Launch(nil, s, files)
	switch {
	case errors.Is(err, nanny.ErrLost):
		pool.CloseDead(n)
		return err
	case err != nil:
		return err
	case e.PID == 0:
		pool.Put(n)
		return errors.New(e.Error)
	}
	i.nanny, i.pid, i.tree = n, e.PID, n.Tree()
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// environ returns an environment as a sorted list of KEY=VALUE.
func environ(env map[string]string) [][]byte {
	out := make([][]byte, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, []byte(k+"="+env[k]))
	}
	return out
}

func (i *interpreter) awaitHello() error {
	typ, payload, err := i.read()
	if err != nil {
		return err
	}
	if typ != kernel.TypeHello {
		return fmt.Errorf("frame of type %q instead of a hello", typ)
	}
	var hello struct {
		Version string `json:"version"`
	}
	err = json.Unmarshal(payload, &hello)
	i.version = hello.Version
	return err
}
