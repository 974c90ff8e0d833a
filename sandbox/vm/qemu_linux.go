package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/launch"
)

// qemuProgram is the name of QEMU.
const qemuProgram = "qemu-system-x86_64"

// Names of sockets in the directory of a machine.
const (
	qmpSocket    = "qmp"
	streamSocket = "stream"
)

const (
	// bootPoll is how often a booting machine is asked whether its guest has opened its port.
	bootPoll = 20 * time.Millisecond
	// savePoll is how often a machine is asked whether its state has been written.
	savePoll = 5 * time.Millisecond
	// consoleSize is the memory that QEMU keeps of the console. The guest can write to it without end.
	consoleSize = 64 << 10
	// translationCache is the memory in MiB for translated code, which an emulated machine uses besides its own. QEMU
	// would take up to a GiB.
	translationCache = 256
)

// qemu is the monitor QEMU.
type qemu struct{ path string }

func (q qemu) program() string { return q.path }

func (q qemu) version(ctx context.Context) (string, error) {
	out, err := output(ctx, "/", q.path, "--version")
	line, _, _ := strings.Cut(out, "\n")
	_, version, _ := strings.Cut(line, "version ")
	version, _, _ = strings.Cut(version, " ")
	return version, err
}

// args returns the command line. The machine has disks, one serial port, a balloon and a console, and nothing else.
func (q qemu) args(m *hardware, j *jail) []string {
	accel, cpu := fmt.Sprintf("tcg,tb-size=%d", translationCache), "max"
	if m.kvm {
		accel, cpu = "kvm", "host"
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", qemuMachine, "-accel", accel, "-cpu", cpu,
		"-smp", fmt.Sprint(m.cpus), "-m", fmt.Sprintf("%dk", m.memory>>10),
		"-kernel", j.path("kernel"), "-initrd", j.path("initramfs"), "-append", kernelArgs,
		"-chardev", fmt.Sprintf("ringbuf,id=console,size=%d", consoleSize), "-serial", "chardev:console",
		"-chardev", "socket,id=qmp,path=" + qmpSocket + ",server=on,wait=off", "-mon", "chardev=qmp,mode=control",
		"-chardev", "socket,id=stream,path=" + streamSocket + ",server=on,wait=off",
		"-device", "virtio-serial-" + qemuBus + ",max_ports=2",
		"-device", "virtserialport,chardev=stream,name=" + launch.StreamPort,
		"-drive", "if=none,id=root,format=raw,readonly=on,file=" + escape(j.path("root")),
		"-device", "virtio-blk-" + qemuBus + ",drive=root,serial=" + launch.RootDisk,
		"-drive", "if=none,id=config,format=raw,readonly=on,file=" + configFile,
		"-device", "virtio-blk-" + qemuBus + ",drive=config,serial=" + launch.ConfigDisk,
		"-device", "virtio-balloon-" + qemuBus + ",free-page-reporting=on",
	}
	if m.from != nil {
		args = append(args, "-incoming", "fd:3")
	}
	return args
}

// The machine and the bus of its devices. Debian's kernel finds devices on PCI only, or with ACPI.
const qemuMachine, qemuBus = "q35,vmport=off,smbus=off,sata=off,i8042=off,hpet=off", "pci"

// escape doubles the commas in a path, which would end it.
func escape(path string) string { return strings.ReplaceAll(path, ",", ",,") }

func (q qemu) start(ctx context.Context, m *hardware, began func(pid int) error) error {
	j := &jail{
		dir: m.dir, uid: m.uid,
		files: map[string]string{"kernel": m.kernel, "initramfs": m.initramfs, "root": m.root},
	}
	if m.kvm {
		j.devs = []string{"/dev/kvm"}
	}
	//nolint:forbidigo // no ctx, because the machine outlives this program
	cmd := exec.Command(q.path, q.args(m, j)...)
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stderr = log
	if m.from != nil {
		cmd.ExtraFiles = []*os.File{m.from}
	}
	if err := j.start(cmd); err != nil {
		return fmt.Errorf("start QEMU: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the machine's watcher reports how it ended
	}()
	if err := began(cmd.Process.Pid); err != nil {
		return err
	}
	var console strings.Builder
	err = q.awaitGuest(ctx, m, ended, &console)
	if err == nil || ctx.Err() != nil {
		return err
	}
	text, _ := os.ReadFile(m.log)
	if words := strings.TrimSpace(string(text)); words != "" {
		err = fmt.Errorf("%w: %s", err, words)
	}
	if words := bootMessage(console.String()); words != "" {
		err = fmt.Errorf("%w: %s", err, words)
	}
	return err
}

var errMonitorEnded = errors.New("the monitor has ended")

// awaitGuest waits until the guest has opened its port, and collects what it writes to the console until then.
func (q qemu) awaitGuest(ctx context.Context, m *hardware, ended <-chan struct{}, console *strings.Builder) error {
	pause := func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return errMonitorEnded
		case <-time.After(bootPoll):
			return nil
		}
	}
	var c *qmp
	for {
		var err error
		if c, err = openQMP(ctx, m.dir); err == nil {
			break
		}
		if err := pause(); err != nil { // the socket is not there yet
			return err
		}
	}
	defer c.close()
	if m.from != nil {
		if err := q.awaitRestored(ctx, c, pause); err != nil {
			return err
		}
		return c.command(ctx, "cont", nil, nil)
	}
	for {
		var text string
		_ = c.command(ctx, "ringbuf-read", map[string]any{"device": "console", "size": consoleSize}, &text)
		if console.Len() < consoleSize {
			console.WriteString(text)
		}
		if strings.Contains(text, launch.BootFailed) {
			return errors.New("the guest could not boot")
		}
		var devices []struct {
			Label string `json:"label"`
			Open  bool   `json:"frontend-open"`
		}
		if err := c.command(ctx, "query-chardev", nil, &devices); err != nil {
			select {
			case <-ended:
				return errMonitorEnded
			case <-time.After(bootPoll):
			}
			return err
		}
		for _, d := range devices {
			if d.Label == "stream" && d.Open {
				return nil
			}
		}
		if err := pause(); err != nil {
			return err
		}
	}
}

// awaitRestored waits until QEMU has read the state of the machine.
func (q qemu) awaitRestored(ctx context.Context, c *qmp, pause func() error) error {
	for {
		var st struct {
			Status string `json:"status"`
		}
		if err := c.command(ctx, "query-status", nil, &st); err != nil {
			return err
		}
		switch st.Status {
		case "inmigrate":
		case "paused", "postmigrate", "prelaunch":
			return nil
		default:
			return fmt.Errorf("the restored machine is in the state %s", st.Status)
		}
		if err := pause(); err != nil {
			return err
		}
	}
}

// bootMessage returns what the end of a console says about a failed boot.
func bootMessage(console string) string {
	lines := strings.Split(strings.ToValidUTF8(strings.TrimSpace(console), "?"), "\n")
	for _, l := range lines {
		if _, reason, ok := strings.Cut(l, launch.BootFailed); ok {
			return strings.TrimSpace(reason)
		}
	}
	const shown = 5
	return strings.Join(lines[max(0, len(lines)-shown):], "\n")
}

func (q qemu) dial(ctx context.Context, dir string) (net.Conn, error) {
	return dialIn(ctx, dir, streamSocket)
}

// do runs one command on a connection of its own.
func (q qemu) do(ctx context.Context, dir, command string) error {
	c, err := openQMP(ctx, dir)
	if err != nil {
		return err
	}
	defer c.close()
	return c.command(ctx, command, nil, nil)
}

func (q qemu) pause(ctx context.Context, dir string) error { return q.do(ctx, dir, "stop") }

func (q qemu) resume(ctx context.Context, dir string) error { return q.do(ctx, dir, "cont") }

// save implements monitor by a migration into a file.
func (q qemu) save(ctx context.Context, dir string, to *os.File) error {
	c, err := openQMP(ctx, dir)
	if err != nil {
		return err
	}
	defer c.close()
	const name = "state"
	if err := c.passFile(ctx, name, to); err != nil {
		return err
	}
	speed := map[string]any{"max-bandwidth": int64(1) << 40}
	if err := c.command(ctx, "migrate-set-parameters", speed, nil); err != nil {
		return err
	}
	if err := c.command(ctx, "migrate", map[string]any{"uri": "fd:" + name}, nil); err != nil {
		return err
	}
	for {
		var st struct {
			Status string `json:"status"`
			Error  string `json:"error-desc"`
		}
		if err := c.command(ctx, "query-migrate", nil, &st); err != nil {
			return err
		}
		switch st.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("qemu: the state was not written: %s", st.Error)
		}
		select {
		case <-ctx.Done():
			_ = c.command(context.WithoutCancel(ctx), "migrate_cancel", nil, nil)
			return ctx.Err()
		case <-time.After(savePoll):
		}
	}
}

// findQEMU returns the path of QEMU.
func findQEMU(path string) (string, error) {
	if path == "" {
		path = qemuProgram
	}
	found, err := exec.LookPath(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(found)
}
