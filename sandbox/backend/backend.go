// Package backend selects a backend, and declares the interfaces that a backend may implement.
//
// # Selecting a backend
//
// [Select] probes several backends and returns the first that works and meets the [Requirements]. It
// also reports why it did not choose the others. It never chooses a backend without isolation unless
// the caller allows that.
//
// # Writing a backend
//
// A backend implements [sandbox.Backend]. It starts the guest (cmd/recluse-guest) inside a sandbox
// and returns a [sandbox.Machine], which has a byte stream to the guest. Cells, commands and files
// use that stream, so a backend does not know about them. A backend may also implement [Pauser],
// [Labeler], [Sharer], [QuickProber], [DiskUser] and [Surveyor], and its machines [IncidentReporter],
// [FreezeReporter] and [CostReporter]. A backend rejects a request that it cannot fulfil with [NotSupported], and never
// ignores it.
//
// Package internal/backendkit has the code that most backends share. Package sandbox/sandboxtest is
// the feature suite that every backend must pass.
//
// The interfaces Backend and Machine are in package sandbox, because sandbox.Open uses them.
package backend

import (
	"context"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// Pauser is a backend that can freeze a sandbox in memory.
type Pauser interface {
	// Pause freezes all processes inside until Resume. Pausing a paused sandbox is not an error.
	Pause(ctx context.Context, id string) error
	// Resume resumes a paused sandbox. It does nothing if the sandbox runs.
	Resume(ctx context.Context, id string) error
}

// Labeler is a backend that can change the labels of an existing sandbox. A sandbox of a pool, for example, gets the
// labels of its session when it leaves the pool.
type Labeler interface {
	// Label sets the labels that List returns.
	Label(ctx context.Context, id string, labels map[string]string) error
}

// Sharer is a backend that can show single files of the host inside, without a copy if the file systems allow that.
type Sharer interface {
	// Share makes a regular file of the host readable inside, as name below sandbox.SharedDir. It uses a link if
	// possible, else a copy on the host's disk. The file must not be changed in place while the sandbox exists.
	Share(ctx context.Context, id, file, name string) error
}

// QuickProber is a backend that can report its health without making a sandbox.
type QuickProber interface {
	// QuickHealth is Health without a trial sandbox.
	QuickHealth(ctx context.Context) sandbox.Health
}

// Saver is a backend that reports the progress of snapshots.
type Saver interface {
	// Saving returns how many bytes of a sandbox's disk the snapshot in progress has copied, and how many there are. A
	// total of zero means that none is being copied.
	Saving(id string) (done, total int64)
}

// DiskUser is a backend that keeps files on this machine.
type DiskUser interface {
	// DiskUse returns what its files take.
	DiskUse(ctx context.Context) ([]v1.DiskUse, error)
	// Reclaim removes files that nothing needs, and returns them.
	Reclaim(ctx context.Context) ([]v1.DiskUse, error)
}

// IncidentReporter is a machine that notices incidents.
type IncidentReporter interface {
	// OnIncident sets the function that receives incidents, one at a time. Incidents that happened before the call
	// are sent to the function at once.
	OnIncident(f func(sandbox.Incident))
}

// FreezeReporter is a machine that notices when another program pauses its sandbox.
type FreezeReporter interface {
	// Frozen returns the error for calls that begin now, or nil if the sandbox is not paused.
	Frozen() error
}

// CostReporter is a machine that costs money.
type CostReporter interface {
	// Cost returns what it has cost until now, in dollars, estimated.
	Cost() float64
}

// Surveyor is a backend that can list the sandboxes of other programs and servers, including those of a server that
// has lost its records. List, in contrast, only returns the sandboxes of this instance.
type Surveyor interface {
	// Survey lists the sandboxes of all programs of this user, as far as this backend can end them.
	Survey(ctx context.Context) ([]Surveyed, error)
	// EndUnheld ends a sandbox that Survey returned. If a program holds the sandbox, the error has the code busy.
	EndUnheld(ctx context.Context, id string) error
}

// VolumeKeeper is a backend that keeps volumes: files that outlive sandboxes, and appear inside at a path of the spec.
// Names of volumes in a spec belong to the tenant "default", unless they have the form TENANT/NAME. A sandbox holds the
// volumes of its spec until it ends, however it ends: one of them may write to a volume that is not shared, and any
// number may read.
type VolumeKeeper interface {
	// CreateVolume makes a volume; an owner without a tenant is "default". It calls admit with all volumes of the data
	// directory, and makes none if that fails; admit may be nil.
	CreateVolume(
		ctx context.Context, o sandbox.VolumeOwner, v sandbox.NewVolume, admit func([]sandbox.VolumeInfo) error,
	) (sandbox.VolumeInfo, error)
	// Volumes lists the volumes of this backend that a tenant owns, or all if it is empty. It includes volumes of the
	// data directory whose record cannot be read: each keeper of the directory lists and may delete them.
	Volumes(ctx context.Context, tenant string) ([]sandbox.VolumeInfo, error)
	// DeleteVolume removes a volume, TENANT/NAME, with its files. If a sandbox uses it, the error has the code
	// volume_busy.
	DeleteVolume(ctx context.Context, ref string) error
	// OtherVolumes reports whether a name without a tenant names a volume that is not in the data directory, such as one
	// that people made in a Docker engine.
	OtherVolumes() bool
	// VolumeStorage returns the directory of the volumes and their records, and why their size cannot be limited; nil: it
	// can.
	VolumeStorage() (dir string, unlimited error)
	// CollectVolumes removes what killed programs left of volumes, and returns the number of volumes.
	CollectVolumes(ctx context.Context) (int, error)
}

// Surveyed is a sandbox and its owner.
type Surveyed struct {
	sandbox.Info
	Owner int  // pid of the program that must end the sandbox
	Held  bool // the owner runs or a program is attached; also set if that cannot be known, e.g. of another machine
}

// NotSupported returns the error of a backend that does not support op.
func NotSupported(backend, op, remedy string) error {
	return &v1.Error{
		Code:    v1.CodeNotSupported,
		Op:      op,
		Message: "the " + backend + " backend does not support this",
		Remedy:  remedy,
	}
}
