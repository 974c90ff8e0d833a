//go:build linux

package main

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

// command runs a program of the host, and returns how long it took.
func command(ctx context.Context, args ...string) time.Duration {
	began := time.Now()
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	checkf(err == nil, "%s: %w: %s", strings.Join(args, " "), err, out)
	return time.Since(began)
}

// shell runs a script in a sandbox.
func shell(ctx context.Context, sb *sandbox.Sandbox, script string) (string, time.Duration) {
	began := time.Now()
	v := must(sb.Run(ctx, sandbox.Command{Shell: script, RunOptions: sandbox.RunOptions{Timeout: 10 * time.Minute}}))
	checkf(v.OK(), "%s: %v: %s", script, v, v.Stderr.String())
	return strings.TrimSpace(v.Stdout.String()), time.Since(began)
}

// fillProgram writes gigabytes that are not zeros.
const fillProgram = `python3 -c '
import os
block = os.urandom(1000000)
for i in range(%d):
    with open("f%%d" %% i, "wb", 0) as f:
        for _ in range(1000): f.write(block)
'; sync`

// diskForks compares forks with many files with those without: where blocks are shared, and where they are copied.
func diskForks(ctx context.Context, b *bench) {
	gigabytes := b.times(5, 1)
	fork := func(backend *gvisor.Backend) (empty, full time.Duration) {
		var took [2]samples
		for i, fill := range []string{"true", fmt.Sprintf(fillProgram, gigabytes)} {
			sb := must(sandbox.Open(ctx, backend, sandbox.Spec{}))
			err := attempt(func() {
				shell(ctx, sb, fill)
				for n := range b.times(3, 2) + 1 {
					forked, first := firstCell(ctx, func() (*sandbox.Sandbox, error) {
						copies, err := sb.Fork(ctx, 1)
						if err != nil {
							return nil, errors.Join(err, closeAll(copies))
						}
						return copies[0], nil
					})
					check(forked.Close())
					if n > 0 {
						took[i] = append(took[i], first)
					}
				}
			})
			check(errors.Join(err, sb.Close()))
		}
		return time.Duration(took[0].median() * 1e6), time.Duration(took[1].median() * 1e6)
	}
	what := fmt.Sprintf("fork with %d GB of files to first cell, p50", gigabytes)
	if top, clean, err := b.mountXFS(ctx); err != nil {
		b.report([]row{{Name: "disk.fork.reflink", What: what + ", blocks shared", Note: "not measured: " + err.Error()}})
	} else {
		err := attempt(func() {
			shared := must(gvisor.New(gvisor.Options{DataDir: top, CacheDir: filepath.Join(b.dir, "cache")}))
			empty, full := fork(shared)
			b.report([]row{{
				Name: "disk.fork.reflink", What: what + ", blocks shared", Unit: "ms",
				Measured: ms(full), Baseline: ms(empty), Against: "empty fork",
				Target: "≤ 2 ×", Reached: reached(full <= 2*empty),
			}})
		})
		check(errors.Join(err, clean()))
	}
	empty, full := fork(b.backend)
	from := filepath.Join(b.dir, "from")
	command(ctx, "sh", "-c", fmt.Sprintf("head -c %d000000000 /dev/urandom > %s && sync %s", gigabytes, from, from))
	cp := command(ctx, "cp", "--reflink=never", from, from+".copy")
	check(errors.Join(os.Remove(from), os.Remove(from+".copy")))
	// A fork copies the files twice: into the snapshot, and out of it.
	b.report([]row{{
		Name: "disk.fork.copy", What: what + ", blocks copied, for each copy of the files", Unit: "ms",
		Measured: ms(full-empty) / 2, Baseline: ms(cp), Against: "cp",
		Target: "≤ 2 ×", Reached: reached(full-empty <= 4*cp),
		Note: fmt.Sprintf("the whole fork %.0f ms, an empty one %.0f ms", ms(full), ms(empty)),
	}})
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// mountXFS mounts a file system that can share blocks.
func (b *bench) mountXFS(ctx context.Context) (top string, clean func() error, err error) {
	image := filepath.Join(b.dir, "xfs")
	top = image + ".top"
	err = attempt(func() {
		check(os.MkdirAll(top, 0o700))
		command(ctx, "truncate", "-s", "32G", image)
		command(ctx, "mkfs.xfs", "-q", image)
		command(ctx, "mount", "-o", "loop", image, top)
	})
	return top, func() error {
		return errors.Join(unix.Unmount(top, unix.MNT_DETACH), os.RemoveAll(image), os.Remove(top))
	}, err
}

// ioProgram writes and reads a file, and prints the seconds of each kind of access. It does not call fsync: on the
// writable root, which ends with its sandbox, fsync does nothing, but on a mount it waits for the host's disk.
const ioProgram = `
import os, random, sys, time
path, size, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
block = os.urandom(1 << 20)
def timed(f):
    began = time.monotonic(); f(); print(time.monotonic() - began)
def write():
    with open(path, 'wb', 0) as f:
        for _ in range(size >> 20): f.write(block)
def read():
    with open(path, 'rb', 0) as f:
        while f.read(1 << 20): pass
def random_write():
    with open(path, 'r+b', 0) as f:
        for i in range(n): os.pwrite(f.fileno(), block[:4096], random.randrange(size >> 12) << 12)
def random_read():
    with open(path, 'rb', 0) as f:
        for i in range(n): os.pread(f.fileno(), 4096, random.randrange(size >> 12) << 12)
for f in write, read, random_write, random_read: timed(f)
os.remove(path)
`

// diskIO compares the writable root with a mount of a host directory.
func diskIO(ctx context.Context, b *bench) {
	host := must(os.MkdirTemp(b.dir, "mount-"))
	check(os.Chmod(host, 0o777))
	sb := must(sandbox.Open(ctx, b.backend, sandbox.Spec{
		Limits: sandbox.Limits{Memory: 1 << 30},
		Mounts: []sandbox.Mount{{Host: host, Path: "/mnt/host", Writable: true}},
	}))
	defer closing(sb.Close)
	must(sb.Files().Write(ctx, "io.py", strings.NewReader(ioProgram), sandbox.WriteOptions{}))
	var took [2][4]samples
	for range b.times(5, 2) {
		for i, path := range []string{"/opt/file", "/mnt/host/file"} {
			out, _ := shell(ctx, sb, fmt.Sprintf("python3 io.py %s %d %d", path, b.times(1<<30, 256<<20), b.times(50000, 5000)))
			for k, text := range strings.Fields(out) {
				seconds := must(strconv.ParseFloat(text, 64))
				took[i][k] = append(took[i][k], time.Duration(seconds*float64(time.Second)))
			}
		}
	}
	for k, what := range []string{"sequential write", "sequential read", "random write of 4 KiB", "random read of 4 KiB"} {
		ours, theirs := took[0][k].median(), took[1][k].median()
		b.report([]row{{
			Name: "disk.io." + strings.ReplaceAll(strings.Fields(what)[0]+"."+strings.Fields(what)[1], " ", "."),
			What: what + " on the writable root, p50", Unit: "ms",
			Measured: ours, Baseline: theirs, Against: "a mount of a host directory",
			Target: "≤ 2 ×", Reached: reached(ours <= 2*theirs),
		}})
	}
}

// wheels is the number of packages that diskPip installs.
const wheels = 20

// makeWheel writes a package with many small modules and one large file.
func makeWheel(dir, name string) {
	f := must(os.Create(filepath.Join(dir, name+"-1.0-py3-none-any.whl")))
	z := zip.NewWriter(f)
	var record strings.Builder
	add := func(path, text string) {
		_, err := must(z.Create(path)).Write([]byte(text))
		check(err)
		sum := sha256.Sum256([]byte(text))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", path, base64.RawURLEncoding.EncodeToString(sum[:]), len(text))
	}
	for i := range 50 {
		add(fmt.Sprintf("%s/m%d.py", name, i), strings.Repeat(fmt.Sprintf("x%d = %d\n", i, i), 200))
	}
	add(name+"/__init__.py", "")
	add(name+"/data.bin", strings.Repeat("data", 250_000))
	info := name + "-1.0.dist-info/"
	add(info+"METADATA", "Metadata-Version: 2.1\nName: "+name+"\nVersion: 1.0\n")
	add(info+"WHEEL", "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
	_, err := must(z.Create(info + "RECORD")).Write([]byte(record.String() + info + "RECORD,,\n"))
	check(errors.Join(err, z.Close(), f.Close()))
}

// diskPip compares an installation of packages in a sandbox with one on the host.
func diskPip(ctx context.Context, b *bench) {
	if err := exec.CommandContext(ctx, "/usr/bin/python3", "-m", "pip", "--version").Run(); err != nil {
		b.report([]row{{Name: "disk.pip", What: "pip install of wheels", Note: "not measured: the host's /usr has no pip"}})
		return
	}
	dir := must(os.MkdirTemp(b.dir, "wheels-"))
	check(os.Chmod(dir, 0o755))
	var names []string
	for i := range wheels {
		names = append(names, fmt.Sprintf("bench_package_%d", i))
		makeWheel(dir, names[i])
	}
	install := func(more ...string) []string {
		args := []string{"/usr/bin/python3", "-m", "pip", "install", "--no-index", "--no-cache-dir"}
		return append(append(args, more...), names...)
	}
	var ours, theirs samples
	for n := range b.times(5, 2) + 1 {
		target := must(os.MkdirTemp(b.dir, "pip-"))
		host := command(ctx, install("--find-links", dir, "--target", target)...)
		check(os.RemoveAll(target))
		sb := must(sandbox.Open(ctx, b.backend, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: "/mnt/wheels"}}}))
		var inside time.Duration
		err := attempt(func() {
			_, inside = shell(ctx, sb, strings.Join(install("--find-links", "/mnt/wheels"), " ")+
				" && python3 -c 'import bench_package_7.m3'")
		})
		check(errors.Join(err, sb.Close()))
		if n > 0 {
			ours, theirs = append(ours, inside), append(theirs, host)
		}
	}
	b.report([]row{{
		Name: "disk.pip", What: fmt.Sprintf("pip install of %d wheels, p50", wheels), Unit: "ms",
		Measured: ours.median(), Baseline: theirs.median(), Against: "the host",
	}})
}
