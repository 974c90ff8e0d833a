package dockertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Timing of Podman's service.
const (
	podmanWait  = time.Minute // how long the service may take to answer, and to end
	podmanPause = 50 * time.Millisecond
)

// podmanUlimit is the limit that containers get. The default of Podman is higher than what root has on some machines.
const podmanUlimit = 16384

// podmanBase is the maximum length of the directory for temporary files: Podman refuses directories with names of more
// than 50 bytes.
const podmanBase = 20

// podman is a private service with its own socket, storage and settings.
type podman struct {
	dir string
	cmd *exec.Cmd
	end chan error // receives the result of the service process
}

// StartPodman starts Podman's service, which implements the API of the Docker engine.
func StartPodman(ctx context.Context) (*Engine, error) {
	if _, err := exec.LookPath("podman"); err != nil {
		return nil, fmt.Errorf("%w: podman not found", ErrMissing)
	}
	if os.Getuid() != 0 {
		return nil, fmt.Errorf("%w: only root can start Podman's service", ErrMissing)
	}
	base := os.TempDir()
	if len(base) > podmanBase {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "recluse-podman-")
	if err != nil {
		return nil, err
	}
	p := &podman{dir: dir, end: make(chan error, 1)}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start Podman's service: %w", err), p.stop())
	}
	return &Engine{Host: "unix://" + p.socket(), stop: p.stop}, nil
}

func (p *podman) socket() string { return filepath.Join(p.dir, "podman.sock") }

// command returns a podman command that uses the directories of this service.
func (p *podman) command(ctx context.Context, args ...string) *exec.Cmd {
	own := []string{
		"--root", filepath.Join(p.dir, "data"),
		"--runroot", filepath.Join(p.dir, "run"),
		"--tmpdir", filepath.Join(p.dir, "tmp"),
	}
	cmd := exec.CommandContext(ctx, "podman", append(own, args...)...)
	cmd.Dir = p.dir // when a container is OOM-killed, its monitor leaves a file in the working directory of the service
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+filepath.Join(p.dir, "containers.conf"))
	return cmd
}

func (p *podman) start(ctx context.Context) error {
	runtime := "crun"
	if _, err := exec.LookPath(runtime); err != nil {
		runtime = "runc"
	}
	conf := fmt.Sprintf(`[containers]
default_ulimits = ["nofile=%[1]d:%[1]d", "nproc=%[1]d:%[1]d"]
[engine]
runtime = %[2]q
cgroup_manager = "cgroupfs"
events_logger = "file"
`, podmanUlimit, runtime)
	if err := os.WriteFile(filepath.Join(p.dir, "containers.conf"), []byte(conf), 0o600); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the service has its own descriptor
	cmd := p.command(context.WithoutCancel(ctx), "system", "service", "--time", "0", "unix://"+p.socket())
	cmd.Stdout, cmd.Stderr = log, log
	// Its own process session: an interrupt at the terminal is for the tests, which then stop the service.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd = cmd
	go func() { p.end <- cmd.Wait() }()
	return p.await(ctx)
}

// await waits until the service answers.
func (p *podman) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, podmanWait)
	defer cancel()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", p.socket())
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://podman/_ping", nil)
		if err != nil {
			return err
		}
		res, err := c.Do(req)
		if err == nil {
			return res.Body.Close()
		}
		select {
		case err := <-p.end:
			p.end <- err
			text, _ := os.ReadFile(filepath.Join(p.dir, "log")) // as much as there is
			return fmt.Errorf("the service has ended: %w: %s", err, strings.TrimSpace(string(text)))
		case <-ctx.Done():
			return fmt.Errorf("the service does not answer: %w", err)
		case <-time.After(podmanPause):
		}
	}
}

// stop stops the service and removes everything in it.
func (p *podman) stop() error {
	var errs []error
	if p.cmd != nil {
		ctx, cancel := context.WithTimeout(context.Background(), podmanWait)
		defer cancel()
		if text, err := p.command(ctx, "rm", "--all", "--force", "--time", "0").CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove containers: %w: %s", err, text))
		}
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // the service may have ended
		select {
		case <-p.end:
		case <-ctx.Done():
			_ = p.cmd.Process.Kill()
			<-p.end
		}
	}
	// The monitor of a container may still be cleaning up, and mount the storage again while it is removed.
	for end := time.Now().Add(podmanWait); ; time.Sleep(podmanPause) {
		p.unmount()
		err := os.RemoveAll(p.dir)
		if err == nil || time.Now().After(end) {
			return errors.Join(append(errs, err)...)
		}
	}
}

// unmount unmounts the file systems of Podman, which would prevent the removal of the directory.
func (p *podman) unmount() {
	text, _ := os.ReadFile("/proc/self/mountinfo") // if it cannot be read, nothing is unmounted and the removal fails
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], p.dir+"/") {
			_ = unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
}
