//go:build linux

package files

import (
	"context"
	"os"
	"runtime"
	"unsafe" // for the pointer that setgroups takes

	"golang.org/x/sys/unix"
)

// The user switch.
//
// In Linux, ids belong to threads (libc and Go set them for all threads of a process), so one thread can act for the
// user while the rest of the guest stays root. Only the effective ids change. The real and saved ids stay 0, so the
// user's processes may neither signal nor trace the thread, RLIMIT_NPROC does not apply, and the thread can switch
// back. Leaving effective uid 0 drops all effective capabilities, including CAP_DAC_OVERRIDE; switching back restores
// them. setfsuid exists for this purpose, but gVisor does not support it.
//
// Each switch runs on its own goroutine, locked to its thread. Go does not start threads from a locked thread, so the
// ids do not spread. A thread whose ids could not be restored ends with its goroutine instead of returning to the
// scheduler. There is no pool of threads that slow calls could exhaust.

// ids are the credentials that determine file access.
type ids struct {
	uid, gid int
	groups   []uint32
}

// ownIDs returns the credentials of the calling process.
func ownIDs() ids {
	own := ids{uid: os.Geteuid(), gid: os.Getegid()}
	groups, _ := os.Getgroups() // fails only if its array is too small
	for _, g := range groups {
		own.groups = append(own.groups, uint32(g))
	}
	return own
}

// begin is asUser for the first step of an operation: it returns the error of ctx if ctx has ended.
func (f *FS) begin(ctx context.Context, op func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return f.asUser(op)
}

// asUser runs op with the file permissions of the user. op must not start goroutines or processes, and must not call
// functions of the caller.
func (f *FS) asUser(op func() error) error {
	if !f.opts.SwitchUser {
		return op()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := f.assume()
		if err == nil {
			err = op()
		}
		if f.resume() == nil {
			runtime.UnlockOSThread()
		}
		// Otherwise the goroutine ends while it is locked, and the runtime ends the thread.
		done <- err
	}()
	return <-done
}

// assume sets the effective ids of the calling thread to those of the user, and its effective capabilities to those
// that the user has for files.
func (f *FS) assume() error {
	if err := f.user.assume(); err != nil || f.opts.SetEffective == nil {
		return err
	}
	if f.user.uid == 0 {
		return f.opts.SetEffective(f.opts.ForRoot)
	}
	return f.opts.SetEffective(0)
}

// restore undoes assume. The capabilities come first, because changing ids needs them, and again in between, because
// leaving uid 0 drops them.
func (f *FS) restore(own ids) error {
	if f.opts.SetEffective == nil {
		return own.resume()
	}
	const all = ^uint64(0)
	if err := f.opts.SetEffective(all); err != nil {
		return err
	}
	if err := own.setUID(); err != nil {
		return err
	}
	if err := f.opts.SetEffective(all); err != nil {
		return err
	}
	return own.resume()
}

// assume sets the effective ids of the calling thread to u. The thread must have CAP_SETUID and CAP_SETGID.
func (u ids) assume() error {
	if err := u.setGroups(); err != nil {
		return err
	}
	return u.setIDs(unix.SYS_SETRESGID, unix.SYS_SETRESUID, u.gid, u.uid)
}

// resume sets the effective ids of the calling thread back to u. The uid comes first, because the other calls need its
// capabilities.
func (u ids) resume() error {
	if err := u.setIDs(unix.SYS_SETRESUID, unix.SYS_SETRESGID, u.uid, u.gid); err != nil {
		return err
	}
	return u.setGroups()
}

func (u ids) setUID() error {
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(u.uid), keep); errno != 0 {
		return errno
	}
	return nil
}

func (u ids) setIDs(first, second uintptr, a, b int) error {
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(first, keep, uintptr(a), keep); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(second, keep, uintptr(b), keep); errno != 0 {
		return errno
	}
	return nil
}

func (u ids) setGroups() error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS,
		uintptr(len(u.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(u.groups))), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
