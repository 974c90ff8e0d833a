//go:build linux

package agent

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// adopt applies the identity that the host has sent. After a restore or a fork it differs from the previous one. Then
// everything that two copies must not share is renewed: the hostname, the environment, and the seeds of all live
// interpreters.
func (a *Agent) adopt(id *wire.Identity) {
	if id == nil {
		return
	}
	env := a.envMap(id)
	a.mu.Lock()
	copied := a.identity == nil || a.identity.Generation != id.Generation
	a.identity = id
	a.base = list(env)
	a.contexts.Adopt(env, copied)
	a.mu.Unlock()
	if copied && a.cfg.Machine {
		renewMachine(id)
	}
	if copied && a.cfg.UID >= 0 && id.Hostname != "" {
		// Sethostname needs a capability that not every backend grants. Without it the old name stays.
		_ = unix.Sethostname([]byte(id.Hostname))
	}
}

// renewMachine sets the clock, which stood still in a snapshot, and mixes the host's random bytes into those of the
// kernel, because two copies of a machine would otherwise produce the same ones. Errors are written to the console: an
// attachment that fails because of them would be of less use.
func renewMachine(id *wire.Identity) {
	err := unix.Settimeofday(&unix.Timeval{Sec: id.UnixNanos / 1e9, Usec: id.UnixNanos % 1e9 / 1e3})
	if err != nil {
		fmt.Fprintln(os.Stderr, "recluse-guest: set the clock:", err)
	}
	if err := addEntropy(id.Entropy); err != nil {
		fmt.Fprintln(os.Stderr, "recluse-guest: renew random numbers:", err)
	}
}

// addEntropy makes the kernel's random numbers depend on text from now on.
func addEntropy(text []byte) error {
	const addEntropy, reseed = 0x40085203, 0x5207 // RNDADDENTROPY, RNDRESEEDCRNG
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	pool := binary.NativeEndian.AppendUint32(nil, uint32(8*len(text))) // struct rand_pool_info
	pool = binary.NativeEndian.AppendUint32(pool, uint32(len(text)))
	pool = append(pool, text...)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), addEntropy, uintptr(unsafe.Pointer(unsafe.SliceData(pool))))
	if errno == 0 {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, f.Fd(), reseed, 0)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// environment returns the environment of a command: that of the sandbox and extra.
func (a *Agent) environment(extra [][]byte) [][]byte {
	a.mu.Lock()
	if a.base == nil { // no host has sent an identity yet
		a.base = list(a.envMap(a.identity))
	}
	base := a.base
	a.mu.Unlock()
	out := make([][]byte, 0, len(base)+len(extra))
	set := map[string]bool{}
	for _, e := range extra {
		k, _, _ := strings.Cut(string(e), "=")
		set[k] = true
	}
	for _, e := range base {
		if k, _, _ := strings.Cut(e, "="); !set[k] {
			out = append(out, []byte(e))
		}
	}
	return append(out, extra...)
}

// list returns an environment as a sorted list of KEY=VALUE.
func list(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

// envMap merges the defaults, the image's environment and the caller's; later ones override.
func (a *Agent) envMap(id *wire.Identity) map[string]string {
	env := map[string]string{
		// Programs that pip installs come first.
		"PATH": a.cfg.Home + "/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": a.cfg.Home, "USER": "user", "LOGNAME": "user",
		"LANG": "C.UTF-8", "TERM": "xterm-256color", "TMPDIR": "/tmp",
		"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1",
	}
	if a.cfg.CPUs > 0 {
		// Libraries size their thread pools by the CPUs they see; these variables state the quota.
		n := strconv.Itoa(a.cfg.CPUs)
		for _, k := range []string{
			"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
			"GOMAXPROCS", "RAYON_NUM_THREADS", "PYTHON_CPU_COUNT",
		} {
			env[k] = n
		}
	}
	if a.cfg.UID >= 0 {
		env["PIP_BREAK_SYSTEM_PACKAGES"] = "1" // PEP 668 protects a system; here the sandbox is the environment
	} else {
		if u := os.Getenv("USER"); u != "" {
			env["USER"], env["LOGNAME"] = u, u
		}
		if t := os.Getenv("TMPDIR"); t != "" {
			env["TMPDIR"] = t
		}
	}
	for _, kv := range a.cfg.Env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	if id != nil {
		maps.Copy(env, id.Env)
	}
	env["PATH"] = a.sudoPath() + env["PATH"] // also before the image's
	// The caller's choice overrides the image's.
	if shell := id.GetShell(); env["SHELL"] == "" || shell != "" && id.GetEnv()["SHELL"] == "" {
		env["SHELL"] = lookShell(shell, env["PATH"])
	}
	return env
}
