package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

// choice is what the user says about which backend to use.
type choice struct {
	backend   string
	allowNone bool
	container bool
	pull      string
	min       sandbox.Isolation

	flags *pflag.FlagSet
}

func (c *choice) register(f *pflag.FlagSet) {
	c.flags = f
	f.StringVar(&c.backend, "backend", "", "use this `backend`, or the first of several that works: gvisor,docker,local")
	f.BoolVar(&c.allowNone, "allow-no-isolation", false, "consent to a backend that isolates nothing")
	f.BoolVar(&c.container, "allow-container", false, "consent to containers that share this machine's kernel; to name docker is consent too")
	f.StringVar(&c.pull, "pull", "", "when docker fetches an image: missing, always or never (default missing)")
	f.TextVar(&c.min, "min-isolation", sandbox.IsolationNone, "refuse a weaker `level` of isolation: none, container, kernel or vm")
}

func (c *choice) requirements(a *app) backend.Requirements {
	return backend.Requirements{MinIsolation: c.min, AllowNone: c.allowNone, AllowContainer: c.container, Order: c.order(), Logger: a.logger()}
}

// order returns the backends that were named.
func (c *choice) order() (names []string) {
	for name := range strings.SplitSeq(c.backend, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// machine is what the user says about the sandbox.
type machine struct {
	choice
	memory, disk  size
	cpus          cpus
	processes     count
	openFiles     count
	image, rootfs string
	mounts        []string
	volumes       []string
	hostConfig    string
	env           environment
	dir, hostname string
	shell, user   string
	oomScore      int
	cold          bool
}

func (m *machine) register(f *pflag.FlagSet) {
	m.choice.register(f)
	l := sandbox.Limits{}.WithDefaults()
	f.Var(&m.memory, "memory", "memory `limit`, e.g. 256m or 2g (default "+formatSize(l.Memory)+")")
	f.Var(&m.cpus, "cpus", fmt.Sprintf("processor time, in `cores`, e.g. 0.5 (default %v)", l.CPUs))
	f.Var(&m.processes, "processes", fmt.Sprintf("`number` of processes and threads (default %d)", l.Processes))
	f.Var(&m.disk, "disk", "`limit` for files in the sandbox (default half of the memory)")
	f.Var(&m.openFiles, "open-files", fmt.Sprintf("`number` of files that one process may have open (default %d)", l.OpenFiles))
	f.StringVar(&m.image, "image", "", "root file system from an OCI `image`: a registry reference, oci:DIR or tar:FILE")
	f.StringVar(&m.rootfs, "rootfs", "", "root file system from a `directory`, read-only")
	f.StringArrayVar(&m.mounts, "mount", nil, "show a host directory inside, `host:path[:rw]`; read-only unless rw (repeatable)")
	f.StringArrayVar(&m.volumes, "volume", nil, "show a named volume of docker inside, `name:path[:rw]`; read-only unless rw (repeatable)")
	f.StringVar(&m.hostConfig, "host-config", "", "`JSON` of docker's API (HostConfig) to lay over what its engine is told; docker.unsafe_host_config allows it")
	f.VarP(&m.env, "env", "e", "set an environment variable, `K=V`; K alone copies ours (repeatable)")
	f.StringVar(&m.dir, "dir", "", "working `directory` inside")
	f.StringVar(&m.hostname, "hostname", "", "`name` of the machine inside (default the sandbox's id)")
	f.StringVar(&m.shell, "shell", "", "`program` that runs scripts and that recluse shell opens, a path or a name (default bash, else sh)")
	f.StringVar(&m.user, "user", "", "`user` that code runs as: a number, user:group, or a name of the image; docker only (default "+strconv.Itoa(v1.DefaultUID)+")")
	f.IntVar(&m.oomScore, "oom-score-adj", 0, "how soon the kernel ends code when memory is short, a `number` from 0 to 1000; docker with runc only (default 500)")
	f.BoolVar(&m.cold, "cold", false, "boot the sandbox instead of restoring a warm template")
}

func (m *machine) spec() (sandbox.Spec, error) {
	s := sandbox.Spec{
		Image: m.image, RootFS: m.rootfs, Dir: m.dir, Hostname: m.hostname, Cold: m.cold, Shell: m.shell, User: m.user,
		Limits: sandbox.Limits{Memory: int64(m.memory), CPUs: float64(m.cpus), Processes: int(m.processes), Disk: int64(m.disk), OpenFiles: int(m.openFiles)},
	}
	for _, arg := range m.mounts {
		mount, err := parseMount(arg)
		if err != nil {
			return s, err
		}
		s.Mounts = append(s.Mounts, mount)
	}
	for _, arg := range m.volumes {
		v, err := parseMount(arg)
		if err != nil {
			return s, usage("--volume %s: want name:path, or name:path:rw", arg)
		}
		s.Volumes = append(s.Volumes, sandbox.Volume{Name: v.Host, Path: v.Path, Writable: v.Writable})
	}
	s.Env = m.env.values
	o := docker.SpecOptions{HostConfig: json.RawMessage(m.hostConfig)}
	if m.flags.Changed("oom-score-adj") {
		o.OOMScoreAdj = &m.oomScore
	}
	err := o.Apply(&s)
	return s, err
}

// sandboxFlags are those that describe the sandbox itself: a session keeps what they said when it was made.
var sandboxFlags = []string{"memory", "cpus", "processes", "disk", "open-files", "hostname", "image", "rootfs", "mount", "cold", "shell", "user", "oom-score-adj", "volume", "host-config"}

// said reports whether the user said anything about the sandbox itself.
func (m *machine) said() bool { return slices.ContainsFunc(sandboxFlags, m.flags.Changed) }

// environment is a flag for variables, K=V, or K alone to copy ours.
type environment struct{ values map[string]string }

func (e *environment) String() string { return "" }

// Type names the flag's value in help texts.
func (e *environment) Type() string { return "K=V" }

// Set adds one variable.
func (e *environment) Set(arg string) error {
	k, v, ok := strings.Cut(arg, "=")
	if !ok {
		if v, ok = os.LookupEnv(k); !ok {
			return fmt.Errorf("there is no variable %s to copy", k)
		}
	}
	if e.values == nil {
		e.values = map[string]string{}
	}
	e.values[k] = v
	return nil
}

// parseMount reads host:path[:rw|:ro]. A host path with a colon in it cannot be said.
func parseMount(s string) (sandbox.Mount, error) {
	parts := strings.Split(s, ":")
	if len(parts) == 3 && (parts[2] == "rw" || parts[2] == "ro") || len(parts) == 2 {
		m := sandbox.Mount{Host: parts[0], Path: parts[1], Writable: len(parts) == 3 && parts[2] == "rw"}
		if m.Host != "" && m.Path != "" {
			return m, nil
		}
	}
	return sandbox.Mount{}, usage("--mount %s: want host:path, or host:path:rw", s)
}

// size is a flag for a number of bytes.
type size int64

func (s *size) String() string { return formatSize(int64(*s)) }

// Type names the flag's value in help texts.
func (s *size) Type() string { return "size" }

// Set reads 512, 64k, 256m, 1.5g, and the same with b or ib after the letter; all are powers of 1024.
func (s *size) Set(v string) error {
	digits := strings.ToLower(strings.TrimSpace(v))
	digits = strings.TrimSuffix(strings.TrimSuffix(digits, "b"), "i")
	unit := int64(1)
	for i, letter := range []string{"k", "m", "g", "t"} {
		if rest, ok := strings.CutSuffix(digits, letter); ok {
			digits, unit = rest, 1<<(10*(i+1))
			break
		}
	}
	n, err := strconv.ParseFloat(digits, 64)
	if bytes := n * float64(unit); err != nil || math.IsNaN(bytes) || bytes < 1 || bytes >= math.MaxInt64 {
		return fmt.Errorf("%q is not a size above zero, like 256m or 2g", v)
	}
	*s = size(n * float64(unit))
	return nil
}

func formatSize(n int64) string {
	for i, letter := range []string{"t", "g", "m", "k"} {
		if unit := int64(1) << (10 * (4 - i)); n >= unit && n%unit == 0 {
			return fmt.Sprintf("%d%s", n/unit, letter)
		}
	}
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// cpus is a flag for a share of processors. An explicit zero is refused: as a limit it would mean the default.
type cpus float64

func (c *cpus) String() string {
	if *c == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*c), 'g', -1, 64)
}

// Type names the flag's value in help texts.
func (c *cpus) Type() string { return "cores" }

// Set reads a number above zero.
func (c *cpus) Set(v string) error {
	n, err := strconv.ParseFloat(v, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || n <= 0 {
		return fmt.Errorf("%q is not a number above zero", v)
	}
	*c = cpus(n)
	return nil
}

// count is a flag for a number of things, above zero for the same reason.
type count int

func (c *count) String() string {
	if *c == 0 {
		return ""
	}
	return strconv.Itoa(int(*c))
}

// Type names the flag's value in help texts.
func (c *count) Type() string { return "number" }

// Set reads a number above zero.
func (c *count) Set(v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n <= 0 {
		return fmt.Errorf("%q is not a whole number above zero", v)
	}
	*c = count(n)
	return nil
}

// timeout returns the time of a command; zero is a flag that was left out.
func timeout(d v1.Duration) time.Duration {
	if d == 0 {
		return v1.NoLimit
	}
	return d.Std()
}
