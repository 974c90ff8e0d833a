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

// Name is the backend's.
const Name = "docker"

// DefaultImage is what sandboxes are made from when nobody names an image.
const DefaultImage = "python:3.12-slim"

// Pull says when an image is fetched from its registry.
type Pull string

// When to pull.
const (
	PullMissing Pull = "missing" // when the engine does not have it
	PullAlways  Pull = "always"
	PullNever   Pull = "never"
)

// RuntimeAuto chooses the strongest runtime that the engine has.
const RuntimeAuto = dockerengine.RuntimeAuto

// Options says which engine to use and what its sandboxes are like. The zero Options is the engine that the docker command would use, and
// the strictest profile.
type Options struct {
	// Host is the engine's address: unix://, tcp://, npipe:// or ssh://. Empty: DOCKER_HOST, else the context.
	Host string
	// Context is the name of a context of the docker command. Empty: DOCKER_CONTEXT, else the one in use there.
	Context string
	// Image is the image of sandboxes whose spec names none; empty: DefaultImage.
	Image string
	// Pull is when images are fetched; empty: PullMissing.
	Pull Pull
	// Runtime is the engine's name for an OCI runtime, such as runsc; empty: the engine's default; RuntimeAuto: one with a kernel of its own
	// where the engine has it, else the default.
	Runtime string
	// Network is the engine's name for the network that sandboxes are in; empty: none at all.
	Network string
	// UnsafeHostNetwork allows the network "host", which shows everything that listens on the engine's machine. Never in production.
	UnsafeHostNetwork bool
	// UnsafeRoot allows specs whose user is root, or in root's group, which is then root on the engine's machine if it gets out. The isolation of
	// all sandboxes is reported a level lower. Never in production.
	UnsafeRoot bool
	// Volumes are named volumes of the engine to show inside.
	Volumes []Volume
	// HostConfig is laid over what the engine is told about the container, as JSON of the engine's API; its mounts are added to ours. Whatever it
	// loosens is no longer ours to promise, so the isolation is reported a level lower, and as none when the container is made privileged or
	// gets a namespace of the host. It may not name the runtime, nor hide the guest.
	HostConfig json.RawMessage
	// UnsafeHostConfig allows specs to have such a host config of their own, laid over this one. The isolation of all sandboxes is reported a level
	// lower for it, so a spec may not ask for what would leave none. Never in production.
	UnsafeHostConfig bool
	// AllowMounts are directories of the host that may be mounted, with what is below them, although the rules for mounts refuse a place
	// above them, such as /root.
	AllowMounts []string
	// Instance sets the sandboxes of several servers on one engine apart: none touches those of another. Empty: this user's on this machine.
	Instance string
	// Dir is where is noted which program answers for a sandbox; empty: our directory below the XDG data directory.
	Dir string
	// GuestPath is the guest's binary for the engine's architecture; empty: the one that came with this program.
	GuestPath string
	// Progress hears of the pulling of images; total is 0 while it is not known.
	Progress func(what string, done, total int64)
}

// Volume shows a named volume of the engine inside.
type Volume = sandbox.Volume

// Where things are inside, beside sandbox.DefaultHome.
const (
	ownDir      = "/.recluse"
	guestDir    = ownDir + "/bin"
	stateDir    = ownDir + "/run"
	archivePath = ownDir + "/snapshot.tar"
)

// bridgeUID is the user of bridges, unless code is that one. It owns nothing, and code in the sandbox cannot become it.
const bridgeUID = v1.DefaultUID + 1

const (
	// guestThreads is what the guest is born with, since the engine's limit of processes counts them too.
	guestThreads = 24
	// processReserve is what guest, nannies and bridges need above the limit of processes.
	processReserve = 96
	// defaultOOMScore makes the kernel choose what code has started, before the guest.
	defaultOOMScore = 500
	// cpuPeriod is the period of CPU quotas, in microseconds: the kernel's default.
	cpuPeriod = 100_000
)

// Timing, all in one place.
const (
	removalWait  = 250 * time.Millisecond // for the news that a killed container was removed as well
	newsWait     = 3 * time.Second        // for news about a sandbox whose stream was closed
	engineTries  = 4                      // to reach an engine again before a sandbox counts as lost
	enginePause  = 300 * time.Millisecond // between them
	oomFreshness = 2 * time.Second        // between a kill for memory and the death that it has caused
	trialWait    = time.Second            // for a sandbox to be made; an engine that needs longer is slow, not ill
	trialLimit   = time.Minute            // after which it is ill
)

var (
	goodID       = regexp.MustCompile(`^d-[a-z0-9]{12}$`)
	goodSnapshot = regexp.MustCompile(`^s-[a-z0-9]{12}$`)
)

// check refuses options that no engine could fulfil.
func (o Options) check() error {
	bad := func(format string, args ...any) error {
		return &v1.Error{Code: v1.CodeInvalidSpec, Op: "check docker options", Message: fmt.Sprintf(format, args...)}
	}
	switch o.Pull {
	case PullMissing, PullAlways, PullNever:
	default:
		return bad("pull is %q, and is one of missing, always, never", o.Pull)
	}
	if o.Instance != "" && !backendkit.ValidName(o.Instance) {
		return bad("instance %q is not a name", o.Instance)
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
	what := ""
	if container.NetworkMode(o.network()).IsHost() {
		what = "the host's network"
	}
	if err := backendkit.RefuseInProduction("check docker options", what, ""); err != nil || what == "" || o.UnsafeHostNetwork {
		return err
	}
	return &v1.Error{
		Code: v1.CodeConsentMissing, Op: "check docker options",
		Message: "the host's network shows everything that listens on the engine's machine",
		Remedy:  "use the network bridge, or allow it explicitly",
	}
}

// SpecOptions are this backend's options of a single sandbox: the value of sandbox.Spec.Options[Name].
type SpecOptions struct {
	// HostConfig is laid over what the engine is told about the sandbox, and over Options.HostConfig. What
	// it loosens nobody can promise any more, so it needs Options.UnsafeHostConfig.
	HostConfig json.RawMessage `json:"host_config,omitempty" flag:"host-config" value:"JSON" backend:"docker" doc:"HostConfig of docker's API to lay over what its engine is told; docker.unsafe_host_config allows it"`
	// OOMScoreAdj is the oom_score_adj of commands, from 0 to 1000. The higher, the sooner the host's kernel
	// kills them when memory is short; at 0 the guest itself is as likely to be chosen. Interpreters,
	// which have state to lose, never have more. Nil: 500.
	OOMScoreAdj *int `json:"oom_score_adj,omitempty" flag:"oom-score-adj" backend:"docker" doc:"how soon the kernel ends code when memory is short, from 0 to 1000; docker with runc only (default 500)"`
}

// Apply sets the options in a spec. The zero SpecOptions leave it as it is.
func (o SpecOptions) Apply(spec *sandbox.Spec) error {
	if len(o.HostConfig) == 0 && o.OOMScoreAdj == nil {
		return nil
	}
	text, err := json.Marshal(o)
	if err != nil {
		return &v1.Error{Code: v1.CodeInvalidSpec, Op: "check spec", Message: "the host config is not valid JSON", Err: err}
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
			Code: v1.CodeInvalidSpec, Op: "check spec", Message: fmt.Sprintf("oom_score_adj %d is not between 0 and 1000", *s),
		}
	}
	return o, nil
}
