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
// Ids belong to threads in Linux (libc and Go only pretend otherwise), so one thread may act for the user while the rest
// of the guest stays root. Only the effective ids change: the real and saved ones stay 0, so the user's processes may
// neither signal nor trace the thread, RLIMIT_NPROC counts nothing, and the way back is open. Leaving effective uid 0
// drops all effective capabilities, CAP_DAC_OVERRIDE with them; coming back restores them. setfsuid would be meant for
// this, but gVisor does not have it.
//
// Each switch runs on a goroutine of its own, locked to its thread. Go makes no thread from a locked one, so the ids
// do not spread, and a thread whose ids could not be restored ends with its goroutine instead of going back to the
// scheduler. There is no pool that slow calls could exhaust.

// ids are the credentials that decide about file access.
type ids struct {
	uid, gid int
	groups   []uint32
}

// ownIDs returns the credentials of the calling process.
func ownIDs() ids {
	own := ids{uid: os.Geteuid(), gid: os.Getegid()}
	groups, _ := os.Getgroups() // fails only for an array that is too small
	for _, g := range groups {
		own.groups = append(own.groups, uint32(g))
	}
	return own
}

// begin is asUser at the beginning of an operation: it does nothing once ctx has ended.
func (f *FS) begin(ctx context.Context, op func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return f.asUser(op)
}

// asUser runs op with the user's file permissions. op must not start goroutines or processes, nor call back to the caller.
func (f *FS) asUser(op func() error) error {
	if !f.opts.SwitchUser {
		return op()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := f.user.assume()
		if err == nil {
			err = op()
		}
		if f.resume() == nil {
			runtime.UnlockOSThread()
		}
		// Otherwise the goroutine ends while locked, and the runtime ends the thread.
		done <- err
	}()
	return <-done
}

// assume gives the calling thread u's effective ids. The thread must have CAP_SETUID and CAP_SETGID.
func (u ids) assume() error {
	if err := u.setGroups(); err != nil {
		return err
	}
	return u.setIDs(unix.SYS_SETRESGID, unix.SYS_SETRESUID, u.gid, u.uid)
}

// resume gives the calling thread u's effective ids back: first the uid, for the rest needs its capabilities.
func (u ids) resume() error {
	if err := u.setIDs(unix.SYS_SETRESUID, unix.SYS_SETRESGID, u.uid, u.gid); err != nil {
		return err
	}
	return u.setGroups()
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
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(u.groups))), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
