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
	// piece is how much memory one step of a system call may fill.
	piece = 4 << 20
	// message is more than a pipe or a socket ever holds.
	message = 16 << 20
)

// breakLongCalls lets a process be killed or stopped in the middle of a system call that fills much memory. gVisor's kernel looks for signals between
// calls only, so that one read(2) of gigabytes filled the sandbox's memory before the guest could do anything about it, and all of the sandbox was lost. Such
// calls are done in pieces; whoever lives notices nothing but that a read or write may be short when memory is, and that others who share the file may come between.
func breakLongCalls() {
	if !slices.Contains(os.Args, "boot") {
		return
	}
	for _, table := range []*kernel.SyscallTable{calls.AMD64, calls.ARM64} {
		for number, call := range table.Table {
			if short := shortened(call.Name, call.Fn); short != nil {
				call.Fn = short
				table.Table[number] = call
			}
		}
		table.Init() // it keeps a copy
	}
}

// shortened gives what takes a call's place, or nil.
func shortened(name string, fn kernel.SyscallFn) kernel.SyscallFn {
	switch name {
	case "read":
		return single(fn, transfer{file: true, short: true})
	case "write":
		return single(fn, transfer{file: true})
	case "pread64", "pwrite64":
		return single(fn, transfer{file: true, at: true})
	case "getrandom":
		return single(fn, transfer{})
	case "readv":
		return vector(fn, transfer{one: calls.Read})
	case "writev":
		return vector(fn, transfer{one: calls.Write})
	case "preadv":
		return vector(fn, transfer{at: true, oneAt: calls.Pread64})
	case "pwritev":
		return vector(fn, transfer{at: true, oneAt: calls.Pwrite64})
	case "preadv2":
		return vector(fn, transfer{at: true, flags: true, one: calls.Read, oneAt: calls.Pread64})
	case "pwritev2":
		return vector(fn, transfer{at: true, flags: true, one: calls.Write, oneAt: calls.Pwrite64})
	case "fallocate":
		return allocate(fn)
	case "mmap":
		return unpopulated(fn)
	case "clone", "clone3", "fork":
		return patient(fn, name)
	case "process_vm_readv", "process_vm_writev":
		return bounded(fn)
	case "io_setup":
		// What is submitted is done by somebody whom no signal reaches. Programs do without it, as they must on kernels that have none.
		return func(*kernel.Task, uintptr, arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			return 0, nil, linuxerr.ENOSYS
		}
	}
	return nil
}

// transfer is what a call's arguments are.
type transfer struct {
	file  bool // args[0] is a descriptor, and the buffer follows; else the buffer is first. For many buffers it is always so
	at    bool // args[3] is an offset
	flags bool // args[5] are flags, and the offset -1 is where the file is
	short bool // where there can be no pieces it gives what there is; a write waits there until all of it has been taken

	one, oneAt kernel.SyscallFn // the same for one buffer
}

// stat gives type and size of the file that args[0] names, 0 if there is none.
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

// bulk reports whether a call that is done in pieces gives what it gives at once: on a pipe or a socket the second piece would wait, or be another message.
func bulk(kind uint16) bool { return kind == linux.S_IFREG || kind == linux.S_IFCHR }

// single is a call with one buffer.
func single(fn kernel.SyscallFn, x transfer) kernel.SyscallFn {
	buffer, size := 0, 1
	if x.file {
		buffer, size = 1, 2
	}
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if !x.file {
			args[size].Value = min(args[size].Value, uintptr(linux.MAX_RW_COUNT)) // for a file so much is an error
		}
		all := args[size].SizeT()
		if all <= piece || int(all) < 0 {
			return fn(t, number, args)
		}
		if x.file {
			if kind, _ := stat(t, args); !bulk(kind) {
				if x.short {
					args[size].Value = min(args[size].Value, message)
				}
				return fn(t, number, args)
			}
		}
		start := args[buffer].Pointer()
		end, ok := start.AddLength(uint64(all))
		if !ok {
			return fn(t, number, args)
		}
		return inPieces(t, []hostarch.AddrRange{{Start: start, End: end}}, func(at hostarch.Addr, n, done uintptr) (uintptr, *kernel.SyscallControl, error) {
			part := args
			part[buffer].Value, part[size].Value = uintptr(at), n
			if x.at {
				part[3].Value += done
			}
			return fn(t, number, part)
		})
	}
}

// vector is readv and its like: many buffers, args[1] says where they are noted, args[2] how many.
func vector(fn kernel.SyscallFn, x transfer) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		many := int(args[2].Int())
		if many <= 0 || many > linux.UIO_MAXIOV {
			return fn(t, number, args)
		}
		buffers, err := t.CopyInIovecsAsSlice(args[1].Pointer(), many)
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
		// Files refuse flags that they don't know; devices do not look at them.
		strange := !here && offset < 0 || flags&^(linux.RWF_HIPRI|sync) != 0 && kind == linux.S_IFREG
		if strange || !bulk(kind) {
			return fn(t, number, args)
		}
		n, control, err := inPieces(t, buffers, func(at hostarch.Addr, n, done uintptr) (uintptr, *kernel.SyscallControl, error) {
			part := arch.SyscallArguments{args[0], {Value: uintptr(at)}, {Value: n}, {Value: args[3].Value + done}}
			if here {
				return x.one(t, number, part)
			}
			return x.oneAt(t, number, part)
		})
		if err == nil && flags&sync != 0 && kind == linux.S_IFREG {
			if _, _, err := calls.Fsync(t, number, arch.SyscallArguments{args[0]}); err != nil {
				return 0, nil, err
			}
		}
		return n, control, err
	}
}

// inPieces goes through buffers until a piece comes back short, or the process is to die, or to stop while memory is used up.
func inPieces(t *kernel.Task, buffers []hostarch.AddrRange, do func(at hostarch.Addr, n, done uintptr) (uintptr, *kernel.SyscallControl, error)) (uintptr, *kernel.SyscallControl, error) {
	done, sinceBreath := uintptr(0), uintptr(0)
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
			done, sinceBreath, at = done+n, sinceBreath+n, at+hostarch.Addr(n)
			if err != nil || n < want {
				return done, nil, nil //nolint:nilerr // what was done before it counts, as for one call
			}
			if sinceBreath >= piece {
				sinceBreath = 0
				if !breathe(t) {
					return done, nil, nil
				}
			}
		}
	}
	return done, nil, nil
}

// allocate is fallocate. Done again it changes nothing, so that a signal may come between two pieces; what does not fit is undone.
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
					_, _, _ = calls.Ftruncate(t, number, arch.SyscallArguments{args[0], {Value: uintptr(before)}}) // the first error is the one to tell
				}
				return n, control, err
			}
			if !breathe(t) {
				return 0, nil, linuxerr.EINTR
			}
		}
		return 0, nil, nil
	}
}

// bounded is a call that copies memory between processes, which can't be done in pieces from here. Nobody but an attacker copies so much at once.
func bounded(fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if many := args[2].Int64(); many > 0 && many <= linux.UIO_MAXIOV {
			buffers, err := t.CopyInIovecsAsSlice(args[1].Pointer(), int(many))
			if err == nil && hostarch.AddrRangeSeqFromSlice(buffers).NumBytes() > message {
				return 0, nil, linuxerr.ENOMEM
			}
		}
		return fn(t, number, args)
	}
}

// unpopulated leaves large mappings to be filled as they are touched. That they are filled at once is a wish, whose failure Linux does not tell either.
func unpopulated(mmap kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if args[1].SizeT() > piece {
			args[3].Value &^= linux.MAP_POPULATE
		}
		return mmap(t, number, args)
	}
}
