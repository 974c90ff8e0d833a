package docker

import (
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"github.com/moby/moby/api/types/container"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/sandbox"
)

// Name is the name of this backend.
const Name = "docker"

// DefaultImage is the image of sandboxes if neither the spec nor the options name one.
const DefaultImage = "python:3.12-slim"

// Pull decides when an image is pulled from its registry.
type Pull string

// Values of Pull.
const (
	PullMissing Pull = "missing" // the Docker engine does not have the image
	PullAlways  Pull = "always"
	PullNever   Pull = "never"
)

// RuntimeAuto selects the runtime with the strongest isolation that the Docker engine has.
const RuntimeAuto = dockerengine.RuntimeAuto

// Options selects the Docker engine and describes its sandboxes. The zero Options selects the engine that the docker
// command would use, and the strictest profile.
type Options struct {
	// Host is the address of the Docker engine: unix://, tcp://, npipe:// or ssh://. Empty: DOCKER_HOST, else the
	// context.
	Host string
	// Context is the name of a context of the docker command. Empty: DOCKER_CONTEXT, else the current context of the
	// docker command.
	Context string
	// Image is the image of sandboxes whose spec has no image. Empty: DefaultImage.
	Image string
	// Pull decides when images are pulled. Empty: PullMissing.
	Pull Pull
	// Runtime is the name of an OCI runtime as configured in the Docker engine, such as runsc. Empty: the engine's
	// default. RuntimeAuto: a runtime with its own kernel if the engine has one, else the default.
	Runtime string
	// Network is the name of the Docker network that sandboxes join. Nothing filters it. Empty: no network; sandboxes
	// connect through the guest, as their policy allows. Any other value is refused in production.
	Network string
	// Egress is the operator's part of the network policies of sandboxes.
	Egress sandbox.NetworkOptions
	// UnsafeHostNetwork allows the network "host". Sandboxes can then reach everything that listens on the machine of
	// the Docker engine. Never use it in production.
	UnsafeHostNetwork bool
	// UnsafeRoot allows specs whose user is root or in root's group. Such code is root on the machine of the Docker
	// engine if it escapes. The reported isolation of all sandboxes is one level lower. Never use it in production.
	UnsafeRoot bool
	// UnlimitedDisk allows a writable root where the Docker engine cannot limit its size. It also allows
	// volumes (CreateVolume), whose size the engine never limits. Code can then fill the disk of the Docker engine's
	// machine.
	UnlimitedDisk bool
	// Volumes are named volumes of the Docker engine that all sandboxes mount.
	Volumes []Volume
	// HostConfig overrides our HostConfig of the container. It is JSON of the Docker API. Its mounts are added to
	// ours. We cannot guarantee what it loosens, so the reported isolation is one level lower; it is none if the
	// container is privileged or shares a namespace with the host. HostConfig may not set the runtime or hide the
	// guest.
	HostConfig json.RawMessage
	// UnsafeHostConfig allows specs to have a host config of their own, which overrides this one. The reported
	// isolation of all sandboxes is one level lower. Therefore a spec may not set what would reduce the isolation to
	// none. Never use it in production.
	UnsafeHostConfig bool
	// AllowMounts are host directories that may be mounted, with everything below them, although the rules for mounts
	// refuse a parent directory, such as /root.
	AllowMounts []string
	// Instance separates the sandboxes of several servers on one Docker engine: a server never touches the sandboxes
	// of another instance. Empty: the instance of this user on this machine.
	Instance string
	// Dir is the directory of the notes, which record the owner process of each sandbox. Empty: our directory below
	// the XDG data directory.
	Dir string
	// GuestPath is the guest's binary for the architecture of the Docker engine. Empty: the binary bundled with this
	// program.
	GuestPath string
	// Progress receives the progress of image pulls. total is 0 while it is unknown.
	Progress func(what string, done, total int64)
}

// Volume is a named volume of the Docker engine to mount in a sandbox.
type Volume = sandbox.Volume

// Paths inside the sandbox, besides sandbox.DefaultHome.
const (
	ownDir      = "/.recluse"
	guestDir    = ownDir + "/bin"
	stateDir    = ownDir + "/run"
	archivePath = ownDir + "/snapshot.tar"
)

// bridgeUID is the user ID of bridges, unless code runs with this ID. It owns no files, and code in the sandbox
// cannot switch to it.
const bridgeUID = v1.DefaultUID + 1

const (
	// guestThreads is the number of threads that the guest starts with. Docker's limit of processes counts threads
	// too.
	guestThreads = 24
	// processReserve is added to the limit of processes for the guest, nannies and bridges.
	processReserve = 96
	// defaultOOMScore makes the host's kernel prefer processes that code has started over the guest.
	defaultOOMScore = 500
	// cpuPeriod is the period of CPU quotas in microseconds. It is the default of Linux.
	cpuPeriod = 100_000
)

// Timing.
const (
	removalWait  = 250 * time.Millisecond // how long to wait for the event that a killed container was also removed
	newsWait     = 3 * time.Second        // how long to wait for events about a sandbox whose stream was closed
	engineTries  = 4                      // attempts to reach the Docker engine before a sandbox counts as lost
	enginePause  = 300 * time.Millisecond // pause between these attempts
	oomFreshness = 2 * time.Second        // longest time between an OOM kill and the exit of the container that it caused
	// how long Health waits for the trial sandbox; a slower engine is reported as slow, not as unhealthy
	trialWait  = time.Second
	trialLimit = time.Minute // when an unfinished trial counts as failed
)

var (
	goodID       = regexp.MustCompile(`^d-[a-z0-9]{12}$`)
	goodSnapshot = regexp.MustCompile(`^s-[a-z0-9]{12}$`)
)

// check rejects invalid options.
func (o Options) check() error {
	bad := func(format string, args ...any) error {
		return &v1.Error{Code: v1.CodeInvalidSpec, Op: "check docker options", Message: fmt.Sprintf(format, args...)}
	}
	switch o.Pull {
	case PullMissing, PullAlways, PullNever:
	default:
		return bad("invalid pull policy %q: it must be one of missing, always, never", o.Pull)
	}
	if o.Instance != "" && !backendkit.ValidName(o.Instance) {
		return bad("invalid instance name %q", o.Instance)
	}
	if err := (sandbox.Spec{Volumes: o.Volumes}).WithDefaults().Check(); err != nil {
		return err
	}
	hc, err := o.hostConfig()
	if err == nil {
		err = checkHostConfig(hc)
	}
	if err != nil {
		return err
	}
	forbidden := ""
	if !o.filtered() {
		forbidden = fmt.Sprintf("the network %q of the Docker engine, which nothing filters", o.network())
	}
	err = backendkit.RefuseInProduction("check docker options", forbidden, "remove docker.network, and give sandboxes a network policy")
	if err != nil || !container.NetworkMode(o.network()).IsHost() || o.UnsafeHostNetwork {
		return err
	}
	return &v1.Error{
		Code:    v1.CodeConsentMissing,
		Op:      "check docker options",
		Message: "sandboxes in the host's network can reach everything that listens on the Docker engine's machine",
		Remedy:  "use the network bridge, or set docker.unsafe_host_network",
	}
}

// SpecOptions are the options of this backend for one sandbox: the value of sandbox.Spec.Options[Name].
type SpecOptions struct {
	// HostConfig overrides our HostConfig of the container, and Options.HostConfig. We cannot guarantee what it
	// loosens, so it requires Options.UnsafeHostConfig.
	HostConfig json.RawMessage `json:"host_config,omitempty" flag:"host-config" value:"JSON" backend:"docker" doc:"HostConfig of the Docker API that overrides ours; requires docker.unsafe_host_config"`
	// OOMScoreAdj is the oom_score_adj of commands, from 0 to 1000. The higher it is, the sooner the host's kernel
	// kills them when memory is short. At 0, the guest is as likely to be killed. Interpreters never have more than
	// commands, because they have state to lose. Nil: 500.
	OOMScoreAdj *int `json:"oom_score_adj,omitempty" flag:"oom-score-adj" backend:"docker" doc:"oom_score_adj of commands, 0 to 1000: higher is killed sooner; docker with runc only (default 500)"`
}

// Apply stores the options in a spec. The zero SpecOptions leave the spec unchanged.
func (o SpecOptions) Apply(spec *sandbox.Spec) error {
	if len(o.HostConfig) == 0 && o.OOMScoreAdj == nil {
		return nil
	}
	text, err := json.Marshal(o)
	if err != nil {
		return &v1.Error{
			Code:    v1.CodeInvalidSpec,
			Op:      "check spec",
			Message: "invalid JSON in the host config",
			Err:     err,
		}
	}
	if spec.Options == nil {
		spec.Options = map[string]json.RawMessage{}
	}
	spec.Options[Name] = text
	return nil
}

// specOptions decodes and checks the options of a spec.
func specOptions(spec sandbox.Spec) (SpecOptions, error) {
	var o SpecOptions
	if err := backendkit.DecodeOptions(spec, Name, &o); err != nil {
		return o, err
	}
	if s := o.OOMScoreAdj; s != nil && (*s < 0 || *s > 1000) {
		return o, &v1.Error{
			Code:    v1.CodeInvalidSpec,
			Op:      "check spec",
			Message: fmt.Sprintf("invalid oom_score_adj %d: it must be between 0 and 1000", *s),
		}
	}
	return o, nil
}
