package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/launch"
)

const (
	// firecrackerMinimum is the first version without the hangs of vsock after a pause and the lost data after a restore,
	// and whose jailer does not follow links.
	firecrackerMinimum = "1.16.2"
	firecrackerProgram = "firecracker"
	// jailerProgram is installed beside firecrackerProgram and has the same version.
	jailerProgram = "jailer"
	// guestCID is the address of the guest. It is the same in all machines, because each has a monitor of its own.
	guestCID = 3
	// Names of the files of a saved state.
	firecrackerState, firecrackerMemory = "vmstate", "memory"
	consoleFile                         = "console"
	// monitorFiles is the limit of open files of a monitor.
	monitorFiles = 1024
)

// firecracker is the monitor Firecracker.
type firecracker struct{ path string }

func (f firecracker) name() string { return MonitorFirecracker }

func (f firecracker) program() string { return f.path }

func (f firecracker) version(ctx context.Context) (string, error) {
	return scanVersion(ctx, f.path, "Firecracker v")
}

// home is the root of the jail, if there is one: a directory that the jailer expects at this place.
func (f firecracker) home(m *hardware) string {
	if m.uid == 0 {
		return m.dir
	}
	return filepath.Join(m.dir, filepath.Base(f.path), m.id, "root")
}

func (f firecracker) api(m *hardware) api {
	return api{dir: f.home(m), fault: func(body []byte) string {
		var answer struct {
			Message string `json:"fault_message"`
		}
		_ = json.Unmarshal(body, &answer) // another body is shown as it is
		return answer.Message
	}}
}

// command returns the command line: of the jailer if the monitor gets a user of its own.
func (f firecracker) command(m *hardware) *exec.Cmd {
	own := []string{"--api-sock", apiSocket}
	if m.uid == 0 {
		//nolint:forbidigo // no ctx, because the machine outlives this program
		return exec.Command(f.path, append(own, "--id", m.id)...)
	}
	uid := fmt.Sprint(m.uid)
	args := []string{
		"--id", m.id, "--exec-file", f.path, "--uid", uid, "--gid", uid, "--chroot-base-dir", m.dir,
		"--cgroup-version", "2", // without a cgroup to join or make, it makes none
		"--resource-limit", fmt.Sprintf("no-file=%d", monitorFiles), "--",
	}
	//nolint:forbidigo // no ctx, because the machine outlives this program
	return exec.Command(filepath.Join(filepath.Dir(f.path), jailerProgram), append(args, own...)...)
}

// launch starts the process. The jailer makes its own mount namespace and drops all rights; we add empty namespaces of
// the network, of IPC and of the host name.
func (f firecracker) launch(cmd *exec.Cmd, m *hardware) error {
	if m.uid == 0 {
		j := &jail{dir: m.dir, program: f.path, files: f.files(m), devs: []string{"/dev/kvm"}}
		if m.from != "" {
			j.files["state"] = m.from
		}
		return j.start(cmd)
	}
	if err := f.fillJail(m); err != nil {
		return err
	}
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	return cmd.Start()
}

// files returns the read-only files of a machine by their names. The kernel is uncompressed.
func (f firecracker) files(m *hardware) map[string]string {
	files := m.files()
	files["kernel"] = uncompressed(m.kernel)
	return files
}

// fillJail links the files of a machine into the root of its jail.
func (f firecracker) fillJail(m *hardware) error {
	home := f.home(m)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	files := f.files(m)
	files[configFile] = filepath.Join(m.dir, configFile)
	if m.disk != "" {
		files[diskFile] = m.disk
	}
	if m.from != "" {
		for _, name := range []string{firecrackerState, firecrackerMemory} {
			files[name+".saved"] = filepath.Join(m.from, name)
		}
	}
	for name, path := range files {
		if err := linkOrCopy(path, filepath.Join(home, name)); err != nil {
			return err
		}
	}
	return os.Chown(home, m.uid, m.uid)
}

// linkOrCopy makes a file available under another name: by a link, or by a copy on another disk.
func linkOrCopy(from, to string) error {
	err := os.Link(from, to)
	if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EMLINK) {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// paths returns the paths under which the monitor finds its files.
func (f firecracker) paths(m *hardware) (file func(name string) string, saved func(name string) string) {
	if m.uid != 0 {
		return func(name string) string { return name }, func(name string) string { return name + ".saved" }
	}
	files := f.files(m)
	return func(name string) string { return files[name] }, func(name string) string { return filepath.Join(m.from, name) }
}

func (f firecracker) start(ctx context.Context, m *hardware, began func(pid int) error) error {
	l, err := launchMonitor(f.command(m), m, func(cmd *exec.Cmd) error { return f.launch(cmd, m) }, began)
	if err != nil {
		return err
	}
	err = f.setUp(ctx, m, l)
	return l.finish(ctx, err, f.console(m))
}

func (f firecracker) setUp(ctx context.Context, m *hardware, l *launched) error {
	a := f.api(m)
	var info struct {
		State   string `json:"state"`
		Version string `json:"vmm_version"`
	}
	if err := a.await(ctx, l, "/", &info); err != nil {
		return err
	}
	if info.State != "Not started" {
		return fmt.Errorf("the machine is already %s", info.State)
	}
	file, saved := f.paths(m)
	if m.from != "" {
		err := a.call(ctx, stateWait, http.MethodPut, "/snapshot/load", object{
			"snapshot_path": saved(firecrackerState),
			"mem_backend":   object{"backend_type": "File", "backend_path": saved(firecrackerMemory)},
			"resume_vm":     true,
		}, nil)
		if err != nil {
			return err
		}
		return l.awaitVsock(ctx, f.home(m), func() string { return "" })
	}
	disk := func(id, path string, readOnly bool) step {
		return step{http.MethodPut, "/drives/" + id, object{
			"drive_id": id, "path_on_host": path, "is_root_device": false, "is_read_only": readOnly,
		}}
	}
	steps := []step{
		// What exceeds the first burst is dropped, so the console cannot fill the disk.
		{http.MethodPut, "/serial", object{"serial_out_path": consoleFile, "rate_limiter": object{
			"size": 1, "one_time_burst": consoleSize, "refill_time": 3600 * 1000,
		}}},
		{http.MethodPut, "/machine-config", object{
			"vcpu_count": m.cpus, "mem_size_mib": (m.memory + 1<<20 - 1) >> 20, "smt": false,
		}},
		{http.MethodPut, "/boot-source", object{
			"kernel_image_path": file("kernel"), "initrd_path": file("initramfs"), "boot_args": "reboot=k " + m.kernelArgs(),
		}},
		// The order of the disks is the order in which the guest knows them: there are no IDs inside.
		disk(launch.RootDisk, file("root"), true),
		disk(launch.ConfigDisk, configFile, true),
	}
	if m.disk != "" {
		steps = append(steps, disk(launch.DataDisk, diskFile, false))
	}
	err := a.run(ctx, apiWait, append(steps, []step{
		{http.MethodPut, "/balloon", object{"amount_mib": 0, "deflate_on_oom": false, "free_page_reporting": true}},
		{http.MethodPut, "/entropy", object{}},
		{http.MethodPut, "/vsock", object{"guest_cid": guestCID, "uds_path": streamSocket}},
		{http.MethodPut, "/actions", object{"action_type": "InstanceStart"}},
	}...))
	if err != nil {
		return err
	}
	return l.awaitVsock(ctx, f.home(m), func() string { return f.console(m) })
}

// console returns what the guest has written to the console while it booted.
func (f firecracker) console(m *hardware) string {
	fd, err := openIn(f.home(m), consoleFile, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return ""
	}
	file := os.NewFile(uintptr(fd), consoleFile)
	defer file.Close()
	var text strings.Builder
	_, _ = io.Copy(&text, io.LimitReader(file, consoleSize)) // what could be read is enough
	return text.String()
}

func (f firecracker) dial(ctx context.Context, m *hardware) (net.Conn, error) {
	return dialVsock(ctx, f.home(m))
}

func (f firecracker) pause(ctx context.Context, m *hardware) error { return f.state(ctx, m, "Paused") }

func (f firecracker) resume(ctx context.Context, m *hardware) error {
	return f.state(ctx, m, "Resumed")
}

func (f firecracker) state(ctx context.Context, m *hardware, state string) error {
	return f.api(m).call(ctx, apiWait, http.MethodPatch, "/vm", object{"state": state}, nil)
}

func (f firecracker) save(ctx context.Context, m *hardware, to string) error {
	dir, err := os.Open(f.home(m))
	if err != nil {
		return err
	}
	defer dir.Close()
	names := []string{firecrackerState, firecrackerMemory}
	remove := func() {
		for _, name := range names {
			_ = unix.Unlinkat(int(dir.Fd()), name, 0) // what is left is removed with the sandbox
		}
	}
	remove() // of a snapshot that was interrupted
	defer remove()
	err = f.api(m).call(ctx, stateWait, http.MethodPut, "/snapshot/create", object{
		"snapshot_type": "Full", "snapshot_path": firecrackerState, "mem_file_path": firecrackerMemory,
	}, nil)
	for _, name := range names {
		if err == nil {
			err = moveOut(int(dir.Fd()), name, to)
		}
	}
	return err
}
