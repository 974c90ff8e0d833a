package vm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// kernelFiles returns the kernel of the tests, and a directory with its modules, except without.
func kernelFiles(t *testing.T, without string) (image, modules string) {
	t.Helper()
	_, k, err := testBackend(t).prepared()
	if err != nil {
		t.Fatal(err)
	}
	modules = t.TempDir()
	if err := os.Mkdir(filepath.Join(modules, "kernel"), 0o755); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(k.dir, kernelModules, "*.ko"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err == nil && moduleName(f) != without {
			err = os.WriteFile(filepath.Join(modules, "kernel", filepath.Base(f)), content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(modules, "modules.builtin"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(k.dir, kernelImage), modules
}

// system returns a directory that looks like a system.
func system(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "usr/bin/python3.9"), bytes.Repeat([]byte("x"), 1<<20), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTheKernelMustFit(t *testing.T) {
	image, modules := kernelFiles(t, "")
	_, less := kernelFiles(t, "overlay")
	_, noNetwork := kernelFiles(t, "iptable_nat")
	other := filepath.Join(t.TempDir(), "Image")
	if err := os.WriteFile(other, []byte(strings.Repeat("\x00", 0x38)+"ARM\x64"+strings.Repeat("\x00", 64)), 0o644); err != nil {
		t.Fatal(err)
	}
	root := system(t)
	for _, c := range []struct{ what, kernel, modules, want string }{
		{"without a needed module", image, less, "module overlay not found"},
		{"of another architecture", other, modules, "arm64"},
		{"no kernel", filepath.Join(modules, "modules.builtin"), modules, "not a kernel image"},
		{"a missing file", "/nowhere", modules, "no such file"},
		{"without modules", image, "", "vm.modules"},
		{"with a missing directory", image, "/nowhere", "no such file"},
	} {
		_, err := emptyBackend(t).Setup(t.Context(), SetupOptions{Kernel: c.kernel, Modules: c.modules, RootFS: root})
		if e, typed := errors.AsType[*v1.Error](err); !typed || !strings.Contains(err.Error()+e.Remedy, c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	b := emptyBackend(t)
	p, err := b.Setup(t.Context(), SetupOptions{Kernel: image, Modules: noNetwork, RootFS: root})
	if err != nil || p.Network || !strings.Contains(p.Kernel, ".") {
		t.Fatalf("a kernel without network: %+v, %v", p, err)
	}
	if c := b.Capabilities(t.Context()); c.Egress != sandbox.EgressNone || !strings.Contains(strings.Join(c.Notes, "\n"), "lacks modules") {
		t.Errorf("its capabilities are %+v", c)
	}
}

func TestTheVersionsOfPackagesAreKnown(t *testing.T) {
	root := system(t)
	const status = `Package: python3
Status: install ok installed
Description: Python
 Version: of nothing
Version: 3.11.2-1+b1

Package: python3-pandas
Status: install ok installed
Version: 1.5.3+dfsg-2

Package: bash
Status: deinstall ok config-files
Version: 5.2
`
	for name, text := range map[string]string{
		"var/lib/dpkg/status": status,
		"usr/lib/python3/dist-packages/pandas-1.5.3.dist-info/METADATA": "", "usr/lib/python3/dist-packages/six-1.16.0.egg-info": "",
		"usr/local/lib/python3.11/dist-packages/numpy-1.24.2-py3.11.egg-info": "", "usr/lib/python3/dist-packages/unknown.egg-info": "",
	} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	got := packagesOf(root, []string{"python3", "python3-pandas", "python3-missing"})
	const want = "python3 3.11.2-1+b1, python3-pandas 1.5.3+dfsg-2, pandas 1.5.3, six 1.16.0, numpy 1.24.2"
	if text := describePackages(got); text != want {
		t.Errorf("packages: %s", text)
	}
	if text := describePackages(slices.Repeat(got, 3)); !strings.HasSuffix(text, " and 3 more") {
		t.Errorf("many packages: %s", text)
	}
	image, modules := kernelFiles(t, "")
	b := emptyBackend(t)
	if _, err := b.Setup(t.Context(), SetupOptions{Kernel: image, Modules: modules, RootFS: root}); err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(b.Capabilities(t.Context()).Notes, "\n"); !strings.Contains(notes, "has python3 3.11.2-1+b1, pandas 1.5.3") {
		t.Errorf("notes: %s", notes)
	}
}

// TestAMachineOfDebianPackages installs a new system, which only the packages of its release can make.
func TestAMachineOfDebianPackages(t *testing.T) {
	testneed.All(t, "downloads a system; TestTheVersionsOfPackagesAreKnown has one that looks like it")
	testneed.Root(t, "the files of a system belong to root")
	if _, err := exec.LookPath(debianTool); err != nil {
		testneed.Lacking(t, err)
	}
	b := testBackend(t)
	p, err := b.Setup(t.Context(), SetupOptions{Packages: []string{"python3", "python3-six"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(b.imagePath(p.Root)) })
	if text := describePackages(p.Packages); !strings.Contains(text, "python3-six 1.") || !p.Bash {
		t.Errorf("it has %s: %+v", text, p)
	}
	sb := open(t, b, sandbox.Spec{Cold: true})
	if got := cell(t, sb, "import six, sys; '%d.%d' % sys.version_info[:2], open('/etc/debian_version').read() > ''"); got != "('"+p.PythonVersion+"', True)" {
		t.Errorf("inside: %s, want Python %s", got, p.PythonVersion)
	}
}

// TestAKernelOfTheHostIsTakenIfItFits has a newer kernel without a module, and an older one with all of them.
func TestAKernelOfTheHostIsTakenIfItFits(t *testing.T) {
	image, modules := kernelFiles(t, "")
	_, less := kernelFiles(t, "squashfs")
	top := t.TempDir()
	err := errors.Join(os.MkdirAll(filepath.Join(top, "boot"), 0o755), os.MkdirAll(filepath.Join(top, "lib/modules"), 0o755))
	for release, dir := range map[string]string{"6.1.0-1": modules, "6.1.0-2": less} {
		err = errors.Join(err, os.Symlink(image, filepath.Join(top, "boot/vmlinuz-"+release)),
			os.Symlink(dir, filepath.Join(top, "lib/modules", release)))
	}
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	found, from, origin, err := findKernel(t.Context(), top, t.TempDir(), func(line string) { told = append(told, line) })
	want := filepath.Join(top, "boot/vmlinuz-6.1.0-1")
	if err != nil || found != want || origin != want || from != filepath.Join(top, "lib/modules/6.1.0-1") {
		t.Errorf("found %s, %s from %s, %v", found, from, origin, err)
	}
	if len(told) != 1 || !strings.Contains(told[0], "6.1.0-2 does not fit: module squashfs not found") {
		t.Errorf("told %q", told)
	}
}

func TestSetupsAtOnceAndAfterAnInterruption(t *testing.T) {
	image, modules := kernelFiles(t, "")
	root := system(t)
	b := emptyBackend(t)
	o := SetupOptions{Kernel: image, Modules: modules, RootFS: root}
	ctx, cancel := context.WithCancel(t.Context())
	b.opts.Progress = func(string, int64, int64) { cancel() }
	if _, err := b.Setup(ctx, o); err == nil || ctx.Err() == nil {
		t.Fatalf("the interrupted setup: %v", err)
	}
	if _, _, err := b.prepared(); err == nil {
		t.Error("an interrupted setup counts")
	}
	b.opts.Progress = nil
	results := make([]*Prepared, 4)
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() {
			other, err := newTestBackend(filepath.Dir(b.dir))
			if err == nil {
				results[i], err = other.Setup(t.Context(), o)
			}
			if err != nil {
				t.Errorf("setup %d: %v", i, err)
			}
		})
	}
	all.Wait()
	for _, r := range results {
		if r == nil || !reflect.DeepEqual(r, results[0]) || r.PythonVersion != "" && !r.Python {
			t.Errorf("setups made %+v and %+v", r, results[0])
		}
	}
	temps, _ := filepath.Glob(filepath.Join(b.dir, "*", backendkit.NewPrefix+"*"))
	more, _ := filepath.Glob(filepath.Join(b.dir, backendkit.NewPrefix+"*"))
	if left := append(temps, more...); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestTheRootOfTheHost builds the default root. What it leaves out is in hostroot; what it contains must be readable for
// the user inside.
func TestTheRootOfTheHost(t *testing.T) {
	testneed.All(t, "the whole /usr takes minutes; the other tests build roots from directories")
	b := testBackend(t)
	s, err := hostSource()
	if err != nil {
		t.Fatal(err)
	}
	name, err := b.rootImage(t.Context(), s, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(b.imagePath(name)) })
	list, err := exec.CommandContext(t.Context(), "unsquashfs", "-lln", b.imagePath(name)).Output()
	if err != nil {
		t.Fatal(err)
	}
	text := string(list)
	for _, want := range []string{"squashfs-root/usr/bin/python3", "squashfs-root/etc/passwd", "squashfs-root/run/recluse", "squashfs-root/proc"} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %s", want)
		}
	}
	for _, no := range []string{"squashfs-root/root/.", "squashfs-root/etc/shadow", "squashfs-root/etc/hostname.", "squashfs-root/usr/share/doc/", "squashfs-root/var/log/"} {
		if strings.Contains(text, no) {
			t.Errorf("it contains %s", no)
		}
	}
}

func TestWhatNothingUsesIsRemoved(t *testing.T) {
	image, modules := kernelFiles(t, "")
	b := emptyBackend(t)
	p, err := b.Setup(t.Context(), SetupOptions{Kernel: image, Modules: modules, RootFS: system(t)})
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * keptIdle)
	for name, content := range map[string]string{"images/root-idle.squashfs": "", "images/root-used.squashfs": "", "images/root-new.squashfs": "", "templates/idle/manifest.json": "{}"} {
		path := filepath.Join(b.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	m := &manifest{Record: record{Root: "root-used.squashfs"}}
	dir := b.snaps.Path("p1")
	if err := errors.Join(os.Mkdir(dir, 0o700), atomicfile.WriteJSON(filepath.Join(dir, backendkit.ManifestFile), m)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"images/root-idle.squashfs", "images/root-used.squashfs", "templates/idle", "images/" + p.Root, "kernels/" + p.KernelID} {
		if err := os.Chtimes(filepath.Join(b.dir, path), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, stays := range map[string]bool{
		"images/root-idle.squashfs": false, "templates/idle": false, "images/root-used.squashfs": true, "images/root-new.squashfs": true,
		"images/" + p.Root: true, "kernels/" + p.KernelID: true,
	} {
		if _, err := os.Stat(filepath.Join(b.dir, path)); (err == nil) != stays {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestTheKernelIsUncompressed has the kernel of the tests, which Firecracker and Cloud Hypervisor would start.
func TestTheKernelIsUncompressed(t *testing.T) {
	_, k, err := testBackend(t).prepared()
	if err != nil {
		t.Fatal(err)
	}
	if !k.vsock || !k.current {
		t.Errorf("kernel %+v", k)
	}
	plain, err := os.ReadFile(uncompressed(filepath.Join(k.dir, kernelImage)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(plain, []byte("Linux version "+k.release)) {
		t.Error("it does not contain its version")
	}
	packed, err := os.ReadFile(filepath.Join(k.dir, kernelImage))
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 0x250, 1000, len(packed) / 2} {
		if _, err := vmlinux(packed[:size]); err == nil {
			t.Errorf("%d bytes of it are accepted", size)
		}
	}
}

func FuzzLZ4(f *testing.F) {
	f.Add([]byte("\x40abcd"))
	f.Add([]byte("\x4fabcd\x01\x00\x05"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if out, err := appendLZ4(nil, data); err == nil && len(out) > lz4Block {
			t.Errorf("%d bytes", len(out))
		}
	})
}
