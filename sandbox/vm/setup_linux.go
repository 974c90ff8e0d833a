package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
)

// Setup prepares the kernel and the default root file system. It can be repeated, interrupted, and run several times at
// once: files appear when they are complete, and what is there already is kept.
func (b *Backend) Setup(ctx context.Context, o SetupOptions) (*Prepared, error) {
	report := func(format string, args ...any) {
		if o.Report != nil {
			o.Report(fmt.Sprintf(format, args...))
		}
	}
	for _, d := range []string{"kernels", "images", "sandboxes", "snapshots", "templates"} {
		if err := os.MkdirAll(filepath.Join(b.dir, d), 0o700); err != nil {
			return nil, setupError("cannot make the data directory", "", err)
		}
	}
	if _, err := exec.LookPath(squashTool); err != nil {
		return nil, setupError(squashTool+" is not installed", "install it (Debian: apt-get install squashfs-tools)", err)
	}
	k, origin, err := b.setupKernel(ctx, o, report)
	if err != nil {
		return nil, err
	}
	p := &Prepared{Kernel: k.release, Origin: origin, Network: k.network, Vsock: k.vsock, KernelID: k.id}
	report("kernel: %s from %s", k.release, origin)
	if !k.vsock {
		report("kernel: it does not fit Firecracker and Cloud Hypervisor")
	}
	if !k.network {
		report("kernel: it lacks modules for the network, so sandboxes have none")
	}
	if _, err := b.initramfs(ctx, k, b.guest.Path, b.guest.Hash); err != nil {
		return nil, setupError("the initramfs cannot be built", "", err)
	}
	top := "/"
	if len(o.Packages) > 0 {
		dir, remove, err := b.lockedTemp()
		if err != nil {
			return nil, setupError("cannot make a directory", "", err)
		}
		defer remove()
		if err := debianSystem(ctx, dir, o.Packages, report); err != nil {
			return nil, setupError("the packages cannot be installed", "", err)
		}
		o.RootFS = dir
	}
	if o.RootFS != "" {
		top, p.RootOf = o.RootFS, o.RootFS
		if len(o.Packages) > 0 {
			p.RootOf = "Debian packages " + strings.Join(o.Packages, ", ")
			p.Root, err = b.rootOfTree(ctx, p.RootOf, o.RootFS)
		} else {
			report("root file system: from the directory %s", o.RootFS)
			p.Root, err = b.rootOfDir(ctx, o.RootFS)
		}
	} else {
		var s *source
		if s, err = hostSource(); err == nil {
			p.RootOf = s.what
			report("root file system: from %s", s.what)
			p.Root, err = b.rootImage(ctx, s, "")
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, setupError("the root file system cannot be built", "", err)
	}
	p.Python, p.Bash = lookIn(top, "python3"), lookIn(top, "bash")
	if p.Python {
		p.PythonVersion = pythonVersion(top)
	}
	if p.Packages = packagesOf(top, o.Packages); len(p.Packages) > 0 {
		report("root file system: it has %s", describePackages(p.Packages))
	}
	if info, err := os.Stat(b.imagePath(p.Root)); err == nil {
		report("root file system: %s, %d MiB", p.Root, info.Size()>>20)
	}
	if err := atomicfile.WriteJSON(filepath.Join(b.dir, setupFile), p); err != nil {
		return nil, setupError("the result cannot be written", "", err)
	}
	b.proof.Forget() // whatever a machine has shown before, the next one is new
	return p, nil
}

// setupKernel prepares the kernel that the options name, or one that it finds.
func (b *Backend) setupKernel(
	ctx context.Context, o SetupOptions, report func(string, ...any),
) (*kernel, string, error) {
	if o.Kernel != "" {
		if o.Modules == "" {
			return nil, "", setupError("the directory of the kernel's modules is missing", "set vm.modules, too", nil)
		}
		k, err := b.prepareKernel(ctx, o.Kernel, o.Modules)
		return k, o.Kernel, err
	}
	// The kernel of an earlier setup stays: a package is downloaded only once.
	if p, k, err := b.prepared(); err == nil && k.current {
		return k, p.Origin, nil
	}
	temp, remove, err := b.lockedTemp()
	if err != nil {
		return nil, "", setupError("cannot make a directory", "", err)
	}
	defer remove()
	image, modules, origin, err := findKernel(ctx, "/", temp, func(line string) { report("%s", line) })
	if ctx.Err() != nil {
		return nil, "", setupError("cancelled", "", ctx.Err())
	}
	if err != nil {
		return nil, "", err
	}
	k, err := b.prepareKernel(ctx, image, modules)
	return k, origin, err
}

// debianTool makes a Debian system in a directory.
const debianTool = "mmdebstrap"

// debianSystem makes a Debian system with packages in an empty directory.
func debianSystem(ctx context.Context, dir string, packages []string, report func(string, ...any)) error {
	if _, err := exec.LookPath(debianTool); err != nil {
		return setupError(debianTool+" is not installed", "install it (Debian: apt-get install mmdebstrap)", err)
	}
	for _, p := range packages {
		if strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789+-.:") != "" || strings.HasPrefix(p, "-") {
			return setupError(fmt.Sprintf("invalid package name %q", p), "", nil)
		}
	}
	suite := ""
	text, _ := os.ReadFile("/etc/os-release") // without it, the suite stays unknown
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			suite = strings.Trim(name, `"`)
		}
	}
	if suite == "" {
		return setupError("this host does not name its release", "use --rootfs with a directory", nil)
	}
	report("root file system: installing %s of %s", strings.Join(packages, ", "), suite)
	_, err := output(ctx, "/", debianTool, "--variant=minbase", "--include="+strings.Join(packages, ","), suite, dir)
	return err
}

// lockedTemp makes a temporary directory. Its lock shows that its maker lives: the sweep removes directories without a
// lock.
func (b *Backend) lockedTemp() (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp(b.dir, backendkit.NewPrefix); err != nil {
		return "", nil, err
	}
	lock, err := filelock.TryDir(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() {
		_ = os.RemoveAll(dir) // a sweep tries again
		lock.Release()
	}, nil
}

// pythonVersion returns the version of Python in a root file system, from the name of its library: nothing is executed.
func pythonVersion(top string) string {
	found, _ := filepath.Glob(filepath.Join(top, "usr/bin/python3.*"))
	for _, f := range found {
		if version := strings.TrimPrefix(filepath.Base(f), "python"); strings.Trim(version, "0123456789.") == "" {
			return version
		}
	}
	return "3"
}
