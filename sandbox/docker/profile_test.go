package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestTheProfileHolds(t *testing.T) {
	b := newBackend(t, nil)
	f, err := b.facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sb := open(t, b, sandbox.Spec{})
	for name, c := range map[string]struct{ script, want string }{
		"no capabilities":   {"grep -h ^Cap /proc/self/status | tr -d '\\t ' | cut -d: -f2 | sort -u", "0000000000000000\n"},
		"no new privileges": {"grep NoNewPrivs /proc/self/status | tr -dc 01", "1"},
		"seccomp":           {"grep ^Seccomp: /proc/self/status | tr -dc 0-9", "2"},
		// The guest enforces neither limit itself, so these are limits of the engine.
		"the engine's filter":       {"grep ^Seccomp: /proc/1/status | tr -dc 0-9", "2"},
		"no privileges for guest":   {"grep NoNewPrivs /proc/1/status | tr -dc 01", "1"},
		"found by the kernel first": {"cat /proc/self/oom_score_adj", strconv.Itoa(defaultOOMScore) + "\n"},
		"not root":                  {"id -u; id -g", "1000\n1000\n"},
		"a root that is closed":     {"touch /x 2>/dev/null || echo closed", "closed\n"},
		"no network":                {"ls /sys/class/net", "lo\n"},
		"a guest that is closed":    {"touch /.recluse/bin/x 2>/dev/null || echo closed", "closed\n"},
		"programs in the home":      {"cp /bin/true ./t && ./t && echo runs", "runs\n"},
		"no setuid in the home":     {"grep ' /home/user ' /proc/self/mountinfo | grep -o nosuid | head -1", "nosuid\n"},
		"no swap":                   {"cat /sys/fs/cgroup/memory/memory.memsw.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.swap.max", "536870912\n"},
		"the CPU's share":           {"cd /sys/fs/cgroup; if [ -e cpu.max ]; then cat cpu.max; else cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us | xargs; fi", "100000 100000\n"},
		"how the host was booted":   {"cat /proc/cmdline /proc/partitions /proc/diskstats /proc/swaps | wc -c", "0\n"},
		"what engines hide":         {"cat /proc/kcore /proc/keys /proc/timer_list 2>/dev/null | wc -c; ls /sys/firmware | wc -l", "0\n0\n"},
		"no devices":                {"ls -l /dev | grep -c '^b' || true", "0\n"},
		"nothing of the host":       {"ls -a /root /home | grep -c bash_history || true", "0\n"},
	} {
		if name == "how the host was booted" && f.Podman {
			continue // its API cannot mask files
		}
		got := shell(t, sb, c.script)
		if name == "no swap" && got == "0\n" { // cgroup v2 counts swap separately
			got = c.want
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	// The limit of the engine also counts the guest and its helpers. A reserve for them guarantees the number of
	// processes for code, which gets at most the rest of the reserve in addition.
	v, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"python3", "-c", `
import os, signal
all = [os.getpid()]
try:
    while len(all) < 1000:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        all.append(pid)
except BlockingIOError:
    pass
print(len(all))
for pid in all[1:]:
    os.kill(pid, signal.SIGKILL)
`}})
	if err != nil || !v.OK() {
		t.Fatal(v, err, stderrOf(v))
	}
	if n, err := strconv.Atoi(strings.TrimSpace(v.Stdout.String())); err != nil || n < v1.DefaultProcesses || n > v1.DefaultProcesses+processReserve {
		t.Errorf("code has %d processes, %v", n, err)
	}
}

func TestWhatASpecSaysHolds(t *testing.T) {
	b := newBackend(t, nil)
	sb := open(t, b, sandbox.Spec{Dir: "/var/tmp", Hostname: "mine", Env: map[string]string{"KEY": "of the spec"}})
	if got := shell(t, sb, "pwd; hostname; echo $KEY"); got != "/var/tmp\nmine\nof the spec\n" {
		t.Errorf("a command: %q", got)
	}
	if v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "import os; os.getcwd()"}); err != nil || v.Result.Text() != "'/var/tmp'" {
		t.Errorf("a cell: %v, %v", v, err)
	}
	// A command can have another directory and another shell.
	v, err := sb.Run(t.Context(), sandbox.Command{Args: []string{"/bin/sh", "-c", "pwd; echo $0 $KEY"}, Dir: "/tmp", RunOptions: sandbox.RunOptions{Env: map[string]string{"KEY": "of its own"}}})
	if err != nil || v.Stdout.String() != "/tmp\n/bin/sh of its own\n" {
		t.Errorf("a command of its own: %v, %v", v, err)
	}
}

func TestTheEngineIsToldTheProfile(t *testing.T) {
	sb := open(t, newBackend(t, nil), sandbox.Spec{})
	text := docker(t, "inspect", containerName(sb.ID()))
	var got []struct {
		Config     struct{ User string }
		HostConfig struct {
			AutoRemove, Privileged, ReadonlyRootfs bool
			Init                                   *bool
			Binds, CapAdd, CapDrop, SecurityOpt    []string
			LogConfig                              struct{ Type string }
			NetworkMode                            string
			PidsLimit                              int64
		}
		Mounts []struct {
			Type, Destination string
			RW                bool
		}
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	h := got[0].HostConfig
	if h.AutoRemove || h.Privileged || !h.ReadonlyRootfs || h.Init == nil || *h.Init || len(h.Binds) > 0 || h.LogConfig.Type != "none" || h.NetworkMode != "none" || h.PidsLimit != 256+processReserve {
		t.Errorf("HostConfig: %+v", h)
	}
	if !slices.Equal(h.CapDrop, []string{"ALL"}) || len(h.CapAdd) > 0 || got[0].Config.User != "1000:1000" {
		t.Errorf("capabilities: all but %q, and %q, for user %s", h.CapDrop, h.CapAdd, got[0].Config.User)
	}
	// Any seccomp option would remove the default filter of the engine.
	if !slices.Equal(h.SecurityOpt, []string{"no-new-privileges"}) {
		t.Errorf("security: %q", h.SecurityOpt)
	}
	var volumes []string
	for _, m := range got[0].Mounts {
		if m.Type != "tmpfs" {
			volumes = append(volumes, fmt.Sprintf("%s %s writable=%t", m.Type, m.Destination, m.RW))
		}
	}
	if want := []string{"volume " + guestDir + " writable=false"}; !slices.Equal(volumes, want) {
		t.Errorf("mounts %q, want %q", volumes, want)
	}
}

// Attacks of code inside on the guest and its bridges.
func TestCodeCannotReachTheGuest(t *testing.T) {
	b := newBackend(t, nil)
	sb := open(t, b, sandbox.Spec{})
	token, err := tokenOf(strings.Split(docker(t, "inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", containerName(sb.ID())), "\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"read its memory":         "cat /proc/1/mem",
		"read its environment":    "cat /proc/1/environ",
		"read its descriptors":    "ls /proc/1/fd",
		"read a bridge's":         "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q 'bridg[e] @' && exec cat $p/environ; done; exit 1",
		"end it":                  "kill -9 1; sleep 0.2; exit 1",
		"end a bridge":            "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q 'bridg[e] @' && exec kill -9 ${p#/proc/}; done; exit 1",
		"mount":                   "mount -t tmpfs x /tmp",
		"a namespace of its own":  "unshare -Ur true",
		"raise its own privilege": "chmod u+s /bin/bash",
	} {
		v, err := sb.Run(t.Context(), sandbox.Command{Shell: script})
		if err != nil || v.OK() {
			t.Errorf("%s: %v, %v: %q", name, v, err, v.Stdout)
		}
	}
	if got := shell(t, sb, "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q 'bridg[e] @' && echo there; done; true"); got != "there\n" {
		t.Errorf("the bridge runs as %q", got)
	}
	// A direct connection to the guest's socket is ignored and disturbs no other connection.
	v, err := sb.Cell(t.Context(), sandbox.Cell{Code: fmt.Sprintf(`
import socket
name = "\0" + %q
s = socket.socket(socket.AF_UNIX); s.connect(name); s.settimeout(5)
try:
    s.sendall(bytes.fromhex(%q) + bytes(4))
    print(repr(s.recv(100)))
except OSError as e:
    print(repr(b""))
for i in range(200):
    socket.socket(socket.AF_UNIX).connect(name)
`, strings.TrimPrefix(socketName(sb.ID()), "@"), fmt.Sprintf("%x", token))})
	if err != nil || !v.OK() || v.Stdout.String() != "b''\n" {
		t.Errorf("even with the token: %v, %v: %s %+v", v, err, v.Stdout, v.Error)
	}
	// Every process that can be killed is killed, and the sandbox continues.
	for range 3 {
		_, _ = sb.Run(t.Context(), sandbox.Command{Shell: "kill -9 -1"}) // the verdict does not matter
	}
	shell(t, sb, "true")
	if v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "1 + 1"}); err != nil || v.Result.Text() != "2" {
		t.Errorf("a cell afterwards: %v, %v", v, err)
	}
	// All files of the user inside can be removed, and the next program still finds the same guest.
	shell(t, sb, "rm -rf /.recluse/run/* /tmp/* ~/*")
	sb.Detach()
	again, err := sandbox.Attach(t.Context(), b, sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	shell(t, again, "true")
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		opts Options
		code v1.Code
	}{
		"pull":                     {Options{Pull: "sometimes"}, v1.CodeInvalidSpec},
		"a path as volume":         {Options{Volumes: []Volume{{Name: "/etc", Path: "/mnt/x"}}}, v1.CodeInvalidSpec},
		"a volume over the guest":  {Options{Volumes: []Volume{{Name: "v", Path: "/.recluse/bin"}}}, v1.CodeInvalidSpec},
		"a relative volume":        {Options{Volumes: []Volume{{Name: "v", Path: "x"}}}, v1.CodeInvalidSpec},
		"host network":             {Options{Network: "host"}, v1.CodeConsentMissing},
		"a host config in YAML":    {Options{HostConfig: json.RawMessage("privileged: true")}, v1.CodeInvalidSpec},
		"a host config of numbers": {Options{HostConfig: json.RawMessage(`{"NetworkMode": 1}`)}, v1.CodeInvalidSpec},
		"another door to the host": {Options{HostConfig: json.RawMessage(`{"NetworkMode": "host"}`)}, v1.CodeConsentMissing},
		"another runtime":          {Options{HostConfig: json.RawMessage(`{"Runtime": "runc"}`)}, v1.CodeInvalidSpec},
		"a mount over the guest":   {Options{HostConfig: json.RawMessage(`{"Mounts": [{"Type": "tmpfs", "Target": "/.recluse/bin/"}]}`)}, v1.CodeInvalidSpec},
		"a bind over the guest":    {Options{HostConfig: json.RawMessage(`{"Binds": ["/opt://.recluse:ro"]}`)}, v1.CodeInvalidSpec},
		"a tmpfs over the guest":   {Options{HostConfig: json.RawMessage(`{"Tmpfs": {"/tmp/../.recluse/run": ""}}`)}, v1.CodeInvalidSpec},
		"an instance with a slash": {Options{Instance: "a/b"}, v1.CodeInvalidSpec},
		"no such context":          {Options{Context: "nobody-made-this"}, v1.CodeBackendMissing},
		"a host that is none":      {Options{Host: "carrier-pigeon"}, v1.CodeBackendMissing},
	} {
		c.opts.Dir = t.TempDir()
		if _, err := New(c.opts); v1.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Setenv("RECLUSE_ENV", "production")
	for _, o := range []Options{{Network: "host"}, {HostConfig: json.RawMessage(`{"NetworkMode": "host"}`)}} {
		o.UnsafeHostNetwork, o.Dir = true, t.TempDir()
		if _, err := New(o); v1.CodeOf(err) != v1.CodeConsentMissing {
			t.Errorf("host network in production: %v", err)
		}
	}
}

func TestProductionRefusesSharedKernels(t *testing.T) {
	b, runsc := newBackend(t, nil), newBackend(t, func(o *Options) { o.Runtime = "runsc" })
	t.Setenv("RECLUSE_ENV", "production")
	if _, err := sandbox.Open(t.Context(), b, sandbox.Spec{}); !errors.Is(err, sandbox.ErrConsentMissing) {
		t.Errorf("runc in production: %v", err)
	}
	shell(t, open(t, runsc, sandbox.Spec{}), "true")
}

func TestIsolationIsReportedTruthfully(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		want   sandbox.Isolation
	}{
		"the default":          {nil, sandbox.IsolationContainer},
		"runc":                 {func(o *Options) { o.Runtime = "runc" }, sandbox.IsolationContainer},
		"runsc":                {func(o *Options) { o.Runtime = "runsc" }, sandbox.IsolationKernel},
		"a loosened container": {func(o *Options) { o.HostConfig = json.RawMessage(`{"ReadonlyRootfs": false}`) }, sandbox.IsolationNone},
		"a loosened runsc":     {func(o *Options) { o.Runtime, o.HostConfig = "runsc", json.RawMessage(`{"ReadonlyRootfs": false}`) }, sandbox.IsolationContainer},
		"privileged":           {func(o *Options) { o.Runtime, o.HostConfig = "runsc", json.RawMessage(`{"Privileged": true}`) }, sandbox.IsolationNone},
		"the host's processes": {func(o *Options) { o.Runtime, o.HostConfig = "runsc", json.RawMessage(`{"PidMode": "host"}`) }, sandbox.IsolationNone},
		"the host's cgroups":   {func(o *Options) { o.Runtime, o.HostConfig = "runsc", json.RawMessage(`{"CgroupnsMode": "host"}`) }, sandbox.IsolationNone},
		"the host's network":   {func(o *Options) { o.Runtime, o.Network, o.UnsafeHostNetwork = "runsc", "host", true }, sandbox.IsolationNone},
		"the same by config": {func(o *Options) {
			o.Runtime, o.UnsafeHostNetwork, o.HostConfig = "runsc", true, json.RawMessage(`{"NetworkMode": "host"}`)
		}, sandbox.IsolationNone},
		"an engine that is away": {func(o *Options) { o.Host = "unix:///nowhere/docker.sock" }, sandbox.IsolationNone},
	} {
		if got := newBackend(t, c.change).Capabilities(t.Context()).Isolation; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestHealthTellsWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		says   string
	}{
		"no engine":  {func(o *Options) { o.Host = "unix:///nowhere/docker.sock" }, "does not answer"},
		"no runtime": {func(o *Options) { o.Runtime = "nonesuch" }, `no runtime "nonesuch"`},
		"no image":   {func(o *Options) { o.Image = "recluse-nonesuch" }, "the Docker engine does not have the image"},
		"no guest":   {func(o *Options) { o.GuestPath = "/nowhere" }, "cannot read the guest"},
		"no program": {func(o *Options) { o.GuestPath = "/etc/passwd" }, "has ended"},
	} {
		b := newBackend(t, c.change)
		h := b.Health(t.Context())
		for h.OK && strings.Contains(h.Reason, "slow") { // the result is not known yet
			h = b.Health(t.Context())
		}
		if h.OK || !strings.Contains(h.Reason, c.says) {
			t.Errorf("%s: %+v", name, h)
		}
	}
	b := newBackend(t, nil)
	for range 2 {
		if h := b.Health(t.Context()); !h.OK || h.Version == "" {
			t.Errorf("%+v", h)
		}
	}
	testneed.Await(t, "nothing is left behind", func() bool {
		all, err := b.List(t.Context())
		return err == nil && len(all) == 0
	})
}

func TestSpecsThatAContainerCannotBeAreRefused(t *testing.T) {
	b := newBackend(t, nil)
	far := newBackend(t, func(o *Options) { o.Host = "tcp://127.0.0.1:1" })
	for name, c := range map[string]struct {
		b    *Backend
		spec sandbox.Spec
		code v1.Code
	}{
		"a directory as root":     {b, sandbox.Spec{RootFS: "/usr"}, v1.CodeNotSupported},
		"an image in a file":      {b, sandbox.Spec{Image: "tar:/x"}, v1.CodeNotSupported},
		"an image by its path":    {b, sandbox.Spec{Image: "/x"}, v1.CodeNotSupported},
		"an image nobody has":     {b, sandbox.Spec{Image: "recluse-nonesuch"}, v1.CodeImageNotFound},
		"the host's secrets":      {b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: "/etc", Path: "/mnt/etc"}}}, v1.CodeMountRefused},
		"the engine's socket":     {b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: strings.TrimPrefix(engineHost, "unix://"), Path: "/mnt/s"}}}, v1.CodeMountRefused},
		"a directory of far away": {far, sandbox.Spec{Mounts: []sandbox.Mount{{Host: "/opt", Path: "/mnt/x"}}}, v1.CodeNotSupported},
		"nobody there":            {far, sandbox.Spec{}, v1.CodeBackendMissing},
	} {
		if sb, err := sandbox.Open(t.Context(), c.b, c.spec); v1.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				_ = sb.Close()
			}
		}
	}
	_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: filepath.Join(t.TempDir(), "not there"), Path: "/mnt/x"}}})
	if e, ok := errors.AsType[*v1.Error](err); !ok || e.Code != v1.CodeMountRefused || e.Message != "it does not exist" || e.Remedy != "create it first" {
		t.Errorf("a missing directory: %v", err)
	}
	if all, err := b.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("left behind: %+v, %v", all, err)
	}
}

func TestAnUnreachableRegistryIsNamed(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.Pull = PullMissing })
	_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Image: "127.0.0.1:1/nobody/here"})
	if v1.CodeOf(err) != v1.CodeImageUnreachable || !strings.Contains(err.Error(), "from-host") {
		t.Errorf("%v", err)
	}
	if _, err := sandbox.Open(t.Context(), b, sandbox.Spec{Image: "Not An Image"}); v1.CodeOf(err) != v1.CodeInvalidSpec {
		t.Errorf("a bad name: %v", err)
	}
}

func TestMountsAndVolumes(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"in", "out"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(filepath.Join(dir, "out"), 0o777), os.WriteFile(filepath.Join(dir, "in", "file"), []byte("from outside"), 0o644)); err != nil {
		t.Fatal(err)
	}
	volume := "recluse-test-" + randomHex(4)
	docker(t, "volume", "create", volume)
	t.Cleanup(func() { docker(t, "volume", "rm", volume) })
	docker(t, "run", "--rm", "--network=none", "-v", volume+":/v", testImage, "chmod", "777", "/v")
	b := newBackend(t, func(o *Options) { o.Volumes = []Volume{{Name: volume, Path: "/data", Writable: true}} })
	spec := sandbox.Spec{Mounts: []sandbox.Mount{{Host: filepath.Join(dir, "in"), Path: "/mnt/in"}, {Host: filepath.Join(dir, "out"), Path: "/mnt/out", Writable: true}}}
	sb := open(t, b, spec)
	if got := shell(t, sb, "cat /mnt/in/file; touch /mnt/in/x 2>/dev/null || echo -n ' closed'; echo out > /mnt/out/file; echo kept > /data/file"); got != "from outside closed" {
		t.Errorf("%q", got)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "out", "file")); err != nil || string(text) != "out\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	// The same with the options of a spec.
	closed := newBackend(t, nil)
	if got := shell(t, open(t, closed, sandbox.Spec{Volumes: []Volume{{Name: volume, Path: "/data"}}}), "cat /data/file; touch /data/x 2>/dev/null || echo closed"); got != "kept\nclosed\n" {
		t.Errorf("%q", got)
	}
}

// hostConfig returns spec options with a host config.
func hostConfig(text string) map[string]json.RawMessage {
	return map[string]json.RawMessage{Name: []byte(`{"host_config": ` + text + `}`)}
}

func TestTheHostConfigOfASpecNeedsConsent(t *testing.T) {
	spec := sandbox.Spec{Options: hostConfig(`{"Mounts": [{"Type": "tmpfs", "Target": "/mine", "TmpfsOptions": {"Mode": 511}}]}`)}
	if _, err := sandbox.Open(t.Context(), newBackend(t, nil), spec); v1.CodeOf(err) != v1.CodeConsentMissing || !strings.Contains(err.Error(), "docker.unsafe_host_config") {
		t.Errorf("without consent: %v", err)
	}
	b := newBackend(t, func(o *Options) {
		o.UnsafeHostConfig, o.Volumes = true, []Volume{{Name: "v", Path: "/data"}}
		o.HostConfig = json.RawMessage(`{"ReadonlyRootfs": true}`)
	})
	f, err := b.facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c := b.Capabilities(t.Context()); c.Isolation != f.Level-1 || !strings.Contains(strings.Join(c.Notes, "\n"), "a spec may weaken") {
		t.Errorf("with consent: isolation %s, %q", c.Isolation, c.Notes)
	}
	for name, c := range map[string]struct {
		spec sandbox.Spec
		code v1.Code
	}{
		"privileged":              {sandbox.Spec{Options: hostConfig(`{"Privileged": true}`)}, v1.CodeConsentMissing},
		"processes of the host":   {sandbox.Spec{Options: hostConfig(`{"PidMode": "host"}`)}, v1.CodeConsentMissing},
		"network of the host":     {sandbox.Spec{Options: hostConfig(`{"NetworkMode": "host"}`)}, v1.CodeConsentMissing},
		"another runtime":         {sandbox.Spec{Options: hostConfig(`{"Runtime": "runc"}`)}, v1.CodeInvalidSpec},
		"a mount over the guest":  {sandbox.Spec{Options: hostConfig(`{"Binds": ["/opt:/.recluse"]}`)}, v1.CodeInvalidSpec},
		"two volumes at one path": {sandbox.Spec{Volumes: []Volume{{Name: "w", Path: "/data"}}}, v1.CodeInvalidSpec},
	} {
		if _, err := sandbox.Open(t.Context(), b, c.spec); v1.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	allowed := newBackend(t, func(o *Options) { o.UnsafeHostConfig = true })
	if got := shell(t, open(t, allowed, spec), "touch /mine/x && ls /mine; touch /x 2>/dev/null || echo closed"); got != "x\nclosed\n" {
		t.Errorf("with consent: %q", got)
	}
}

func TestANetworkIsThereOnlyWhenAskedFor(t *testing.T) {
	name := "recluse-test-" + randomHex(4)
	b := newBackend(t, func(o *Options) { o.Network = name })
	docker(t, "network", "create", name)
	t.Cleanup(func() { docker(t, "network", "rm", name) })
	sb := open(t, b, sandbox.Spec{})
	if got := shell(t, sb, "ls /sys/class/net"); got != "eth0\nlo\n" {
		t.Errorf("with a network: %q", got)
	}
}

func TestAHostConfigIsLaidOver(t *testing.T) {
	b := newBackend(t, func(o *Options) {
		o.HostConfig = json.RawMessage(`{"ReadonlyRootfs": false, "CpusetCpus": "0", "Mounts": [{"Type": "tmpfs", "Target": "/mine", "TmpfsOptions": {"Mode": 511}}]}`)
	})
	sb := open(t, b, sandbox.Spec{})
	if got := shell(t, sb, "echo x > /mine/file; cat /mine/file; touch /.recluse/bin/x 2>/dev/null || echo closed"); got != "x\nclosed\n" {
		t.Errorf("a mount beside the guest's: %q", got)
	}
	if got := shell(t, sb, "grep Cpus_allowed_list /proc/self/status | tr -dc '0-9-'"); got != "0" {
		t.Errorf("cpus: %q", got)
	}
	// If the root is writable, a snapshot also contains the part that the user can write.
	docker(t, "exec", "-u", "0", containerName(sb.ID()), "sh", "-c", "echo root > /written")
	shell(t, sb, "echo home > file")
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.DeleteSnapshot(t.Context(), snap.ID); err != nil {
			t.Error(err)
		}
	}()
	again, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}()
	if got := shell(t, again, "cat /written file"); got != "root\nhome\n" {
		t.Errorf("restored: %q", got)
	}
	if all, err := b.List(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("list: %+v, %v", all, err)
	}
}

func TestANewVolumeCanBeWritten(t *testing.T) {
	b := newBackend(t, nil)
	for name, prepare := range map[string]func(volume string){
		"made by the sandbox": func(string) {},
		"made before":         func(volume string) { docker(t, "volume", "create", volume) },
	} {
		volume := "recluse-test-" + b.instance + strings.ReplaceAll(name, " ", "-")
		prepare(volume)
		t.Cleanup(func() { docker(t, "volume", "rm", "-f", volume) })
		for _, want := range []string{"1\n", "1\n1\n"} { // the second sandbox finds what the first wrote
			sb := open(t, b, sandbox.Spec{Volumes: []sandbox.Volume{{Name: volume, Path: "/data", Writable: true}}})
			if got := shell(t, sb, "echo 1 >> /data/x; cat /data/x"); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
			if err := sb.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
