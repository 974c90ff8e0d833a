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
	off := v.FieldByName("opts").FieldByName("DisableMemoryAccounting")
	(*reflect.NewAt(off.Type(), unsafe.Pointer(off.UnsafeAddr())).Interface().(*bool)) = true
	if counted := v.FieldByName("knownCommittedBytes").Uint(); counted > 0 {
		usage.MemoryAccounting.Dec(counted, usage.Tmpfs, 0)
	}
}

// exempting returns a replacement for sysinfo, which the guest calls before it looks at anything else.
func exempting(fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		findDisk(t.Kernel())
		return fn(t, number, args)
	}
}

// committing returns a replacement for sync, which the guest calls before a snapshot. It finds the pages of the disk
// that are in use. A checkpoint reads every page that is not yet known to be in use.
func committing(fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		findDisk(t.Kernel())
		if disk.file != nil {
			_ = disk.file.UpdateUsage(nil) // the checkpoint finds the rest
		}
		return fn(t, number, args)
	}
}
