//go:build linux

package main

import (
	"reflect"
	"strings"
	"sync"
	"unsafe"

	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/usage"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/specutils"
)

// The writable layer of a root is a tmpfs whose pages are in a file on disk: gVisor's overlay of the root with a
// private memory file. This file adds what gVisor lacks: a limit of the number of files, and pages that do not count as
// memory.

// boot is gVisor's command with a flag that also takes a limit of files: the size of an overlay may be followed by
// ;nr_inodes=N. gVisor passes the size on as an option of the tmpfs, but separates mounts by commas.
type boot struct{ *sentrycmd.Boot }

const mountConfsFlag = "gofer-mount-confs"

// SetFlags implements subcommands.Command.SetFlags.
func (b boot) SetFlags(f *flag.FlagSet) {
	b.Boot.SetFlags(f)
	confs := f.Lookup(mountConfsFlag)
	confs.Value = mountConfs{confs.Value.(*specutils.GoferMountConfFlags)}
}

// mountConfs translates the options of a tmpfs in gofer mount configurations. String returns what Set accepts, because
// the command starts itself again with its flags.
type mountConfs struct {
	confs *specutils.GoferMountConfFlags
}

func (m mountConfs) Get() any { return m.confs.Get() }

func (m mountConfs) Set(s string) error {
	err := m.confs.Set(s)
	for i := range *m.confs {
		(*m.confs)[i].Size = strings.ReplaceAll((*m.confs)[i].Size, ";", ",")
	}
	return err
}

func (m mountConfs) String() string {
	if m.confs == nil {
		return ""
	}
	var all []string
	for _, c := range *m.confs {
		c.Size = strings.ReplaceAll(c.Size, ",", ";")
		all = append(all, c.String())
	}
	return strings.Join(all, ",")
}

// disk is the memory file of the writable layer.
var disk struct {
	once sync.Once
	file *pgalloc.MemoryFile // nil: the root is read-only
}

// findDisk finds the memory file of the writable layer, once, and stops counting its pages as memory. Before that, its
// pages are counted only after a restore.
func findDisk(k *kernel.Kernel) {
	disk.once.Do(func() {
		ctx := k.SupervisorContext()
		for _, fs := range k.VFS().GetFilesystems() {
			if f := tmpfs.MemoryFileOf(fs); f != nil && f.IsDiskBacked() {
				disk.file = f
			}
			fs.DecRef(ctx)
		}
		if disk.file != nil {
			exempt(disk.file)
		}
	})
}

// exempt sets an option of a memory file that gVisor has, but does not set for the files of overlays.
func exempt(f *pgalloc.MemoryFile) {
	v := reflect.ValueOf(f).Elem()
	field(field(v, "opts"), "DisableMemoryAccounting").SetBool(true)
	if counted := field(v, "knownCommittedBytes").Uint(); counted > 0 {
		usage.MemoryAccounting.Dec(counted, usage.Tmpfs, 0)
	}
}

// field returns a field of a struct that gVisor does not export. A change of gVisor's types ends the sandbox at once.
func field(v reflect.Value, name string) reflect.Value {
	f := v.FieldByName(name)
	return reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
}

// commitAll marks all pages of a memory file as in use. A checkpoint reads every page that is not marked, to leave out
// pages of zeros, and thus all that was written since the last one. With the disk copied as a whole, that is in vain,
// and takes long if the pages are no longer in the host's cache.
func commitAll(f *pgalloc.MemoryFile) {
	v := reflect.ValueOf(f).Elem()
	mu := field(v, "mu").Addr().Interface().(sync.Locker)
	mu.Lock()
	defer mu.Unlock()
	known := field(v, "knownCommittedBytes")
	segment := field(v, "memAcct").Addr().MethodByName("FirstSegment").Call(nil)[0]
	for segment.MethodByName("Ok").Call(nil)[0].Bool() {
		info := segment.MethodByName("ValuePtr").Call(nil)[0].Elem()
		committed := field(info, "knownCommitted")
		if !committed.Bool() && !field(info, "wasteOrReleasing").Bool() {
			committed.SetBool(true)
			field(info, "commitSeq").SetUint(0)
			known.SetUint(known.Uint() + segment.MethodByName("Range").Call(nil)[0].Interface().(memmap.FileRange).Length())
		}
		segment = segment.MethodByName("NextSegment").Call(nil)[0]
	}
}

// exempting returns a replacement for sysinfo, which the guest calls before it looks at anything else.
func exempting(fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		findDisk(t.Kernel())
		return fn(t, number, args)
	}
}

// committing returns a replacement for sync, which the guest calls before a snapshot.
func committing(fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		findDisk(t.Kernel())
		if disk.file != nil && ofGuest(t) {
			if size, err := disk.file.TotalUsage(); err == nil && size >= largeDisk {
				commitAll(disk.file)
			}
		}
		return fn(t, number, args)
	}
}
