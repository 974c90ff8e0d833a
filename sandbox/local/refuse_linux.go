package local

import (
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// refuse refuses everything that needs more than a plain process.
func refuse(spec sandbox.Spec) error {
	l, d := spec.Limits, sandbox.Limits{}.WithDefaults() // which cannot be told from limits that nobody set
	for _, c := range []struct {
		asked bool
		what  string
	}{
		{spec.Image != "", "use an image"},
		{spec.RootFS != "", "use a root file system"},
		{len(spec.Mounts) > 0, "mount directories"},
		{spec.Hostname != "", "set a host name"},
		{spec.User != "", "run code as another user"},
		{len(spec.Volumes) > 0, "show named volumes"},
		{spec.Options[Name] != nil, "take options in a spec"},
		{l.Memory != d.Memory, "limit memory"},
		{l.CPUs != d.CPUs, "limit cpus"},
		{l.Processes != d.Processes, "limit processes"},
		{l.Disk != d.Disk, "limit disk"},
		{l.OpenFiles != d.OpenFiles, "limit open files"},
	} {
		if c.asked {
			return backend.NotSupported(Name, c.what, "leave it out, or use another backend, such as gvisor")
		}
	}
	return nil
}
