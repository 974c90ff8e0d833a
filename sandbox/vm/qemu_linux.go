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

const (
	// qmpSocket is the control socket in the directory of a machine.
	qmpSocket = "qmp"
	// qemuState is the file of a saved state.
	qemuState = "memory"
	// savePoll is how often a machine is asked whether its state has been written.
	savePoll = 5 * time.Millisecond
	// translationCache is the memory in MiB for translated code, which an emulated machine uses besides its own. QEMU
	// would take up to a GiB.
	translationCache = 256
)

// qemu is the monitor QEMU.
type qemu struct{ path string }

func (q qemu) name() string { return MonitorQEMU }

func (q qemu) program() string { return q.path }

func (q qemu) home(m *hardware) string { return m.dir }

func (q qemu) version(ctx context.Context) (string, error) {
	return scanVersion(ctx, q.path, "version ")
}

// args returns the command line. The machine has disks, one serial port, a balloon and a console, and nothing else.
func (q qemu) args(m *hardware, j *jail) []string {
	// Without protection keys, which flush the cache of addresses at each switch of a process, and without page tables of
	// five levels: both are slow to emulate.
	accel, cpu := fmt.Sprintf("tcg,tb-size=%d", translationCache), "max,-pku,-la57"
	if m.kvm {
		accel, cpu = "kvm", "host"
	}
	machine, bus := qemuPC, "pci"
	if m.micro {
		machine, bus = qemuMicroVM, "device"
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", machine, "-accel", accel, "-cpu", cpu,
		"-smp", fmt.Sprint(m.cpus), "-m", fmt.Sprintf("%dk", m.memory>>10),
		"-kernel", j.path("kernel"), "-initrd", j.path("initramfs"), "-append", m.kernelArgs(),
		"-chardev", fmt.Sprintf("ringbuf,id=console,size=%d", consoleSize), "-serial", "chardev:console",
		"-chardev", "socket,id=qmp,path=" + qmpSocket + ",server=on,wait=off", "-mon", "chardev=qmp,mode=control",
		"-chardev", "socket,id=stream,path=" + streamSocket + ",server=on,wait=off",
		"-device", "virtio-serial-" + bus + ",max_ports=2",
		"-device", "virtserialport,chardev=stream,name=" + launch.StreamPort,
		"-drive", "if=none,id=root,format=raw,readonly=on,file=" + escape(j.path("root")),
		"-device", "virtio-blk-" + bus + ",drive=root,serial=" + launch.RootDisk,
		"-drive", "if=none,id=config,format=raw,readonly=on,file=" + configFile,
		"-device", "virtio-blk-" + bus + ",drive=config,serial=" + launch.ConfigDisk,
		"-device", "virtio-balloon-" + bus + ",free-page-reporting=on",
	}
	if m.disk != "" {
		// A full disk of the host is an error of the write; the machine would otherwise stop. What the guest flushes
		// need not survive a crash of the host.
		args = append(args, "-drive", "if=none,id=disk,format=raw,cache=unsafe,discard=unmap,werror=report,rerror=report,"+
			"file="+diskFile, "-device", "virtio-blk-"+bus+",drive=disk,serial="+launch.DataDisk)
	}
	if m.kvm && !m.micro {
		// The kernel inside renews its random numbers as soon as it runs in a copy, before our guest does. A microvm cannot
		// have this device, and it is slow to emulate.
		args = append(args, "-device", "vmgenid,guid=auto")
	}
	if m.from != "" {
		args = append(args, "-incoming", "fd:3")
	}
	return args
}

// The types of machine. Debian's kernel finds the devices of a microvm only with ACPI, and then hangs without the usual
// timers and interrupts.
const (
	qemuPC      = "q35,vmport=off,smbus=off,sata=off,i8042=off,hpet=off"
	qemuMicroVM = "microvm,acpi=on,pit=on,pic=on,rtc=on"
)

// escape doubles the commas in a path, which would end it.
func escape(path string) string { return strings.ReplaceAll(path, ",", ",,") }

func (q qemu) start(ctx context.Context, m *hardware, began func(pid int) error) error {
	j := &jail{dir: m.dir, uid: m.uid, program: q.path, files: m.files()}
	if m.kvm {
		j.devs = []string{"/dev/kvm"}
	}
	//nolint:forbidigo // no ctx, because the machine outlives this program
	cmd := exec.Command(j.programPath(), q.args(m, j)...)
	if m.from != "" {
		state, err := os.Open(filepath.Join(m.from, qemuState))
		if err != nil {
			return err
		}
		defer state.Close()
		cmd.ExtraFiles = []*os.File{state}
	}
	l, err := launchMonitor(cmd, m, j.start, began)
	if err != nil {
		return err
	}
	var console strings.Builder
	err = q.awaitGuest(ctx, m, l, &console)
	return l.finish(ctx, err, console.String())
}

// awaitGuest waits until the guest has opened its port, and collects what it writes to the console until then.
func (q qemu) awaitGuest(ctx context.Context, m *hardware, l *launched, console *strings.Builder) error {
	pause := func() error { return l.pause(ctx) }
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
	if m.from != "" {
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
			case <-l.ended:
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

func (q qemu) dial(ctx context.Context, m *hardware) (net.Conn, error) {
	return dialIn(ctx, m.dir, streamSocket)
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

func (q qemu) pause(ctx context.Context, m *hardware) error { return q.do(ctx, m.dir, "stop") }

func (q qemu) resume(ctx context.Context, m *hardware) error { return q.do(ctx, m.dir, "cont") }

// save implements monitor by a migration into a file.
func (q qemu) save(ctx context.Context, m *hardware, to string) error {
	state, err := os.OpenFile(filepath.Join(to, qemuState), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer state.Close()
	c, err := openQMP(ctx, m.dir)
	if err != nil {
		return err
	}
	defer c.close()
	const name = "state"
	if err := c.passFile(ctx, name, state); err != nil {
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
