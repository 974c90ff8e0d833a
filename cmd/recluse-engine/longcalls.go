//go:build linux

package main

import (
	"os"
	"slices"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	calls "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

const (
	// piece is the largest amount of memory that one step of a system call may fill.
	piece = 4 << 20
	// maxMessage is more than a pipe or a socket ever holds.
	maxMessage = 16 << 20
)

// splitLongCalls makes it possible to kill or stop a process in the middle of a system call that fills much memory.
// gVisor's kernel checks for signals only between calls. One read(2) of gigabytes filled the memory of the sandbox
// before the guest could react, and the whole sandbox was lost. Such calls are done in pieces. Living processes notice
// only two differences: a read or write may be short when memory is short, and other users of the file may access it
// between two pieces.
func splitLongCalls() {
	if !slices.Contains(os.Args, "boot") {
		return
	}
	for _, table := range []*kernel.SyscallTable{calls.AMD64, calls.ARM64} {
		for number, call := range table.Table {
			if fn := replacement(call.Name, call.Fn); fn != nil {
				call.Fn = fn
				table.Table[number] = call
			}
		}
		table.Init() // the table caches its functions
	}
}

// replacement returns the function that replaces a system call, or nil.
func replacement(name string, fn kernel.SyscallFn) kernel.SyscallFn {
	switch name {
	case "read":
		return splitBuffer(fn, transfer{file: true, short: true})
	case "write":
		return splitBuffer(fn, transfer{file: true})
	case "pread64", "pwrite64":
		return splitBuffer(fn, transfer{file: true, at: true})
	case "getrandom":
		return splitBuffer(fn, transfer{})
	case "readv":
		return splitBuffers(fn, transfer{one: calls.Read})
	case "writev":
		return splitBuffers(fn, transfer{one: calls.Write})
	case "preadv":
		return splitBuffers(fn, transfer{at: true, oneAt: calls.Pread64})
	case "pwritev":
		return splitBuffers(fn, transfer{at: true, oneAt: calls.Pwrite64})
	case "preadv2":
		return splitBuffers(fn, transfer{at: true, flags: true, one: calls.Read, oneAt: calls.Pread64})
	case "pwritev2":
		return splitBuffers(fn, transfer{at: true, flags: true, one: calls.Write, oneAt: calls.Pwrite64})
	case "fallocate":
		return allocate(fn)
	case "mmap":
		return withoutPopulate(fn)
	case "clone", "clone3", "fork":
		return throttled(fn, name)
	case "sysinfo":
		return exempting(fn)
	case "sync":
		return committing(fn)
	case "process_vm_readv", "process_vm_writev":
		return limitedCopy(fn)
	case "io_setup":
		// Requests are executed by a thread that no signal reaches. Programs can do without it, as they must on kernels
		// without it.
		return func(*kernel.Task, uintptr, arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			return 0, nil, linuxerr.ENOSYS
		}
	}
	return nil
}

// transfer describes the arguments of a call.
type transfer struct {
	file  bool // args[0] is a descriptor and args[1] the buffer; else args[0] is the buffer. Unused for several buffers
	at    bool // args[3] is an offset
	flags bool // args[5] are flags, and the offset -1 is the current position of the file
	short bool // if the call cannot be split, it may return less than requested; a write waits until all data is taken

	one, oneAt kernel.SyscallFn // the same call for one buffer
}

// stat returns type and size of the file with the descriptor args[0], or 0 if there is none.
func stat(t *kernel.Task, args arch.SyscallArguments) (kind uint16, size uint64) {
	file := t.GetFile(args[0].Int())
	if file == nil {
		return 0, 0
	}
	defer file.DecRef(t)
	s, err := file.Stat(t, vfs.StatOptions{Mask: linux.STATX_TYPE | linux.STATX_SIZE})
	if err != nil {
		return 0, 0
	}
	return s.Mode & linux.S_IFMT, s.Size
}

// splittable reports whether a call in pieces has the same result as a single call. On a pipe or a socket, the second
// piece would block, or be another message.
func splittable(kind uint16) bool { return kind == linux.S_IFREG || kind == linux.S_IFCHR }

// splitBuffer returns a replacement for a call with one buffer.
func splitBuffer(fn kernel.SyscallFn, x transfer) kernel.SyscallFn {
	buffer, size := 0, 1
	if x.file {
		buffer, size = 1, 2
	}
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if !x.file {
			// For files, a larger size is an error.
			args[size].Value = min(args[size].Value, uintptr(linux.MAX_RW_COUNT))
		}
		all := args[size].SizeT()
		if all <= piece || int(all) < 0 {
			return fn(t, number, args)
		}
		if x.file {
			if kind, _ := stat(t, args); !splittable(kind) {
				if x.short {
					args[size].Value = min(args[size].Value, maxMessage)
				}
				return fn(t, number, args)
			}
		}
		start := args[buffer].Pointer()
		end, ok := start.AddLength(uint64(all))
		if !ok {
			return fn(t, number, args)
		}
		return inPieces(
			t,
			[]hostarch.AddrRange{{Start: start, End: end}},
			func(at hostarch.Addr, n, done uintptr) (uintptr, *kernel.SyscallControl, error) {
				part := args
				part[buffer].Value, part[size].Value = uintptr(at), n
				if x.at {
					part[3].Value += done
				}
				return fn(t, number, part)
			},
		)
	}
}

// splitBuffers returns a replacement for readv and similar calls. args[1] is the address of the list of buffers,
// args[2] its length.
func splitBuffers(fn kernel.SyscallFn, x transfer) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		count := int(args[2].Int())
		if count <= 0 || count > linux.UIO_MAXIOV {
			return fn(t, number, args)
		}
		buffers, err := t.CopyInIovecsAsSlice(args[1].Pointer(), count)
		if err != nil || hostarch.AddrRangeSeqFromSlice(buffers).NumBytes() <= piece {
			return fn(t, number, args)
		}
		kind, _ := stat(t, args)
		offset := args[3].Int64()
		here := !x.at || x.flags && offset == -1
		flags := int32(0)
		if x.flags {
			flags = args[5].Int()
		}
		const sync = linux.RWF_DSYNC | linux.RWF_SYNC
		// Files reject unknown flags; devices ignore them.
		unusual := !here && offset < 0 || flags&^(linux.RWF_HIPRI|sync) != 0 && kind == linux.S_IFREG
		if unusual || !splittable(kind) {
			return fn(t, number, args)
		}
		n, control, err := inPieces(
			t,
			buffers,
			func(at hostarch.Addr, n, done uintptr) (uintptr, *kernel.SyscallControl, error) {
				part := arch.SyscallArguments{args[0], {Value: uintptr(at)}, {Value: n}, {Value: args[3].Value + done}}
				if here {
					return x.one(t, number, part)
				}
				return x.oneAt(t, number, part)
			},
		)
		if err == nil && flags&sync != 0 && kind == linux.S_IFREG {
			if _, _, err := calls.Fsync(t, number, arch.SyscallArguments{args[0]}); err != nil {
				return 0, nil, err
			}
		}
		return n, control, err
	}
}

// inPieces fills or writes buffers piece by piece. It stops when a piece is short, when the process is killed, or when
// it has a signal while memory is used up.
func inPieces(
	t *kernel.Task,
	buffers []hostarch.AddrRange,
	do func(at hostarch.Addr, n, done uintptr) (uintptr, *kernel.SyscallControl, error),
) (uintptr, *kernel.SyscallControl, error) {
	done, sinceYield := uintptr(0), uintptr(0)
	for _, b := range buffers {
		for at := b.Start; at < b.End; {
			want := min(uintptr(b.End-at), piece, uintptr(linux.MAX_RW_COUNT)-done)
			if want == 0 {
				return done, nil, nil
			}
			n, control, err := do(at, want, done)
			if control != nil || err != nil && done == 0 {
				return n, control, err
			}
			done, sinceYield, at = done+n, sinceYield+n, at+hostarch.Addr(n)
			if err != nil || n < want {
				return done, nil, nil //nolint:nilerr // the earlier pieces count, as in a partial call
			}
			if sinceYield >= piece {
				sinceYield = 0
				if !yieldToGuest(t) {
					return done, nil, nil
				}
			}
		}
	}
	return done, nil, nil
}

// allocate returns a replacement for fallocate. A repeated call changes nothing, so a signal may arrive between two
// pieces. If the space does not suffice, the change is undone.
func allocate(fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		offset, length := args[2].Int64(), args[3].Int64()
		if length <= piece || offset < 0 || offset+length < 0 {
			return fn(t, number, args)
		}
		_, before := stat(t, args)
		for done := int64(0); done < length; done += piece {
			part := args
			part[2].Value, part[3].Value = uintptr(offset+done), uintptr(min(piece, length-done))
			if n, control, err := fn(t, number, part); control != nil || err != nil {
				if _, now := stat(t, args); done > 0 && now > before {
					// Only the first error is reported.
					_, _, _ = calls.Ftruncate(t, number, arch.SyscallArguments{args[0], {Value: uintptr(before)}})
				}
				return n, control, err
			}
			if !yieldToGuest(t) {
				return 0, nil, linuxerr.EINTR
			}
		}
		return 0, nil, nil
	}
}

// limitedCopy returns a replacement for a call that copies memory between processes. Such a call cannot be split here,
// so large copies fail. Only an attacker copies that much at once.
func limitedCopy(fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if count := args[2].Int64(); count > 0 && count <= linux.UIO_MAXIOV {
			buffers, err := t.CopyInIovecsAsSlice(args[1].Pointer(), int(count))
			if err == nil && hostarch.AddrRangeSeqFromSlice(buffers).NumBytes() > maxMessage {
				return 0, nil, linuxerr.ENOMEM
			}
		}
		return fn(t, number, args)
	}
}

// withoutPopulate returns a replacement for mmap that does not populate large mappings. They are filled when they are
// touched. MAP_POPULATE is only a hint: Linux does not report its failure either.
func withoutPopulate(mmap kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if args[1].SizeT() > piece {
			args[3].Value &^= linux.MAP_POPULATE
		}
		return mmap(t, number, args)
	}
}
