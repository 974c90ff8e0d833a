package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// playQMP answers the commands of one machine until the test ends, and fails one of them. It returns the directory of
// the machine.
func playQMP(t *testing.T, failAt, how string) string {
	t.Helper()
	dir := t.TempDir()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, qmpSocket))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answerQMP(ctx, c, failAt, how)
			_ = c.Close()
		}
	}()
	return dir
}

// answerQMP serves one connection.
func answerQMP(ctx context.Context, c net.Conn, failAt, how string) {
	_, _ = fmt.Fprintln(c, `{"QMP": {"version": {}}}`)
	for in := json.NewDecoder(c); ; {
		var command struct {
			Execute string `json:"execute"`
		}
		if in.Decode(&command) != nil {
			return
		}
		answer := `{"event": "STOP", "timestamp": {}}` + "\n" + `{"return": {"status": "completed"}}`
		if command.Execute == failAt {
			switch how {
			case "refuse":
				answer = `{"error": {"class": "GenericError", "desc": "ordered to refuse"}}`
			case "die":
				return
			case "hang":
				<-ctx.Done()
				return
			case "garbage":
				answer = "<html>\xff"
			case "long":
				answer = `{"return": "` + strings.Repeat("x", qmpMax)
			case "cut":
				_, _ = io.WriteString(c, `{"return": {`)
				return
			case "failed":
				answer = `{"return": {"status": "failed", "error-desc": "ordered to refuse"}}`
			}
		}
		if _, err := fmt.Fprintln(c, answer); err != nil {
			return
		}
	}
}

// TestAFailedCommandOfQEMUIsReported fails each command of a pause, a resume and a snapshot.
func TestAFailedCommandOfQEMUIsReported(t *testing.T) {
	q := qemu{}
	for name, c := range map[string]struct {
		commands []string
		do       func(ctx context.Context, m *hardware) error
	}{
		"pause":  {[]string{"qmp_capabilities", "stop"}, q.pause},
		"resume": {[]string{"qmp_capabilities", "cont"}, q.resume},
		"save": {
			[]string{"qmp_capabilities", "getfd", "migrate-set-parameters", "migrate", "query-migrate"},
			func(ctx context.Context, m *hardware) error { return q.save(ctx, m, t.TempDir()) },
		},
	} {
		for how, want := range map[string]string{
			"": "", "refuse": "ordered to refuse", "die": "has ended", "hang": "deadline", "garbage": "invalid character",
			"long": "has ended", "cut": "has ended", "failed": "ordered to refuse",
		} {
			for _, command := range c.commands {
				if how == "failed" && !slices.Contains([]string{"query-migrate"}, command) {
					continue
				}
				limit := 20 * time.Second
				if how == "hang" {
					limit = 100 * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				err := c.do(ctx, &hardware{dir: playQMP(t, command, how)})
				cancel()
				if how == "hang" && !errors.Is(err, context.DeadlineExceeded) || (err == nil) != (want == "") ||
					err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("%s, %s at %s: %v", name, how, command, err)
				}
			}
		}
	}
}

// TestAMachineHasNoOtherDevices checks that a machine has no network card, no vhost-vsock, which could reach every
// listener of the host, and nothing that QEMU adds by default.
func TestAMachineHasNoOtherDevices(t *testing.T) {
	for machine, bus := range map[string]string{MachineQ35: "-pci", MachineMicroVM: "-device"} {
		checkDevices(t, machine, bus)
	}
}

func checkDevices(t *testing.T, machine, bus string) {
	t.Helper()
	m := &hardware{dir: t.TempDir(), disk: "disk", cpus: 1, memory: 1 << 30, kvm: true, micro: machine == MachineMicroVM}
	args := qemu{}.args(m, &jail{dir: m.dir, uid: fakeUID, files: m.files()})
	var devices []string
	for i, a := range args {
		if a == "-device" {
			name, _, _ := strings.Cut(args[i+1], ",")
			devices = append(devices, name)
		}
	}
	want := []string{
		"virtio-serial" + bus, "virtserialport", "virtio-blk" + bus, "virtio-blk" + bus, "virtio-balloon" + bus, "virtio-blk" + bus,
	}
	if machine == MachineQ35 {
		want = append(want, "vmgenid")
	}
	if !slices.Equal(devices, want) {
		t.Errorf("%s: devices %q", machine, devices)
	}
	if at := slices.Index(args, "-machine"); at < 0 || !strings.HasPrefix(args[at+1], machine+",") {
		t.Errorf("%s: %q", machine, args)
	}
	if !slices.Contains(args, "-nodefaults") || !slices.Contains(args, "-no-user-config") || slices.Contains(args, "-netdev") {
		t.Errorf("%s: arguments %q", machine, args)
	}
}

// TestTheMachineIsWhatTheKernelFits has kernels whose module of the bus does or does not use ACPI, or is missing.
func TestTheMachineIsWhatTheKernelFits(t *testing.T) {
	b := emptyBackend(t)
	kernelWith := func(module string) *kernel {
		k := &kernel{release: "6.1", dir: t.TempDir()}
		path := filepath.Join(k.dir, kernelModules, "virtio_mmio.ko")
		err := os.Mkdir(filepath.Dir(path), 0o755)
		if module != "" {
			err = errors.Join(err, os.WriteFile(path, []byte(module), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	fits := kernelWith("alias=acpi*:LNRO0005:*\x00")
	for _, c := range []struct {
		asked string
		k     *kernel
		want  string
	}{
		{"", fits, MachineQ35},
		{MachineAuto, fits, MachineQ35},
		{MachineQ35, kernelWith(""), MachineQ35},
		{MachineMicroVM, fits, MachineMicroVM},
		{MachineMicroVM, kernelWith("no alias"), ""},
		{MachineMicroVM, kernelWith(""), ""},
	} {
		b.opts.Machine = c.asked
		got, err := b.machineType(qemu{}, c.k)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: %q, %v", c.asked, got, err)
		}
	}
	if got, err := b.machineType(firecracker{}, fits); got != "" || err != nil {
		t.Errorf("another monitor: %q, %v", got, err)
	}
	if _, err := New(Options{DataDir: t.TempDir(), Machine: "pc"}); v1.CodeOf(err) != v1.CodeInvalidSpec {
		t.Errorf("an unknown machine: %v", err)
	}
}
