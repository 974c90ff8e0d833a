package vm

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/guest/launch"
)

// The modules that a machine needs, in the order in which they are loaded. They may be built into the kernel.
var (
	neededModules = []string{"virtio_pci", "virtio_blk", "virtio_console", "squashfs", "overlay"}
	// networkModules redirect connections to the guest. crc32c is what libcrc32c asks the kernel's crypto API for.
	networkModules = []string{
		"crc32c_generic", "iptable_nat", "iptable_filter", "xt_REDIRECT", "xt_tcpudp", "ipt_REJECT",
	}
	// vsockModules are what Firecracker and Cloud Hypervisor need besides.
	vsockModules = []string{"virtio_mmio", "vmw_vsock_virtio_transport"}
	// diskModules are the file system of the writable disk.
	diskModules = []string{"crc32c_generic", "ext4"}
	// otherModules are used one by one if there are any: virtio_balloon returns idle memory to the host, and vmgenid tells
	// the kernel that it runs in a copy.
	otherModules = []string{"virtio_balloon", "vmgenid"}
)

// Names in the directory of a prepared kernel.
const (
	kernelImage   = "vmlinuz"
	kernelModules = "modules"
	kernelRelease = "release"
	kernelMadeBy  = "version" // contains kernelVersion
	kernelVMLinux = "vmlinux" // the same kernel, uncompressed
	// These exist if the kernel lacks modules.
	kernelLacks   = "without-network"
	kernelNoVsock = "without-vsock"
	kernelNoDisk  = "without-disk"
)

// kernelVersion is incremented when this file prepares the same kernel in another way.
const kernelVersion = "5"

// kernel is a kernel that is prepared for machines.
type kernel struct {
	id      string
	dir     string
	release string
	network bool
	vsock   bool
	disk    bool
	current bool // prepared as this version does it
}

// lacksMicroVM returns why the kernel finds no devices of a microvm, which are listed in tables of ACPI and have the
// bus mmio. Only a module says whether it reads these tables.
func (k *kernel) lacksMicroVM() error {
	const bus, listed = "virtio_mmio", "acpi*:LNRO0005:*"
	module, err := os.ReadFile(filepath.Join(k.dir, kernelModules, bus+".ko"))
	if err == nil && !bytes.Contains(module, []byte(listed)) {
		err = errors.New("its module " + bus + " does not use ACPI")
	}
	return err
}

// uncompressed returns the path of the uncompressed form of a kernel.
func uncompressed(image string) string { return filepath.Join(filepath.Dir(image), kernelVMLinux) }

// openKernel returns the prepared kernel with an ID.
func (b *Backend) openKernel(id string) (*kernel, error) {
	k := &kernel{id: id, dir: filepath.Join(b.dir, "kernels", id)}
	release, err := os.ReadFile(filepath.Join(k.dir, kernelRelease))
	if err != nil {
		return nil, err
	}
	_, err = os.Stat(filepath.Join(k.dir, kernelLacks))
	k.release, k.network = string(release), errors.Is(err, fs.ErrNotExist)
	_, err = os.Stat(filepath.Join(k.dir, kernelNoVsock))
	k.vsock = errors.Is(err, fs.ErrNotExist)
	_, err = os.Stat(filepath.Join(k.dir, kernelNoDisk))
	k.disk = errors.Is(err, fs.ErrNotExist)
	made, _ := os.ReadFile(filepath.Join(k.dir, kernelMadeBy)) // earlier versions did not write it
	k.current = string(made) == kernelVersion
	k.disk = k.disk && k.current
	return k, nil
}

// prepareKernel copies a kernel and the modules that machines need, once. Several processes may call it at the same
// time.
func (b *Backend) prepareKernel(ctx context.Context, image, modules string) (*kernel, error) {
	data, err := os.ReadFile(image)
	if err != nil {
		return nil, setupError("cannot read the kernel", "", err)
	}
	release, err := releaseOf(data)
	if err != nil {
		return nil, setupError(image+" cannot be used", "name another kernel: vm.kernel and vm.modules", err)
	}
	tree, err := surveyModules(modules)
	if err != nil {
		return nil, setupError("the modules of the kernel "+release+" cannot be read",
			"name their directory: vm.modules", err)
	}
	list, err := tree.resolve(neededModules)
	if err != nil {
		return nil, setupError("the kernel "+release+" lacks a module", "use another kernel, such as Debian's "+
			"linux-image-cloud-amd64", err)
	}
	lacks := map[string]error{}
	plain, err := vmlinux(data)
	if err != nil {
		lacks[kernelNoVsock] = err
	}
	type group struct {
		modules []string
		mark    string
	}
	groups := []group{{networkModules, kernelLacks}, {vsockModules, kernelNoVsock}, {diskModules, kernelNoDisk}}
	for _, name := range otherModules {
		groups = append(groups, group{[]string{name}, ""})
	}
	for _, group := range groups {
		more, err := tree.resolve(group.modules)
		if err != nil {
			if group.mark != "" {
				lacks[group.mark] = err
			}
			continue
		}
		for _, name := range more {
			if !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}
	sum := sha256.New()
	fmt.Fprintln(sum, kernelVersion)
	sum.Write(data)
	for _, name := range list {
		fmt.Fprintf(sum, "%s\n", name)
		sum.Write(tree.content[name])
	}
	id := hex.EncodeToString(sum.Sum(nil))[:16]
	if k, err := b.openKernel(id); err == nil {
		return k, nil
	}
	dir := filepath.Join(b.dir, "kernels", id)
	fill := func(temp string) error {
		files := map[string][]byte{
			kernelImage: data, kernelRelease: []byte(release), kernelMadeBy: []byte(kernelVersion),
			filepath.Join(kernelModules, "list"): []byte(strings.Join(fileNames(list), "\n") + "\n"),
		}
		for _, name := range list {
			files[filepath.Join(kernelModules, name+".ko")] = tree.content[name]
		}
		if plain != nil {
			files[kernelVMLinux] = plain
		}
		for mark, why := range lacks {
			files[mark] = []byte(why.Error())
		}
		if err := os.Mkdir(filepath.Join(temp, kernelModules), 0o755); err != nil {
			return err
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(temp, name), content, 0o644); err != nil {
				return err
			}
		}
		return nil
	}
	if err := b.buildDir(ctx, dir, fill); err != nil {
		return nil, setupError("the kernel cannot be copied", "", err)
	}
	return b.openKernel(id)
}

func fileNames(modules []string) []string {
	out := make([]string, len(modules))
	for i, m := range modules {
		out[i] = m + ".ko"
	}
	return out
}

// buildDir makes a directory that appears when it is complete. If several processes want it, one makes it.
func (b *Backend) buildDir(ctx context.Context, dir string, fill func(temp string) error) error {
	lock, err := filelock.Acquire(ctx, filepath.Join(b.dir, "setup.lock"))
	if err != nil {
		return err
	}
	defer lock.Release()
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	temp, err := b.newTemp(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }() // already renamed, unless a step failed
	if err := fill(temp); err != nil {
		return err
	}
	return os.Rename(temp, dir)
}

// newTemp makes a temporary directory, after it has removed those of dead programs.
//
// Preconditions: the lock of the setup is held.
func (b *Backend) newTemp(parent string) (string, error) {
	old, _ := filepath.Glob(filepath.Join(parent, backendkit.NewPrefix+"*"))
	for _, path := range old {
		if err := os.RemoveAll(path); err != nil {
			return "", err
		}
	}
	return os.MkdirTemp(parent, backendkit.NewPrefix)
}

// releaseOf returns the release of a kernel for this architecture.
func releaseOf(image []byte) (string, error) {
	const magicAt, versionAt, versionBase = 0x202, 0x20e, 0x200 // Documentation/arch/x86/boot.rst
	switch {
	case len(image) > 0x40 && string(image[0x38:0x3c]) == "ARM\x64":
		return "", errors.New("it is a kernel for arm64")
	case len(image) < versionAt+2 || string(image[magicAt:magicAt+4]) != "HdrS":
		return "", errors.New("it is not a kernel image for amd64 (bzImage)")
	}
	at := versionBase + int(binary.LittleEndian.Uint16(image[versionAt:]))
	if at >= len(image) {
		return "", errors.New("it is not a complete kernel image")
	}
	text, _, _ := bytes.Cut(image[at:min(len(image), at+256)], []byte{0})
	release, _, _ := strings.Cut(string(text), " ")
	if release == "" {
		return "", errors.New("it does not have a release")
	}
	return release, nil
}

// vmlinux returns the uncompressed kernel in a bzImage, which older versions of Firecracker need.
func vmlinux(image []byte) ([]byte, error) {
	const setupSectors, payloadAt, payloadSize, sector = 0x1f1, 0x248, 0x24c, 512 // Documentation/arch/x86/boot.rst
	if len(image) < payloadSize+4 {
		return nil, errors.New("it is not a complete kernel image")
	}
	from := (max(int(image[setupSectors]), 4)+1)*sector + int(binary.LittleEndian.Uint32(image[payloadAt:]))
	size := int(binary.LittleEndian.Uint32(image[payloadSize:]))
	if size < 8 || from < 0 || from > len(image)-size {
		return nil, errors.New("it is not a complete kernel image")
	}
	packed := image[from : from+size]
	var out []byte
	var err error
	switch {
	case bytes.HasPrefix(packed, []byte("\x1f\x8b")):
		var r *gzip.Reader
		if r, err = gzip.NewReader(bytes.NewReader(packed)); err == nil {
			r.Multistream(false)
			out, err = io.ReadAll(r)
		}
	case bytes.HasPrefix(packed, []byte("\x28\xb5\x2f\xfd")):
		out, err = unpackZstd(packed[:size-4])
	case bytes.HasPrefix(packed, []byte("\xfd7zXZ\x00")):
		out, err = unpackXZ(packed[:size-4])
	case bytes.HasPrefix(packed, []byte(lz4Magic)):
		out, err = unpackLZ4(packed[:size-4]) // the size of the kernel follows
	default:
		err = errors.New("its compression is not supported")
	}
	if err == nil && !bytes.HasPrefix(out, []byte("\x7fELF")) {
		err = errors.New("it does not contain an ELF file")
	}
	return out, err
}

func unpackZstd(data []byte) ([]byte, error) {
	r, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.DecodeAll(data, nil)
}

func unpackXZ(data []byte) ([]byte, error) {
	//nolint:forbidigo // it ends with its input
	cmd := exec.Command("xz", "-dc")
	cmd.Stdin = bytes.NewReader(data)
	return cmd.Output()
}

// moduleTree is the modules of a kernel.
type moduleTree struct {
	files   map[string]string // path of each module, by name
	builtin map[string]bool
	content map[string][]byte // of the modules that were read
}

// moduleName returns the name under which the kernel knows the module in a file.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

func surveyModules(dir string) (*moduleTree, error) {
	t := &moduleTree{files: map[string]string{}, builtin: map[string]bool{}, content: map[string][]byte{}}
	err := filepath.WalkDir(filepath.Join(dir, "kernel"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(d.Name(), ".ko") {
			t.files[moduleName(path)] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		t.builtin[moduleName(lines.Text())] = true
	}
	return t, nil
}

// resolve returns modules and everything that they depend on, dependencies first, without those that are built in.
func (t *moduleTree) resolve(names []string) (list []string, err error) {
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		if seen[name] || t.builtin[name] {
			return nil
		}
		seen[name] = true
		content, err := t.read(name)
		if err != nil {
			return err
		}
		needs, err := dependencies(content)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, n := range needs {
			if err := visit(n); err != nil {
				return err
			}
		}
		list = append(list, name)
		return nil
	}
	for _, name := range names {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// read returns the uncompressed content of a module.
func (t *moduleTree) read(name string) ([]byte, error) {
	if c := t.content[name]; c != nil {
		return c, nil
	}
	path := t.files[name]
	if path == "" {
		return nil, fmt.Errorf("module %s not found", name)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	switch filepath.Ext(path) {
	case ".gz":
		var r *gzip.Reader
		if r, err = gzip.NewReader(bytes.NewReader(data)); err == nil {
			data, err = io.ReadAll(r)
		}
	case ".zst":
		data, err = unpackZstd(data)
	case ".xz":
		data, err = unpackXZ(data)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t.content[name] = data
	return data, nil
}

// dependencies returns the modules that a module needs, as it declares them.
func dependencies(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	info := f.Section(".modinfo")
	if info == nil {
		return nil, errors.New("it is not a kernel module")
	}
	data, err := info.Data()
	if err != nil {
		return nil, err
	}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if names, ok := strings.CutPrefix(string(entry), "depends="); ok && names != "" {
			return strings.Split(strings.ReplaceAll(names, "-", "_"), ","), nil
		}
	}
	return nil, nil
}

// initramfs returns the path of the initramfs of a kernel and a guest. It is built once.
func (b *Backend) initramfs(ctx context.Context, k *kernel, guestPath, guestHash string) (string, error) {
	path := filepath.Join(b.dir, "images", "initramfs-"+k.id+"-"+guestHash[:min(16, len(guestHash))]+".cpio")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	guest, err := os.ReadFile(guestPath)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	a := &archive{w: &out}
	for _, d := range []string{"dev", "proc", "sys", ".recluse", "modules", "new", "lower", "upper"} {
		a.add(d, typeDir|0o755, nil)
	}
	modules, err := os.ReadDir(filepath.Join(k.dir, kernelModules))
	if err != nil {
		return "", err
	}
	for _, m := range modules {
		content, err := os.ReadFile(filepath.Join(k.dir, kernelModules, m.Name()))
		if err != nil {
			return "", err
		}
		a.add(filepath.Join(filepath.Dir(launch.ModuleList)[1:], m.Name()), typeFile|0o644, content)
	}
	a.add(".recluse/recluse-guest", typeFile|0o755, guest)
	a.add("init", typeLink|0o777, []byte(".recluse/recluse-guest"))
	if err := a.close(); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return path, atomicfile.Write(path, out.Bytes(), 0o644)
}

// findKernel returns a kernel of the host, whose root is top, or downloads that of a Debian package into dir.
func findKernel(
	ctx context.Context, top, dir string, report func(string),
) (image, modules, origin string, err error) {
	prefix := filepath.Join(top, "boot/vmlinuz-")
	images, _ := filepath.Glob(prefix + "*")
	slices.Sort(images)
	for _, image := range slices.Backward(images) {
		release := strings.TrimPrefix(image, prefix)
		modules := filepath.Join(top, "lib/modules", release)
		tree, err := surveyModules(modules)
		if err == nil {
			_, err = tree.resolve(neededModules)
		}
		if err == nil {
			var f *os.File
			if f, err = os.Open(image); err == nil {
				_ = f.Close() // opened for reading
				return image, modules, image, nil
			}
		}
		report(fmt.Sprintf("kernel: %s does not fit: %v", image, err))
	}
	return downloadKernel(ctx, dir, report)
}

// debianKernel is the package that depends on Debian's current kernel for virtual machines.
const debianKernel = "linux-image-cloud-amd64"

func downloadKernel(ctx context.Context, dir string, report func(string)) (image, modules, origin string, err error) {
	fail := func(what string, err error) (string, string, string, error) {
		return "", "", "", setupError(what, "install a kernel for virtual machines, or name one: vm.kernel and vm.modules",
			err)
	}
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fail("this host has no kernel that fits, and a package can only be downloaded on Debian and its relatives",
				err)
		}
	}
	out, err := output(ctx, dir, "apt-cache", "depends", "--important", debianKernel)
	if err != nil {
		return fail("the package "+debianKernel+" is not known", err)
	}
	name := ""
	for line := range strings.Lines(out) {
		if found, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && name == "" {
			name = found
		}
	}
	if name == "" {
		return fail("the package "+debianKernel+" has no kernel", nil)
	}
	report("kernel: downloading the package " + name)
	if _, err := output(ctx, dir, "apt-get", "-o", "APT::Sandbox::User=root", "download", name); err != nil {
		return fail("the package "+name+" cannot be downloaded", err)
	}
	packages, _ := filepath.Glob(filepath.Join(dir, "*.deb"))
	if len(packages) != 1 {
		return fail("the package "+name+" was not downloaded", nil)
	}
	if _, err := output(ctx, dir, "dpkg-deb", "-x", packages[0], filepath.Join(dir, "files")); err != nil {
		return fail("the package "+name+" cannot be unpacked", err)
	}
	images, _ := filepath.Glob(filepath.Join(dir, "files/boot/vmlinuz-*"))
	trees, _ := filepath.Glob(filepath.Join(dir, "files/lib/modules/*"))
	if len(trees) == 0 {
		trees, _ = filepath.Glob(filepath.Join(dir, "files/usr/lib/modules/*"))
	}
	if len(images) != 1 || len(trees) != 1 {
		return fail("the package "+name+" does not contain a kernel", nil)
	}
	return images[0], trees[0], "Debian package " + strings.TrimSuffix(filepath.Base(packages[0]), ".deb"), nil
}

// output runs a program and returns its stdout. The error has its stderr.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

func setupError(what, remedy string, err error) error {
	if _, ok := errors.AsType[*v1.Error](err); ok {
		return err
	}
	return &v1.Error{Code: v1.CodeStartFailed, Op: "set up virtual machines", Message: what, Remedy: remedy, Err: err}
}
