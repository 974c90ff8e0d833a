package v1

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Volume shows a volume inside the sandbox.
type Volume struct {
	Name     string `json:"name" doc:"name of the volume"`
	Path     string `json:"path" doc:"absolute path inside"`
	Writable bool   `json:"writable,omitempty" doc:"allow writes; otherwise read-only"`
}

// String formats the volume for people.
func (v Volume) String() string { return v.Name + " on " + v.Path }

// DefaultVolumeSize is the size of a volume that is created without one.
const DefaultVolumeSize = 10 << 30

// MinVolumeSize is the smallest size of a volume.
const MinVolumeSize = 8 << 20

// volumeFileSize is the size per file from which the default of NewVolume.Files follows.
const volumeFileSize = 16 << 10

// NewVolume describes a volume to create.
type NewVolume struct {
	Name string `json:"name" doc:"name of the volume: letters, digits and - _ ., beginning with a letter or digit"`
	// Size is in bytes.
	Size   int64 `json:"size,omitempty" minimum:"0" doc:"what can be written to it, in bytes; 0: 10 GiB"`
	Files  int64 `json:"files,omitempty" minimum:"0" doc:"maximum number of files and directories; 0: one per 16 KiB of the size"`
	Shared bool  `json:"shared,omitempty" doc:"several sandboxes may write to it at the same time; otherwise one"`
	// Backend is the backend whose sandboxes use the volume. Empty: the one that a session without a backend gets.
	Backend string `json:"backend,omitempty" doc:"backend whose sandboxes use it; left out: that of new sessions"`
}

// VolumeOwner owns a volume.
type VolumeOwner struct {
	Tenant string `json:"tenant" doc:"tenant that owns it"`
	APIKey string `json:"api_key,omitempty" doc:"id of the API key that created it"`
}

// VolumeInfo describes a volume.
type VolumeInfo struct {
	VolumeOwner
	Name      string      `json:"name" doc:"name of the volume"`
	Backend   string      `json:"backend" doc:"backend that made it"`
	Size      int64       `json:"size" doc:"what can be written to it, in bytes"`
	Files     int64       `json:"files" doc:"maximum number of files and directories"`
	DiskLimit bool        `json:"disk_limit" doc:"size and files are enforced; otherwise the operator has allowed a volume without limits"`
	Shared    bool        `json:"shared,omitempty" doc:"several sandboxes may write to it at the same time"`
	Disk      *int64      `json:"disk,omitempty" doc:"what it takes on the disk of the host, in bytes; left out: unknown"`
	Created   time.Time   `json:"created" doc:"when it was created"`
	Uses      []VolumeUse `json:"uses,omitempty" doc:"sandboxes that use it now"`

	Unreadable bool `json:"unreadable,omitempty" doc:"its record cannot be read, such as after damage to the disk: it can only be deleted, and its backend, size and other properties are unknown"`
}

// VolumeUse is a sandbox that uses a volume.
type VolumeUse struct {
	Session  string    `json:"session,omitempty" doc:"session of the sandbox"`
	Sandbox  string    `json:"sandbox,omitempty" doc:"id of the sandbox; left out: the session has none now, such as a hibernated one"`
	Writable bool      `json:"writable,omitempty" doc:"it may write"`
	Since    time.Time `json:"since,omitzero" doc:"when it began"`
}

// VolumePage is one page of volumes.
type VolumePage struct {
	Volumes []VolumeInfo `json:"volumes" doc:"volumes, by name"`
	Next    string       `json:"next,omitempty" doc:"pass it as after to get the next page; left out on the last page"`
}

// WithDefaults returns v, with zero fields set to their defaults.
func (v NewVolume) WithDefaults() NewVolume {
	v.Size = cmp.Or(v.Size, DefaultVolumeSize)
	v.Files = cmp.Or(v.Files, max(1024, v.Size/volumeFileSize))
	return v
}

// Check returns an error for a volume that cannot exist.
//
// Preconditions: defaults are filled in.
func (v NewVolume) Check() error {
	bad := func(format string, args ...any) error {
		return &Error{Code: CodeInvalidRequest, Op: "create volume", Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case !volumeName(v.Name, 128):
		return bad("invalid volume name %.140q: use 1 to 128 letters, digits and - _ ., beginning with a letter or digit",
			v.Name)
	case v.Size < MinVolumeSize:
		return bad("size of %s is below the minimum of %s", SizeText(v.Size), SizeText(MinVolumeSize))
	case v.Size > 16<<40:
		return bad("size of %s is above the maximum of 16 TiB", SizeText(v.Size))
	case v.Files < 16 || v.Files > v.Size/1024:
		return bad("%d files: a volume of %s can have 16 to %d", v.Files, SizeText(v.Size), v.Size/1024)
	}
	return nil
}

func volumeName(name string, longest int) bool {
	return isName(name, lower+upper+digits, lower+upper+digits+"_.-", longest)
}

// CheckVolumeRef returns an error unless ref is the name of a volume, or TENANT/NAME. Only programs that make sandboxes
// themselves can name a tenant; the server sets it for its callers.
func CheckVolumeRef(ref string) error {
	tenant, name, ok := strings.Cut(ref, "/")
	if !ok {
		tenant, name = "default", ref
	}
	if !volumeName(name, 255) || strings.Trim(tenant, ".") == "" ||
		!isName(tenant, lower+upper+digits+"_.-", lower+upper+digits+"_.-", 128) {
		return &Error{Code: CodeInvalidRequest, Op: "find volume", Message: fmt.Sprintf("invalid volume name %.140q", ref)}
	}
	return nil
}
