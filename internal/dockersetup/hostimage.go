package dockersetup

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/moby/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// ImportHost builds a small image from the shell, tools and Python of this machine, for machines that cannot reach a
// registry. It imports the image under a name into a Docker engine whose machine has the architecture arch.
func ImportHost(ctx context.Context, cli *client.Client, arch, name string) error {
	op := "build image " + name
	if arch != runtime.GOARCH {
		return &v1.Error{
			Code:    v1.CodeImageArch,
			Op:      op,
			Message: "this machine's programs are for " + runtime.GOARCH + ", but the Docker engine's machine is " + arch,
		}
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := WriteHostRoot(ctx, w)
		_ = w.CloseWithError(err) // never fails
		done <- err
	}()
	res, err := cli.ImageImport(ctx, client.ImageImportSource{Source: r, SourceName: "-"}, name, client.ImageImportOptions{
		Message:  "recluse image from-host",
		Changes:  []string{"ENV PATH=/usr/local/bin:/usr/bin:/bin", "LABEL dev.recluse.from-host=true"},
		Platform: ocispec.Platform{OS: "linux", Architecture: arch},
	})
	if err == nil {
		_, err = io.Copy(io.Discard, res)
		_ = res.Close() // it was read completely
	}
	_ = r.Close() // unblocks the writer if the Docker engine did not read everything
	if writeErr := <-done; writeErr != nil && ctx.Err() == nil && err == nil {
		return &v1.Error{
			Code:    v1.CodeStartFailed,
			Op:      op,
			Message: "cannot read the programs of this machine",
			Err:     writeErr,
		}
	}
	return err
}

// hostTools are the programs of the image. The first ones (requiredTools) are required, the others are optional.
var hostTools = strings.Fields(`bash sh cat ls env python3
	[ arch awk b2sum base32 base64 basename bunzip2 bzip2 chgrp chmod chown cksum clear cmp comm cp csplit curl cut date dd df diff dir dircolors dirname
	du echo egrep expand expr factor false fgrep file find flock fmt fold free getconf getent git grep groups gunzip gzip head hostname id install join
	jq kill less link ln locale logname lsblk make md5sum mkdir mkfifo mknod mktemp more mount mv nice nl nohup nproc numfmt od openssl paste patch pathchk pgrep pinky
	pkill pr printenv printf ps ptx pwd readlink realpath renice rev rm rmdir sed seq setsid sha1sum sha224sum sha256sum sha384sum sha512sum shred shuf sleep sort split
	stat stdbuf strings stty sum sync tac tail tar taskset tee test time timeout top touch tput tr true truncate tsort tty uname unexpand uniq unlink unzip uptime users vdir vi
	watch wc which who whoami xargs xz yes zcat zip stty script unshare`)

// requiredTools is the number of hostTools that are required.
const requiredTools = 6

// hostFiles are copied unchanged, if they exist.
var hostFiles = []string{
	"/etc/ssl/certs",
	"/etc/ssl/openssl.cnf",
	"/etc/mime.types",
	"/etc/services",
	"/etc/protocols",
	"/etc/alternatives/awk",
	"/etc/alternatives/which",
	"/etc/alternatives/pager",
	"/etc/ld.so.conf",
	"/etc/ld.so.conf.d",
	"/etc/ld.so.cache",
	"/usr/share/ca-certificates",
	"/usr/share/zoneinfo",
	"/usr/lib/locale/C.utf8",
	"/usr/lib/os-release",
	"/etc/os-release",
	"/usr/share/terminfo/x",
	"/lib/terminfo/x",
}

// hostTexts are files written for the image. They contain nothing about the users of this machine.
var hostTexts = map[string]string{ //nolint:gosec // users without passwords, not credentials
	"/etc/passwd":        "root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"/etc/group":         "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
	"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	"/etc/hosts":         "127.0.0.1 localhost\n",
}

// hostDirs are empty mount points. /.recluse belongs to the docker backend.
var hostDirs = []string{"/proc", "/sys", "/dev", "/run", "/root", "/tmp", "/var/tmp", v1.DefaultHome, "/.recluse"}

// pythonExcluded are parts of Python's library that need something the image lacks, or that are rarely used.
var pythonExcluded = []string{
	"test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "dist-packages", "site-packages",
}

// WriteHostRoot writes a tar archive with a small root file system made of the programs of this machine: a shell, the
// usual tools, and Python with its library.
func WriteHostRoot(ctx context.Context, w io.Writer) error {
	if runtime.GOOS != "linux" {
		return backend.NotSupported("docker", "build an image from this machine", "pull an image instead")
	}
	r := &hostRoot{ctx: ctx, w: tar.NewWriter(w), done: map[string]bool{}}
	// On most machines, these are links into /usr.
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if link, err := os.Readlink(dir); err == nil {
			r.err = errors.Join(
				r.err,
				r.entry(&tar.Header{Typeflag: tar.TypeSymlink, Name: dir, Linkname: link, Mode: 0o777}, nil),
			)
		}
	}
	for _, dir := range hostDirs {
		r.dir(dir)
	}
	if r.err != nil {
		return r.err
	}
	for path, text := range hostTexts {
		r.err = errors.Join(
			r.err,
			r.entry(
				&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: int64(len(text))},
				strings.NewReader(text),
			),
		)
	}
	for i, name := range hostTools {
		path, err := lookTool(name)
		if err != nil {
			if i < requiredTools {
				return fmt.Errorf("%s not found on this machine", name)
			}
			continue
		}
		r.add(path)
	}
	python, err := pythonParts(ctx)
	if err != nil {
		return err
	}
	for _, path := range append(python, hostFiles...) {
		r.tree(path)
	}
	if err := errors.Join(r.err, ctx.Err()); err != nil {
		return err
	}
	return r.w.Close()
}

// lookTool returns the path of a program of the system. It ignores PATH, so that programs of a user are not found.
func lookTool(name string) (string, error) {
	for _, dir := range []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return filepath.Join(dir, name), nil
		}
	}
	return "", exec.ErrNotFound
}

// pythonParts returns the paths of the system's Python and of its library.
func pythonParts(ctx context.Context) ([]string, error) {
	python, err := lookTool("python3")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, python, "-I", "-S", "-c", `import json, os, sys, sysconfig as s; p = s.get_paths()
print(json.dumps([os.path.realpath(sys.executable), p['stdlib'], p['platstdlib']]))`)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("query %s for the path of its library: %w", python, err)
	}
	var parts []string
	if err := json.Unmarshal(out, &parts); err != nil {
		return nil, err
	}
	return parts, nil
}

// hostRoot is an archive that is being written.
type hostRoot struct {
	ctx  context.Context
	w    *tar.Writer
	done map[string]bool
	err  error // the first error; nothing is written after it
}

func (r *hostRoot) entry(h *tar.Header, content io.Reader) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	name := filepath.Clean(h.Name)
	if r.done[name] {
		return nil
	}
	r.done[name] = true
	h.Name = strings.TrimPrefix(name, "/")
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	h.Format = tar.FormatPAX
	if err := r.w.WriteHeader(h); err != nil || content == nil {
		return err
	}
	_, err := io.Copy(r.w, content)
	return err
}

// ownName resolves links in the directory of a path. For directories that are links on this machine, such as /bin, only
// the target is written.
func ownName(path string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return path
	}
	return filepath.Join(dir, filepath.Base(path))
}

// dir writes a directory and its parents.
func (r *hostRoot) dir(path string) {
	if r.err != nil || path == "/" || r.done[path] {
		return
	}
	r.dir(filepath.Dir(path))
	if r.err == nil {
		r.err = r.entry(&tar.Header{Typeflag: tar.TypeDir, Name: path, Mode: 0o755}, nil)
	}
}

// add writes a file or a link, with its target and its shared libraries.
func (r *hostRoot) add(path string) {
	path = ownName(path)
	if r.err != nil || r.done[path] {
		return
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return // the file has been removed, or a link is broken
	}
	r.dir(filepath.Dir(path))
	switch {
	case r.err != nil:
	case fi.Mode()&fs.ModeSymlink != 0:
		r.link(path)
	case fi.Mode().IsRegular():
		r.file(path, fi)
	}
}

func (r *hostRoot) link(path string) {
	to, err := os.Readlink(path)
	if err != nil {
		return
	}
	if r.err = r.entry(&tar.Header{Typeflag: tar.TypeSymlink, Name: path, Linkname: to, Mode: 0o777}, nil); r.err != nil {
		return
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(path), to)
	}
	if fi, err := os.Stat(to); err == nil && fi.Mode().IsRegular() {
		r.add(to)
	}
}

func (r *hostRoot) file(path string, fi fs.FileInfo) {
	content, err := os.ReadFile(path)
	if err != nil {
		return // unreadable files are not in the image
	}
	mode := int64(0o644)
	if fi.Mode()&0o111 != 0 {
		mode = 0o755 // without setuid
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: mode, Size: int64(len(content)), ModTime: fi.ModTime()}
	if r.err = r.entry(h, bytes.NewReader(content)); r.err != nil {
		return
	}
	if bytes.HasPrefix(content, []byte(elf.ELFMAG)) {
		for _, lib := range libraries(path, content) {
			r.add(lib)
		}
	}
}

// tree writes everything below a path.
func (r *hostRoot) tree(top string) {
	_ = filepath.WalkDir(ownName(top), func(path string, d fs.DirEntry, err error) error {
		if r.err != nil {
			return fs.SkipAll
		}
		if err != nil {
			return nil //nolint:nilerr // unreadable files are not in the image
		}
		if d.IsDir() {
			if path != top && slices.Contains(pythonExcluded, d.Name()) {
				return fs.SkipDir
			}
			r.dir(path)
			return nil
		}
		r.add(path)
		return nil
	})
}

// libraryDirs are the directories that the loader searches.
var libraryDirs = []string{
	"/lib/x86_64-linux-gnu",
	"/usr/lib/x86_64-linux-gnu",
	"/lib/aarch64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu",
	"/lib64",
	"/usr/lib64",
	"/lib",
	"/usr/lib",
	"/usr/local/lib",
}

// libraries returns the loader and the direct shared libraries of a program.
func libraries(path string, content []byte) []string {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil
	}
	var out []string
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			if b, err := io.ReadAll(p.Open()); err == nil {
				out = append(out, string(bytes.TrimRight(b, "\x00")))
			}
		}
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		return out
	}
	dirs := []string{filepath.Dir(path)}
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		paths, _ := f.DynString(tag) // most programs have none
		for _, p := range paths {
			for d := range strings.SplitSeq(p, ":") {
				dirs = append(dirs, strings.ReplaceAll(d, "$ORIGIN", filepath.Dir(path)))
			}
		}
	}
	dirs = append(dirs, libraryDirs...)
	for _, name := range names {
		for _, d := range dirs {
			if fi, err := os.Stat(filepath.Join(d, name)); err == nil && fi.Mode().IsRegular() {
				out = append(out, filepath.Join(d, name))
				break
			}
		}
	}
	return out
}
