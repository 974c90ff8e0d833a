package main

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/internal/image"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/docker"
	"github.com/recluse-dev/recluse/sandbox/vm"
)

// backendFlags are the flags that select a backend. Flags that are not given keep the configured values.
type backendFlags struct {
	Host v1.RunHost
	Pull string `flag:"pull" scope:"server" backend:"docker" enum:"missing,always,never" doc:"when docker pulls an image (default as configured)"`
	// AllowEmulation is a flag of the program that makes the machine: a server uses its own configuration.
	AllowEmulation bool `flag:"allow-emulation" scope:"server" backend:"vm" doc:"allow emulated virtual machines, which are slow and isolate like a container at most"`
}

func (b *backendFlags) options() []option { return optionsOf(b) }

func (b *backendFlags) register(f *pflag.FlagSet) {
	for _, o := range b.options() {
		o.register(f, groupBackend)
	}
}

// requirements returns the requirements for a backend, from flags and configuration.
func (b *backendFlags) requirements(a *app) (backend.Requirements, error) {
	cfg, err := a.config()
	if err != nil {
		return backend.Requirements{}, err
	}
	if b.Pull != "" {
		cfg.Docker.Pull = b.Pull
	}
	cfg.VM.AllowEmulation = cfg.VM.AllowEmulation || b.AllowEmulation
	c := cfg.Backend
	req := backend.Requirements{
		Order:          c.Order,
		AllowNone:      c.AllowNoIsolation,
		AllowContainer: c.AllowContainer,
		Logger:         a.logger(),
	}
	if err := req.MinIsolation.UnmarshalText([]byte(c.MinIsolation)); err != nil {
		return req, err
	}
	if req, err = requirementsOf(req, b.Host); err != nil {
		return req, err
	}
	names, monitor := vm.ByMonitor(req.Order)
	if monitor != "" {
		cfg.VM.Monitor = monitor
	}
	req.Order = names
	return req, nil
}

// requirementsOf returns the configured requirements with those that a caller has set replaced.
func requirementsOf(req backend.Requirements, h v1.RunHost) (backend.Requirements, error) {
	if len(h.Backends) > 0 {
		req.Order = h.Backends
	}
	if h.AllowNoIsolation != nil {
		req.AllowNone = *h.AllowNoIsolation
	}
	if h.AllowContainer != nil {
		req.AllowContainer = *h.AllowContainer
	}
	if h.MinIsolation == "" {
		return req, nil
	}
	if err := req.MinIsolation.UnmarshalText([]byte(h.MinIsolation)); err != nil {
		return req, &v1.Error{Code: v1.CodeInvalidRequest, Op: "select backend", Message: err.Error()}
	}
	return req, nil
}

// sandboxFlags are the flags that describe a sandbox and select its backend. The tags of sandbox.Spec and
// docker.SpecOptions declare them.
type sandboxFlags struct {
	backendFlags
	sandbox sandbox.Spec
	docker  docker.SpecOptions

	flags *pflag.FlagSet
}

func (s *sandboxFlags) options() []option {
	return append(s.backendFlags.options(), optionsOf(&s.sandbox, &s.docker)...)
}

func (s *sandboxFlags) register(f *pflag.FlagSet) {
	s.flags = f
	s.backendFlags.register(f)
	for _, o := range optionsOf(&s.sandbox, &s.docker) {
		o.register(f, groupSandbox)
	}
	for _, o := range optionsOf(&s.sandbox.Network) {
		setGroup(f, groupNetwork, o.name())
	}
	for _, o := range optionsOf(&config.Default().Limits) {
		f.Lookup(o.name()).DefValue = o.shown()
		setGroup(f, groupLimits, o.name())
	}
}

// given returns the name of a flag that was given and has one of these scopes, or "". Flags without a scope describe
// the sandbox itself.
func (s *sandboxFlags) given(scopes ...string) string {
	for _, o := range s.options() {
		if slices.Contains(scopes, o.scope()) && s.flags.Changed(o.name()) {
			return o.name()
		}
	}
	return ""
}

// spec returns the spec that flags and configuration describe. Its paths are absolute, because a server has another
// working directory. With client.url they are paths of the server's machine, and relative ones are refused.
func (s *sandboxFlags) spec(a *app) (sandbox.Spec, error) {
	spec := s.sandbox
	cfg, err := a.config()
	if err != nil {
		return spec, err
	}
	absolute := func(flag, path string) (string, error) {
		if cfg.Client.URL != "" && !filepath.IsAbs(path) {
			return "", usage(
				"--%s %s: relative path; with client.url, give an absolute path of the server's machine",
				flag,
				path,
			)
		}
		return filepath.Abs(path)
	}
	spec.Limits = spec.Limits.Over(cfg.SandboxLimits())
	spec.Sudo = spec.Sudo || cfg.Session.Sudo
	if spec.RootFS != "" {
		if spec.RootFS, err = absolute("rootfs", spec.RootFS); err != nil {
			return spec, err
		}
	}
	if spec.Image, err = image.Absolute(spec.Image); err != nil {
		return spec, err
	}
	spec.Mounts = slices.Clone(spec.Mounts)
	for i, m := range spec.Mounts {
		if spec.Mounts[i].Host, err = absolute("mount", m.Host); err != nil {
			return spec, err
		}
	}
	return spec, s.docker.Apply(&spec)
}

// host returns the flags about sandboxes and backends, for runs in the server; nil if none is given.
func (s *sandboxFlags) host(a *app) (*client.RunHost, error) {
	if s.Pull != "" {
		return nil, usage("--pull: runs use the configuration of their server; see recluse config show")
	}
	h := s.Host
	if s.given("", "command") != "" {
		spec, err := s.spec(a)
		if err != nil {
			return nil, err
		}
		h.Spec = &spec
	}
	if reflect.ValueOf(h).IsZero() {
		return nil, nil
	}
	return &h, nil
}

// timeout returns the timeout of a command. Zero means that the flag was not given: there is no limit.
func timeout(d v1.Duration) time.Duration {
	if d == 0 {
		return v1.NoLimit
	}
	return d.Std()
}

// labelFlags is a flag for labels, each given as K=V.
type labelFlags map[string]string

// Set implements pflag.Value.
func (l *labelFlags) Set(text string) error {
	k, v, ok := strings.Cut(text, "=")
	if !ok || k == "" {
		return fmt.Errorf("invalid label %q: want K=V", text)
	}
	if *l == nil {
		*l = labelFlags{}
	}
	(*l)[k] = v
	return nil
}

// String implements pflag.Value.
func (l *labelFlags) String() string { return pairs(*l) }

// Type implements pflag.Value.
func (*labelFlags) Type() string { return "K=V" }
