package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/dockertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
)

// Whether a runtime leaves the guest CAP_NET_RAW is found by a trial, whose result other programs of the instance use.
// Without a trial, the sandbox itself is one.
func TestEgressOfRuntimes(t *testing.T) {
	for runtime, want := range map[string]sandbox.Egress{
		"runc":        sandbox.EgressListedPorts,
		"runsc":       sandbox.EgressAllPorts,
		"runsc-plain": sandbox.EgressListedPorts,
	} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t, func(o *Options) { o.Runtime = runtime })
			public := sandbox.Spec{Network: v1.Network{Preset: v1.NetworkPublic}}
			refused := map[bool]v1.Code{true: "", false: v1.CodeNotSupported}[want == sandbox.EgressAllPorts]
			tryPublic := func() {
				t.Helper()
				sb, err := sandbox.Open(t.Context(), b, public)
				if v1.CodeOf(err) != refused || err != nil && !strings.Contains(err.Error(), "allows 65535 ports") {
					t.Error(err)
				}
				if sb != nil {
					_ = sb.Close()
				}
			}
			tryPublic() // before the trial
			if all, err := b.List(t.Context()); err != nil || len(all) > 0 {
				t.Errorf("left behind: %v, %v", all, err)
			}
			first := newBackend(t, func(o *Options) { o.Runtime, o.Dir, o.Instance = runtime, b.dir, b.instance })
			try(t, first)
			if c := b.Capabilities(t.Context()); c.Egress != want {
				t.Errorf("%s: %q", c.Egress, c.Notes)
			}
			tryPublic()
		})
	}
}

// try makes a trial sandbox, and waits for its end.
func try(t *testing.T, b *Backend) {
	t.Helper()
	if h := b.Health(t.Context()); !h.OK {
		t.Fatal(h)
	}
	testneed.Await(t, "the end of the trial", func() bool { _, found := b.proofs.Kept(); return found })
}

// The network group of the feature suite on a runtime that does not permit redirection.
func TestNetworkWithoutRedirection(t *testing.T) {
	testneed.All(t, "the parts are tested with runc and runsc")
	b := newBackend(t, func(o *Options) { o.Runtime = "runsc-plain" })
	try(t, b) // until then, the suite expects that connections are redirected
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return b }, sandboxtest.Options{Only: []string{"network"}})
}

func TestNetworksOfTheDockerEngine(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.Network = "bridge" })
	if c := b.Capabilities(t.Context()); c.Egress != sandbox.EgressUnfiltered {
		t.Errorf("%s: %q", c.Egress, c.Notes)
	}
	for preset, want := range map[v1.NetworkPreset]v1.Code{v1.NetworkPackages: v1.CodeNotSupported, v1.NetworkPublic: v1.CodeNotSupported} {
		if _, err := sandbox.Open(t.Context(), b, sandbox.Spec{Network: v1.Network{Preset: preset}}); v1.CodeOf(err) != want {
			t.Errorf("%s: %v", preset, err)
		}
	}
	filtered := newBackend(t, func(o *Options) { o.UnsafeHostConfig = true })
	spec := sandbox.Spec{Options: map[string]json.RawMessage{Name: json.RawMessage(`{"host_config": {"NetworkMode": "bridge"}}`)}}
	if _, err := sandbox.Open(t.Context(), filtered, spec); v1.CodeOf(err) != v1.CodeConsentMissing {
		t.Errorf("a network in the host config of a spec: %v", err)
	}
	t.Setenv("RECLUSE_ENV", "production")
	if _, err := New(Options{Host: engineHost, Network: "bridge", Dir: t.TempDir()}); v1.CodeOf(err) != v1.CodeConsentMissing {
		t.Errorf("a network in production: %v", err)
	}
}

// The network works again after a pause, and in a program that attaches after the previous one was killed. A connection
// of the killed program ends.
func TestTheNetworkSurvivesWhatOthersDo(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello ", r.Host) }))
	t.Cleanup(server.Close)
	port := server.Listener.Addr().(*net.TCPAddr).Port
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t, func(o *Options) { o.Runtime = runtime })
			cmd, id := maker(t, b, true, fmt.Sprintf("%s_RULE=allow a.example.test:%d", makerEnv, port))
			kill(cmd)
			sb, err := sandbox.Attach(t.Context(), b, id)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { sb.Detach() }()
			page := func(what string) {
				t.Helper()
				code := fmt.Sprintf("import urllib.request\nurllib.request.urlopen('http://a.example.test:%d/', timeout=20).read().decode()", port)
				v, err := sb.Cell(t.Context(), sandbox.Cell{Code: code})
				if err != nil || !v.OK() || !strings.Contains(v.Result.Text(), "hello a.example.test") {
					t.Errorf("%s: %v, %v", what, v, err)
				}
			}
			page("after the program was killed")
			live := fmt.Sprintf("import socket\nlive = socket.create_connection(('a.example.test', %d), 20); live.settimeout(20)\nlive.sendall(b'GET / HTTP/1.1\\r\\n')", port)
			if v, err := sb.Cell(t.Context(), sandbox.Cell{Code: live}); err != nil || !v.OK() {
				t.Fatal(v, err)
			}
			container := docker(t, "ps", "-q", "--no-trunc", "--filter", "label="+labelSandbox+"="+id)
			docker(t, "pause", container)
			docker(t, "unpause", container)
			testneed.Await(t, "the end of the pause", func() bool { return sb.Ping(t.Context()) == nil })
			page("after a pause")
			v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "live.sendall(b'Host: a.example.test\\r\\n\\r\\n'); live.recv(12).decode()"})
			if err != nil || !v.OK() || v.Result.Text() != "'HTTP/1.1 200'" {
				t.Errorf("a connection during a pause: %v, %v", v, err)
			}
			sb.Detach()
			if sb, err = sandbox.Attach(t.Context(), b, id); err != nil {
				t.Fatal(err)
			}
			v, err = sb.Cell(t.Context(), sandbox.Cell{Code: "try:\n    while live.recv(1000): pass\n    r = 'end'\nexcept ConnectionResetError:\n    r = 'reset'\nr"})
			if err != nil || !v.OK() || v.Wall > 5*time.Second {
				t.Errorf("a connection of the earlier attachment: %v, %v", v, err)
			}
			page("after attaching again")
		})
	}
}

// The certificates that the host trusts are added to those of an image.
func TestAnImageTrustsTheAuthoritiesOfTheHost(t *testing.T) {
	host, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		testneed.Lacking(t, "the certificates of ca-certificates")
	}
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("of the image")})
	file := filepath.Join(t.TempDir(), "mine.pem")
	if err := os.WriteFile(file, own, 0o644); err != nil {
		t.Fatal(err)
	}
	b := newBackend(t, nil) // before the commands, because it skips the test without a Docker engine
	image := "recluse-test-" + randomHex(4)
	container := docker(t, "create", "--network", "none", testImage, "true")
	docker(t, "cp", file, container+":/etc/mine.pem")
	docker(t, "commit", "--change", "ENV SSL_CERT_FILE=/etc/mine.pem", container, image)
	docker(t, "rm", container)
	t.Cleanup(func() { docker(t, "rmi", image) })
	sb := open(t, b, sandbox.Spec{Image: image, Network: v1.Network{Preset: v1.NetworkPackages}})
	got := shell(t, sb, `for v in $SSL_CERT_FILE $REQUESTS_CA_BUNDLE $NODE_EXTRA_CA_CERTS; do [ $v = $GIT_SSL_CAINFO ] || exit 1; done; cat $SSL_CERT_FILE`)
	for what, part := range map[string][]byte{"of the image": own, "the host's first": host[:bytes.Index(host, []byte("-----END"))]} {
		if !strings.Contains(got, string(part)) {
			t.Errorf("the certificate is missing: %s", what)
		}
	}
	if got := shell(t, open(t, b, sandbox.Spec{Image: image}), "echo $SSL_CERT_FILE $PIP_RETRIES"); got != "/etc/mine.pem 0\n" {
		t.Errorf("without a policy: %q", got)
	}
}

// A Docker engine that restarts and leaves its containers running (live-restore) interrupts the stream. After the next
// attachment, the network works without a restart of anything inside.
func TestTheNetworkAfterARestartOfTheDockerEngine(t *testing.T) {
	testneed.All(t, "starts a Docker engine of its own")
	newBackend(t, nil) // skips the test without a Docker engine
	if os.Getenv(dockertest.Variable) != "" && os.Getenv(dockertest.OwnedVariable) == "" {
		t.Skip("SKIPPED: an engine that is not the tests' own is not restarted")
	}
	dir, err := os.MkdirTemp("", "recluse-restart-")
	if err != nil {
		t.Fatal(err)
	}
	script := func(args ...string) string {
		out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "../../scripts/docker-engine.sh", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	host := script("start", dir)
	t.Cleanup(func() { script("stop", dir) })
	file := filepath.Join(dir, "daemon.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("{"), []byte(`{"live-restore": true,`), 1)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	pid := func() int {
		text, _ := os.ReadFile(filepath.Join(dir, "pid")) // missing between two engines
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return pid
	}
	first := pid()
	if err := syscall.Kill(first, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := buildImage(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	own, err := New(Options{Host: host, Image: testImage, Pull: PullNever, Dir: t.TempDir(), GuestPath: guestPath, Egress: sandboxtest.Network()})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	spec := sandbox.Spec{Persist: true, Network: v1.Network{Rules: []v1.NetworkRule{"allow a.test"}}}
	sb, err := sandbox.Open(t.Context(), own, spec)
	if err != nil {
		t.Fatal(err)
	}
	shell(t, sb, "getent hosts a.test")
	if err := syscall.Kill(first, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testneed.Await(t, "the end of the engine", func() bool { return syscall.Kill(first, 0) != nil })
	next := exec.CommandContext(context.WithoutCancel(t.Context()), "dockerd", "--config-file", file)
	if err := next.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { go func() { _ = next.Wait() }() }) // docker-engine.sh ends it
	testneed.Await(t, "the next engine", func() bool { return own.QuickHealth(t.Context()).OK })
	id := sb.ID()
	sb.Detach()
	testneed.Await(t, "an attachment", func() bool {
		sb, err = sandbox.Attach(t.Context(), own, id)
		return err == nil
	})
	defer sb.Close()
	shell(t, sb, "getent hosts a.test")
}
