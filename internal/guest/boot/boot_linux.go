package boot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/launch"
)

const (
	// deviceWait is how long a device may take to appear after its driver was loaded. An emulated machine on a busy host
	// is slow.
	deviceWait = 60 * time.Second
	devicePoll = 5 * time.Millisecond
	// openFiles is the guest's own limit of open files.
	openFiles = 16384
	// vsockBacklog is how many connections of the host may wait.
	vsockBacklog = 8
	// maxConfig bounds the disk with the configuration.
	maxConfig = 1 << 20
	// guestPath is the guest's program, in the initramfs and in the new root.
	guestPath = "/.recluse/recluse-guest"
	// newRoot, lower and upper are where the root file system is assembled.
	newRoot, lower, upper = "/new", "/lower", "/upper"
)

// Main boots the machine and becomes the guest. It returns only by staying: the machine must not end before the host
// has read the reason from the console.
func Main() {
	err := run()
	fmt.Fprintln(os.Stderr, launch.BootFailed, err)
	for {
		_ = unix.Pause() // returns after a signal
	}
}

func run() error {
	for _, m := range []struct{ kind, path string }{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}} {
		if err := mount(m.kind, m.kind, m.path, unix.MS_NOSUID|unix.MS_NOEXEC, ""); err != nil {
			return err
		}
	}
	if err := loadModules(); err != nil {
		return err
	}
	cfg, err := readConfig()
	if err != nil {
		return err
	}
	if err := makeRoot(cfg); err != nil {
		return err
	}
	if err := hardenKernel(); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	open := openPort
	if cfg.Guest.Vsock {
		open = listenVsock
	}
	port, err := open()
	if err != nil {
		return err
	}
	if err := enterRoot(); err != nil {
		return err
	}
	limit := &unix.Rlimit{Cur: openFiles, Max: openFiles}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, limit); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	text, err := json.Marshal(cfg.Guest)
	if err != nil {
		return err
	}
	for fd := range 2 {
		if err := unix.Dup3(port, fd, 0); err != nil {
			return fmt.Errorf("use the stream: %w", err)
		}
	}
	err = unix.Exec(guestPath, []string{guestPath}, []string{
		launch.ConfigEnv + "=" + string(text),
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	})
	return fmt.Errorf("start the guest: %w", err)
}

func mount(source, kind, path string, flags uintptr, options string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, path, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, path, err)
	}
	return nil
}

// loadModules loads the modules of the initramfs in the order of their list, which has dependencies first.
func loadModules() error {
	list, err := os.ReadFile(launch.ModuleList)
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(list)) {
		f, err := os.Open(filepath.Join(filepath.Dir(launch.ModuleList), name))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close() // opened for reading
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	return os.RemoveAll(filepath.Dir(launch.ModuleList)) // frees their memory
}

// await calls find until it succeeds.
func await(what string, find func() (string, bool)) (string, error) {
	for deadline := time.Now().Add(deviceWait); ; time.Sleep(devicePoll) {
		if path, ok := find(); ok {
			return path, nil
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("%s did not appear within %s", what, deviceWait)
		}
	}
}

// named returns the device whose attribute file, one of a pattern in /sys, has a value. The name of the device is that
// of the directory.
func named(pattern, value string) (string, bool) {
	files, _ := filepath.Glob(pattern) // the pattern is valid
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(text)) == value {
			return "/dev/" + filepath.Base(filepath.Dir(f)), true
		}
	}
	return "", false
}

// disks are the IDs of disks. A monitor that chooses IDs itself attaches them in this order.
var disks = []string{launch.RootDisk, launch.ConfigDisk, launch.DataDisk}

// disk returns the disk with an ID.
func disk(id string) (string, error) {
	return await("the disk "+id, func() (string, bool) {
		if path, ok := named("/sys/block/vd*/serial", id); ok {
			return path, true
		}
		path := fmt.Sprintf("/dev/vd%c", 'a'+slices.Index(disks, id))
		text, err := os.ReadFile("/sys/block/" + filepath.Base(path) + "/serial")
		_, missing := os.Stat(path)
		return path, err == nil && missing == nil && !slices.Contains(disks, strings.TrimSpace(string(text)))
	})
}

func readConfig() (*launch.Boot, error) {
	path, err := disk(launch.ConfigDisk)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	text = bytes.TrimRight(text, "\x00")
	if len(text) == 0 {
		// The host erases the configuration once the guest runs. This is a monitor that starts an ended machine again.
		return nil, fmt.Errorf("end the machine: %w", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
	}
	c := &launch.Boot{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return c, nil
}

// makeRoot assembles the root file system: the read-only image below a layer in memory.
func makeRoot(cfg *launch.Boot) error {
	root, err := disk(launch.RootDisk)
	if err != nil {
		return err
	}
	if err := mount(root, "squashfs", lower, unix.MS_RDONLY|unix.MS_NODEV, ""); err != nil {
		return err
	}
	if err := mountLayer(cfg); err != nil {
		return err
	}
	for _, d := range []string{"data", "work"} {
		if err := os.Mkdir(filepath.Join(upper, d), 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s/data,workdir=%s/work", lower, upper, upper)
	if err := mount("overlay", "overlay", newRoot, unix.MS_NODEV|unix.MS_NOSUID, layers); err != nil {
		return err
	}
	for _, d := range []string{"/dev", "/proc", "/sys"} {
		inside := filepath.Join(newRoot, d)
		if err := os.MkdirAll(inside, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(d, inside, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", d, err)
		}
	}
	dev := filepath.Join(newRoot, "dev")
	const terminals = "mode=620,gid=5,ptmxmode=666"
	if err := mount("devpts", "devpts", dev+"/pts", unix.MS_NOSUID|unix.MS_NOEXEC, terminals); err != nil {
		return err
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(to, filepath.Join(dev, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for _, t := range cfg.Guest.Tmpfs {
		if err := os.MkdirAll(filepath.Join(newRoot, t.Path), 0o755); err != nil {
			return err
		}
	}
	program := filepath.Join(newRoot, filepath.Dir(guestPath))
	if err := mount(filepath.Dir(guestPath), "", program, unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", program, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NODEV, "")
}

// mountLayer mounts what is written into: a disk, or memory.
func mountLayer(cfg *launch.Boot) error {
	if !cfg.Disk {
		size := fmt.Sprintf("size=%d,nr_inodes=%d,mode=755", cfg.LayerSize, cfg.LayerFiles)
		return mount("tmpfs", "tmpfs", upper, unix.MS_NODEV, size)
	}
	path, err := disk(launch.DataDisk)
	if err != nil {
		return err
	}
	// Blocks of deleted files are returned to the host. The size that programs see is the limit, with what the file
	// system itself needs. The disk is new: nothing is prepared in the background, which would take processor time and
	// blocks of the host just when the machine starts, and after each restore.
	const options = "discard,minixdf,noinit_itable,no_prefetch_block_bitmaps"
	return mount(path, "ext4", upper, unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOATIME, options)
}

// hardenKernel applies settings that code inside must not need.
func hardenKernel() error {
	for name, value := range map[string]string{
		"kernel/dmesg_restrict": "1", // addresses of the kernel
		"kernel/kptr_restrict":  "2",
		"kernel/panic":          "-1", // the end of the guest, which is process 1, must end the machine
		"kernel/core_pattern":   "/dev/null",
	} {
		if err := os.WriteFile(filepath.Join(newRoot, "proc/sys", name), []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	return nil
}

// openPort opens the serial port of the stream.
func openPort() (int, error) {
	name, err := await("the port of the stream", func() (string, bool) {
		dev, ok := named(newRoot+"/sys/class/virtio-ports/*/name", launch.StreamPort)
		return newRoot + dev, ok
	})
	if err != nil {
		return -1, err
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the port of the stream: %w", err)
	}
	return fd, nil
}

// listenVsock returns a socket on which the host connects to the guest.
func listenVsock() (int, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: launch.VsockPort})
	}
	if err == nil {
		err = unix.Listen(fd, vsockBacklog)
	}
	if err != nil {
		return -1, fmt.Errorf("listen on vsock: %w", err)
	}
	return fd, nil
}

// enterRoot makes the new root the root of everything.
func enterRoot() error {
	if err := unix.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Chdir("/")
}
