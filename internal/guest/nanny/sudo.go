//go:build linux

package nanny

import (
	"errors"
	"fmt"
	"os"
	ossignal "os/signal"
	"os/user"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// SudoName is the name of the guest's binary as which it requests a process of root from the guest: set-uid programs
// have no effect in a sandbox.
const SudoName = "sudo"

// SudoAddress is the abstract address at which the guest receives SudoRequests, if code may become root.
const SudoAddress = "@recluse-sudo"

// SudoRequest is a request for a process of another user. The first three files sent with it are its fds 0, 1 and 2.
type SudoRequest struct {
	Argv  [][]byte `json:"argv"` // empty: a shell
	Env   [][]byte `json:"env"`  // in addition to that of the sandbox
	Dir   []byte   `json:"dir"`
	User  string   `json:"user"`
	Login bool     `json:"login,omitempty"` // start in the home directory of the user
}

// ReceiveSudo reads a request.
func ReceiveSudo(fd int) (*SudoRequest, []int, error) {
	c := conn{fd: fd}
	r := &SudoRequest{}
	if err := c.receive(r); err != nil {
		return nil, c.take(maxFiles), err
	}
	return r, c.take(maxFiles), nil
}

// RefuseSudo answers a request.
func RefuseSudo(fd int, why string) error {
	c := conn{fd: fd}
	return c.send(&Answer{Error: why}, nil)
}

// sudoHelp is what sudo prints.
const sudoHelp = `usage: sudo [-EHinSs] [-u user] [VAR=value] [command [argument ...]]

Runs a command as root, or as another user, if the sandbox was made with --sudo or with the user root.
`

// Sudo runs the command that args describe as root, and returns its exit status.
func Sudo(args []string) int {
	fail := func(code int, text string) int {
		fmt.Fprintln(os.Stderr, "sudo:", text)
		return code
	}
	r, code, err := parseSudo(args)
	if err != nil {
		return fail(1, err.Error())
	}
	if r == nil {
		fmt.Fprint(os.Stdout, sudoHelp)
		return code
	}
	if dir, err := os.Getwd(); err == nil {
		r.Dir = []byte(dir)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(1, err.Error())
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: SudoAddress}); err != nil {
		return fail(1, "this sandbox does not let code become root: make it with --sudo, or with --user root")
	}
	c := conn{fd: fd}
	if err := c.send(r, []int{0, 1, 2}); err != nil {
		return fail(1, err.Error())
	}
	go forwardSignals(fd)
	for {
		var a Answer
		switch err := c.receive(&a); {
		case err != nil:
			return fail(1, "the command was killed")
		case a.Error != "":
			return fail(1, a.Error)
		case a.Ended:
			ws := unix.WaitStatus(a.Status)
			if ws.Signaled() {
				return 128 + int(ws.Signal())
			}
			return ws.ExitStatus()
		}
	}
}

// forwardSignals sends the signals that this process receives to the process of root.
func forwardSignals(fd int) {
	received := make(chan os.Signal, 8)
	ossignal.Notify(received,
		unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGCONT)
	for s := range received {
		if n, ok := s.(syscall.Signal); ok {
			_, _ = unix.Write(fd, []byte{byte(n)}) // if this fails, receive fails, too
		}
	}
}

// parseSudo parses the arguments of sudo. It returns nil if there is nothing to run.
func parseSudo(args []string) (r *SudoRequest, code int, err error) {
	r = &SudoRequest{User: "root"}
	shell, keep := false, false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			break
		}
		for i := 1; i < len(arg); i++ {
			switch arg[i] {
			case 'n', 'S', 'H', 'k', 'b': // there is no password, and HOME is always set
			case 'E':
				keep = true
			case 's':
				shell = true
			case 'i':
				shell, r.Login = true, true
			case 'u':
				if r.User = arg[i+1:]; r.User == "" {
					if len(args) == 0 {
						return nil, 1, errors.New("option -u needs a user")
					}
					r.User, args = args[0], args[1:]
				}
				i = len(arg)
			case 'v', 'l', 'K':
				return &SudoRequest{User: r.User, Argv: [][]byte{[]byte("true")}}, 0, nil
			case 'h', 'V':
				return nil, 0, nil
			default:
				return nil, 1, fmt.Errorf("unsupported option %q", arg)
			}
		}
	}
	kept := []string{"TERM", "LANG", "COLORTERM", "DEBIAN_FRONTEND"}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		own := name == "HOME" || name == "USER" || name == "LOGNAME" || name == "PATH" || name == "SHELL"
		for _, k := range kept {
			if keep && !own || name == k {
				r.Env = append(r.Env, []byte(kv))
				break
			}
		}
	}
	if u, err := user.LookupId(fmt.Sprint(os.Getuid())); err == nil {
		r.Env = append(r.Env, []byte("SUDO_USER="+u.Username))
	}
	r.Env = append(r.Env, fmt.Appendf(nil, "SUDO_UID=%d", os.Getuid()), fmt.Appendf(nil, "SUDO_GID=%d", os.Getgid()))
	for len(args) > 0 && strings.Contains(args[0], "=") {
		r.Env = append(r.Env, []byte(args[0]))
		args = args[1:]
	}
	if len(args) == 0 && !shell {
		return nil, 1, nil
	}
	if shell && len(args) > 0 {
		args = []string{"/bin/sh", "-c", strings.Join(args, " ")}
	}
	for _, a := range args {
		r.Argv = append(r.Argv, []byte(a))
	}
	return r, 0, nil
}
