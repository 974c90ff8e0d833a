package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/launch"
)

const (
	// cloudHypervisorMinimum is the first version without a known escape of the guest.
	cloudHypervisorMinimum = "52"
	cloudHypervisorProgram = "cloud-hypervisor"
	// consoleSocket is where the console can be read. What nobody reads stays in a bounded buffer of the monitor.
	consoleSocket = "console"
	// savedDir is where the monitor writes a state, in its own directory.
	savedDir = "saved"
)

// cloudHypervisorFiles are the files of a saved state.
var cloudHypervisorFiles = []string{"config.json", "memory-ranges", "state.json"}

// cloudHypervisor is the monitor Cloud Hypervisor.
type cloudHypervisor struct{ path string }

func (c cloudHypervisor) name() string { return MonitorCloudHypervisor }

func (c cloudHypervisor) program() string { return c.path }

func (c cloudHypervisor) version(ctx context.Context) (string, error) {
	return scanVersion(ctx, c.path, "cloud-hypervisor v")
}

func (c cloudHypervisor) home(m *hardware) string { return m.dir }

func (c cloudHypervisor) api(m *hardware) api {
	return api{dir: m.dir, prefix: "/api/v1", fault: func(body []byte) string {
		var causes []string
		_ = json.Unmarshal(body, &causes) // another body is shown as it is
		return strings.Join(causes, ": ")
	}}
}

func (c cloudHypervisor) jail(m *hardware) *jail {
	j := &jail{dir: m.dir, uid: m.uid, program: c.path, files: m.files(), devs: []string{"/dev/kvm"}}
	if m.from != "" {
		j.files["state"] = m.from
	}
	return j
}

func (c cloudHypervisor) start(ctx context.Context, m *hardware, began func(pid int) error) error {
	j := c.jail(m)
	//nolint:forbidigo // no ctx, because the machine outlives this program
	cmd := exec.Command(j.programPath(), "--api-socket", "path="+apiSocket, "--seccomp", "true")
	l, err := launchMonitor(cmd, m, j.start, began)
	if err != nil {
		return err
	}
	console := ""
	err = c.setUp(ctx, m, j, l, &console)
	return l.finish(ctx, err, console)
}

func (c cloudHypervisor) setUp(ctx context.Context, m *hardware, j *jail, l *launched, console *string) error {
	a := c.api(m)
	if err := a.await(ctx, l, "/vmm.ping", nil); err != nil {
		return err
	}
	if m.from != "" {
		err := a.call(ctx, stateWait, http.MethodPut, "/vm.restore", object{"source_url": "file://" + j.path("state")}, nil)
		if err == nil {
			err = a.call(ctx, apiWait, http.MethodPut, "/vm.resume", nil, nil)
		}
		if err != nil {
			return err
		}
		return l.awaitVsock(ctx, m.dir, func() string { return "" })
	}
	disk := func(id, path string, readOnly bool) object {
		return object{"path": path, "readonly": readOnly, "id": id, "serial": id, "image_type": "Raw"}
	}
	disks := []object{disk(launch.RootDisk, j.path("root"), true), disk(launch.ConfigDisk, configFile, true)}
	if m.disk != "" {
		disks = append(disks, disk(launch.DataDisk, diskFile, false))
	}
	err := a.run(ctx, apiWait, []step{
		{http.MethodPut, "/vm.create", object{
			"cpus":    object{"boot_vcpus": m.cpus, "max_vcpus": m.cpus},
			"memory":  object{"size": m.memory},
			"payload": object{"kernel": j.path("kernel"), "initramfs": j.path("initramfs"), "cmdline": m.kernelArgs()},
			"disks":   disks,
			"rng":     object{"src": "/dev/urandom"},
			"balloon": object{"size": 0, "deflate_on_oom": false, "free_page_reporting": true},
			"serial":  object{"mode": "Socket", "socket": consoleSocket},
			"console": object{"mode": "Off"},
			"vsock":   object{"cid": guestCID, "socket": streamSocket},
		}},
		{http.MethodPut, "/vm.boot", nil},
	})
	if err != nil {
		return err
	}
	read := c.readConsole(ctx, m)
	defer func() { *console = read(true) }()
	return l.awaitVsock(ctx, m.dir, func() string { return read(false) })
}

// readConsole returns a function that returns what the guest has written to the console so far.
func (c cloudHypervisor) readConsole(ctx context.Context, m *hardware) func(last bool) string {
	var text []byte
	conn, err := dialIn(ctx, m.dir, consoleSocket)
	if err != nil {
		return func(bool) string { return "" } // without it, a failed boot is not explained
	}
	return func(last bool) string {
		part := make([]byte, 4096)
		for len(text) < consoleSize {
			if err := conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
				break
			}
			n, err := conn.Read(part)
			text = append(text, part[:n]...)
			if err != nil {
				break
			}
		}
		if last {
			_ = conn.Close() // it was only read
		}
		return string(text)
	}
}

func (c cloudHypervisor) dial(ctx context.Context, m *hardware) (net.Conn, error) {
	return dialVsock(ctx, m.dir)
}

// pause and resume ask for the state first: the monitor refuses both if there is nothing to do.
func (c cloudHypervisor) pause(ctx context.Context, m *hardware) error {
	return c.change(ctx, m, "Running", "/vm.pause")
}

func (c cloudHypervisor) resume(ctx context.Context, m *hardware) error {
	return c.change(ctx, m, "Paused", "/vm.resume")
}

// change sends a request if the machine is in a state.
func (c cloudHypervisor) change(ctx context.Context, m *hardware, state, path string) error {
	a := c.api(m)
	var info struct {
		State string `json:"state"`
	}
	if err := a.call(ctx, apiWait, http.MethodGet, "/vm.info", nil, &info); err != nil {
		return err
	}
	switch info.State {
	case state:
		return a.call(ctx, apiWait, http.MethodPut, path, nil, nil)
	case "Running", "Paused":
		return nil
	}
	return fmt.Errorf("the machine is in the state %s", info.State)
}

func (c cloudHypervisor) save(ctx context.Context, m *hardware, to string) error {
	own := filepath.Join(m.dir, savedDir)
	if err := os.RemoveAll(own); err != nil { // of a snapshot that was interrupted
		return err
	}
	defer func() { _ = os.RemoveAll(own) }() // what is left is removed with the sandbox
	if err := os.Mkdir(own, 0o700); err != nil {
		return err
	}
	// The monitor may replace the directory at any moment, so only the descriptor is used.
	fd, err := openIn(m.dir, savedDir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), own)
	defer dir.Close()
	inside := m.dir // the name by which the monitor knows its directory
	if m.uid != 0 {
		inside = jailDir
		if err := dir.Chown(m.uid, m.uid); err != nil {
			return err
		}
	}
	err = c.api(m).call(ctx, stateWait, http.MethodPut, "/vm.snapshot",
		object{"destination_url": "file://" + filepath.Join(inside, savedDir)}, nil)
	for _, name := range cloudHypervisorFiles {
		if err == nil {
			err = moveOut(fd, name, to)
		}
	}
	return err
}
