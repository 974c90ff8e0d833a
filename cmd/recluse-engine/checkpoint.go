//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/gvisorbinaries"
)

// gVisor writes the pages of the disk into the checkpoint, after those of memory, and reads them back on a restore.
// This would copy all files twice for each fork. But gVisor can also leave a checkpoint to another process, which gets
// descriptors of the files that hold the pages: gVisor has that for checkpoints in cloud storage, and does so if the
// directory of the checkpoint contains gcs_opts.json. We declare that process to be this program: it copies the file of
// the disk as a whole into diskFile. Where the file system can share blocks (XFS, btrfs), that costs nothing.

const (
	// diskFile is the file of a checkpoint with the content of the disk.
	diskFile = "disk.img"
	// largeDisk is the size above which the disk gets its own file. A smaller one is part of the pages: a restore
	// without this process is 10 ms faster.
	largeDisk = 16 << 20

	goferName = "checkpointgofer"
	// goferSocket and goferImage are descriptors of the process: the connection to the sandbox, and gcs_opts.json.
	goferSocket, goferImage = 3, 4
)

// declareCheckpointGofer makes gVisor start this program where it would start its own for cloud storage.
func declareCheckpointGofer() {
	exec := func(gvisorbinaries.Options) error { return errors.ErrUnsupported } // only used by that program itself
	gvisorbinaries.CheckpointGofer.DeclareEmbedded(exec, func(o gvisorbinaries.Options) (int, error) {
		return syscall.ForkExec("/proc/self/exe", o.Argv, &syscall.ProcAttr{
			Env:   o.Envv,
			Files: o.Files,
			Sys:   &syscall.SysProcAttr{Setsid: true},
		})
	})
}

// checkpointGofer is the command that writes and reads the files of a checkpoint.
type checkpointGofer struct{}

func (checkpointGofer) Name() string     { return goferName }
func (checkpointGofer) Synopsis() string { return "write and read the files of a checkpoint" }
func (checkpointGofer) Usage() string    { return goferName + "\n" }

func (checkpointGofer) FetchSpec(*config.Config, *flag.FlagSet) (string, *specs.Spec, error) {
	return "", nil, nil
}

func (checkpointGofer) SetFlags(f *flag.FlagSet) {
	for _, name := range []string{"sock-fd", "gcs-opts-fd"} {
		f.Int(name, 0, "fixed")
	}
	for _, name := range []string{"allow-checkpoint-writes", "allow-checkpoint-reads"} {
		f.Bool(name, false, "ignored: the directory is private")
	}
}

func (checkpointGofer) Execute(context.Context, *flag.FlagSet, ...any) subcommands.ExitStatus {
	if err := serveCheckpoint(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return subcommands.ExitFailure
	}
	return subcommands.ExitSuccess
}

// serveCheckpoint serves one save or restore. It ends when the sandbox has closed the connection.
func serveCheckpoint() error {
	marker, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", goferImage))
	if err != nil {
		return err
	}
	files, err := stateipc.NewAsyncFileServer(image{filepath.Dir(marker)})
	if err != nil {
		return err
	}
	socket, err := unet.NewSocket(goferSocket)
	if err != nil {
		return err
	}
	server := urpc.NewServer()
	server.Register(files)
	if err := server.Handle(socket); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// image is the directory of a checkpoint.
type image struct{ dir string }

func (image) Destroy() {}

func (i image) path(name string) string { return filepath.Join(i.dir, filepath.Base(name)) }

func (i image) OpenRead(name string) (stateio.AsyncReader, error) {
	fd, err := unix.Open(i.path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	r := stateio.NewPagesFileFDReaderDefault(int32(fd))
	if name != checkpointfiles.PagesFileName {
		return r, nil
	}
	return &pagesReader{FDReader: r, disk: i.path(diskFile)}, nil
}

func (i image) OpenWrite(name string) (stateio.AsyncWriter, error) {
	fd, err := unix.Open(i.path(name), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	w := stateio.NewPagesFileFDWriterDefault(int32(fd))
	if name != checkpointfiles.PagesFileName {
		return w, nil
	}
	return &pagesWriter{FDWriter: w, disk: i.path(diskFile)}, nil
}

// pagesOf is a registered file of pages. gVisor registers the file of memory first, then the one of the disk.
type pagesOf int

const (
	inMemory pagesOf = iota
	onDisk
)

// pagesWriter writes the pages of memory, and copies the file of the disk as a whole.
type pagesWriter struct {
	*stateio.FDWriter
	disk    string
	sources int
	done    []stateio.Completion // writes of pages that are in the copy
}

// NeedRegisterSourceFD implements stateio.AsyncWriter.
func (*pagesWriter) NeedRegisterSourceFD() bool { return true }

// RegisterSourceFD implements stateio.AsyncWriter. The sandbox is paused, so its files do not change.
func (w *pagesWriter) RegisterSourceFD(
	fd int32, _ uint64, _ []stateio.ClientFileRangeSetting,
) (stateio.SourceFile, error) {
	w.sources++
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return nil, err
	}
	if w.sources == 1 || st.Blocks*512 < largeDisk {
		return inMemory, nil
	}
	out, err := os.OpenFile(w.disk, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	err = clone(int(out.Fd()), int(fd), st.Size)
	return onDisk, errors.Join(err, out.Close())
}

// AddWrite implements stateio.AsyncWriter.
func (w *pagesWriter) AddWrite(id int, src stateio.SourceFile, fr memmap.FileRange, mapping []byte) {
	if src == onDisk {
		w.done = append(w.done, stateio.Completion{ID: id, N: fr.Length()})
		return
	}
	w.FDWriter.AddWrite(id, nil, fr, mapping)
}

// AddWritev implements stateio.AsyncWriter.
func (w *pagesWriter) AddWritev(
	id int, total uint64, src stateio.SourceFile, frs []memmap.FileRange, mappings []unix.Iovec,
) {
	if src == onDisk {
		w.done = append(w.done, stateio.Completion{ID: id, N: total})
		return
	}
	w.FDWriter.AddWritev(id, total, nil, frs, mappings)
}

// Wait implements stateio.AsyncWriter.
func (w *pagesWriter) Wait(cs []stateio.Completion, least int) ([]stateio.Completion, error) {
	cs = append(cs, w.done...)
	least = max(least-len(w.done), 0)
	w.done = w.done[:0]
	return w.FDWriter.Wait(cs, least)
}

// pagesReader reads what pagesWriter has written.
type pagesReader struct {
	*stateio.FDReader
	disk         string
	destinations int
	done         []stateio.Completion // reads of pages that are in the copy
}

// NeedRegisterDestinationFD implements stateio.AsyncReader.
func (*pagesReader) NeedRegisterDestinationFD() bool { return true }

// RegisterDestinationFD implements stateio.AsyncReader.
func (r *pagesReader) RegisterDestinationFD(
	fd int32, size uint64, _ []stateio.ClientFileRangeSetting,
) (stateio.DestinationFile, error) {
	r.destinations++
	if r.destinations == 1 {
		return inMemory, nil
	}
	in, err := os.Open(r.disk)
	if errors.Is(err, os.ErrNotExist) {
		return inMemory, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	return onDisk, clone(int(fd), int(in.Fd()), int64(size))
}

// AddRead implements stateio.AsyncReader.
func (r *pagesReader) AddRead(id int, off int64, dst stateio.DestinationFile, fr memmap.FileRange, mapping []byte) {
	if dst == onDisk {
		r.done = append(r.done, stateio.Completion{ID: id, N: fr.Length()})
		return
	}
	r.FDReader.AddRead(id, off, nil, fr, mapping)
}

// AddReadv implements stateio.AsyncReader.
func (r *pagesReader) AddReadv(
	id int, off int64, total uint64, dst stateio.DestinationFile, frs []memmap.FileRange, mappings []unix.Iovec,
) {
	if dst == onDisk {
		r.done = append(r.done, stateio.Completion{ID: id, N: total})
		return
	}
	r.FDReader.AddReadv(id, off, total, nil, frs, mappings)
}

// Wait implements stateio.AsyncReader.
func (r *pagesReader) Wait(cs []stateio.Completion, least int) ([]stateio.Completion, error) {
	cs = append(cs, r.done...)
	least = max(least-len(r.done), 0)
	r.done = r.done[:0]
	return r.FDReader.Wait(cs, least)
}

// clone makes dst a copy of src, of the given size, that shares blocks where the file system can do that.
func clone(dst, src int, size int64) error {
	err := unix.IoctlFileClone(dst, src)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOTTY),
		errors.Is(err, unix.EINVAL):
		err = copySparse(dst, src)
	}
	if err != nil {
		return fmt.Errorf("copy the disk: %w", err)
	}
	return unix.Ftruncate(dst, size)
}

// copySparse copies a file without its holes.
func copySparse(dst, src int) error {
	for end := int64(0); ; {
		start, err := unix.Seek(src, end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return err
		}
		if end, err = unix.Seek(src, start, unix.SEEK_HOLE); err != nil {
			return err
		}
		from, to := start, start
		for from < end {
			n, err := unix.CopyFileRange(src, &from, dst, &to, int(min(end-from, 1<<30)), 0)
			if err != nil {
				return err
			}
			if n == 0 {
				return io.ErrUnexpectedEOF
			}
		}
	}
}
