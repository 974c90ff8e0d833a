package e2b

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// dataRoutes are all routes of the data plane: method, path, and port of the sandbox.
func dataRoutes() [][3]string {
	routes := [][3]string{
		{"GET", "/files?path=/etc/passwd", "49983"},
		{"POST", "/files?path=x", "49983"},
		{"GET", "/envs", "49983"},
		{"GET", "/metrics", "49983"},
		{"GET", "/health", "49983"},
		{"POST", "/execute", "49999"},
		{"GET", "/contexts", "49999"},
		{"POST", "/contexts", "49999"},
		{"DELETE", "/contexts/default", "49999"},
		{"POST", "/contexts/default/restart", "49999"},
		{"GET", "/health", "49999"},
	}
	for service, calls := range map[string]string{
		"process.Process":       "Start Connect List Update StreamInput SendInput CloseStdin SendSignal",
		"filesystem.Filesystem": "Stat ListDir MakeDir Move Remove WatchDir CreateWatcher GetWatcherEvents RemoveWatcher",
	} {
		for _, c := range strings.Fields(calls) {
			routes = append(routes, [3]string{"POST", "/" + service + "/" + c, "49983"})
		}
	}
	return routes
}

func TestHostileCallers(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	s := serve(t)
	key := s.vars["E2B_API_KEY"]
	a, b := s.create(key, `{"timeout":300}`), s.create(key, `{"timeout":300}`)

	t.Run("no route of the data plane works without the token of its sandbox", func(t *testing.T) {
		for _, r := range dataRoutes() {
			head := []string{"E2b-Sandbox-Id", a.Sandbox, "E2b-Sandbox-Port", r[2], "Content-Type", "application/json"}
			for name, token := range map[string][]string{
				"no token":                      nil,
				"the key":                       {"X-Access-Token", key, "X-API-Key", key},
				"a changed token":               {"X-Access-Token", "0" + a.Token[1:] + "0"},
				"the token of another sandbox":  {"X-Access-Token", b.Token},
				"the traffic token of another":  {"E2b-Traffic-Access-Token", b.Traffic},
				"the traffic token as the main": {"X-Access-Token", a.Traffic},
				"a token in another form":       {"Authorization", "Bearer " + a.Token},
			} {
				status, body := s.request(r[0], r[1], "{}", append(append([]string{}, head...), token...)...)
				if status != http.StatusUnauthorized && status != http.StatusBadGateway {
					t.Errorf("%s with %s: %d %s", r[1], name, status, body)
				}
			}
			// The traffic token opens requests about the interpreter, which have no other one, and nothing else.
			if r[2] != "49999" {
				if status, body := s.request(r[0], r[1], "{}", append(head, "E2b-Traffic-Access-Token", a.Traffic)...); status != http.StatusUnauthorized {
					t.Errorf("%s with the traffic token: %d %s", r[1], status, body)
				}
			}
		}
	})

	envd := []string{"E2b-Sandbox-Id", a.Sandbox, "E2b-Sandbox-Port", "49983", "X-Access-Token", a.Token}
	t.Run("no path leads to the host", func(t *testing.T) {
		secret := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
			t.Fatal(err)
		}
		up := strings.Repeat("../", 20)
		for _, p := range []string{
			secret, up + secret[1:], "/tmp/" + up + secret[1:], "/proc/1/root" + secret, "/proc/self/cwd/" + up + secret[1:],
			"~/" + up + secret[1:], "%2e%2e/" + secret, secret + "\x00x", "/.recluse/" + up + secret[1:],
		} {
			for _, method := range []string{"GET", "POST"} {
				head := append([]string{"Content-Type", "application/octet-stream"}, envd...)
				path := "/files?path=" + strings.ReplaceAll(urlEscape(p), "%252e", "%2e")
				status, body := s.request(method, path, "from inside", head...)
				if method == "GET" && (status == http.StatusOK || strings.Contains(body, "of the host")) && body != "from inside" {
					t.Errorf("%s %q: %d %s", method, p, status, body)
				}
			}
		}
		form := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + up + secret[1:] + "\"\r\n\r\nfrom inside\r\n--x--\r\n"
		s.request("POST", "/files", form, append([]string{"Content-Type", "multipart/form-data; boundary=x"}, envd...)...)
		if got, err := os.ReadFile(secret); err != nil || string(got) != "of the host" {
			t.Errorf("the file of the host: %q %v", got, err)
		}
	})

	t.Run("an oversized frame is refused before it arrives", func(t *testing.T) {
		for _, frame := range [][]byte{
			append([]byte{0}, binary.BigEndian.AppendUint32(nil, 1<<32-1)...),
			append([]byte{0}, binary.BigEndian.AppendUint32(nil, 9<<20)...),
			append([]byte{1}, binary.BigEndian.AppendUint32(nil, 1<<31)...), // compressed
		} {
			status, body := s.request("POST", "/process.Process/Start", string(frame)+"{}", append([]string{"Content-Type", "application/connect+json"}, envd...)...)
			if !strings.Contains(body, `"error"`) && status < 400 {
				t.Errorf("%x: %d %q", frame, status, body)
			}
		}
	})

	t.Run("a caller that does not read delays nobody", func(t *testing.T) {
		conn, err := net.Dial("tcp", s.Address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		body := `{"process":{"cmd":"/bin/bash","args":["-c","yes"]}}`
		body = string(append([]byte{0}, binary.BigEndian.AppendUint32(nil, uint32(len(body)))...)) + body
		fmt.Fprintf(conn, "POST /process.Process/Start HTTP/1.1\r\nHost: %s\r\nContent-Type: application/connect+json\r\nContent-Length: %d\r\n", s.Address, len(body))
		for i := 0; i < len(envd); i += 2 {
			fmt.Fprintf(conn, "%s: %s\r\n", envd[i], envd[i+1])
		}
		fmt.Fprintf(conn, "\r\n%s", body)
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
			t.Fatalf("%q %v", line, err)
		}
		for range 20 { // nothing is read from conn any more
			if status, body := s.request("POST", "/process.Process/List", "{}", append([]string{"Content-Type", "application/json"}, envd...)...); status != http.StatusOK || !strings.Contains(body, "yes") {
				t.Fatalf("%d %s", status, body)
			}
		}
	})

	t.Run("a caller that goes away leaves no half of a file", func(t *testing.T) {
		before := append([]string{"Content-Type", "application/octet-stream"}, envd...)
		if status, body := s.request("POST", "/files?path=/home/user/whole", "whole", before...); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		from, to := io.Pipe()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.vars["E2B_API_URL"]+"/files?path=/home/user/whole", from)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(before); i += 2 {
			r.Header.Set(before[i], before[i+1])
		}
		go func() {
			_, _ = to.Write(make([]byte, 8<<20))
			leave()
			_ = to.CloseWithError(context.Canceled) // the client waits until it has read the body
		}()
		if res, err := http.DefaultClient.Do(r); err == nil {
			_ = res.Body.Close()
			t.Errorf("%s", res.Status)
		}
		if status, body := s.request("GET", "/files?path=/home/user/whole", "", envd...); status != http.StatusOK || body != "whole" {
			t.Errorf("%d %.40q", status, body)
		}
		testneed.Await(t, "the parts of the upload are removed", func() bool {
			status, body := s.request("POST", "/filesystem.Filesystem/ListDir", `{"path":"/home/user"}`, append([]string{"Content-Type", "application/json"}, envd...)...)
			if status != http.StatusOK {
				t.Fatalf("%d %s", status, body)
			}
			return strings.Count(body, `"name"`) == strings.Count(body, `"whole"`)+strings.Count(body, `"name":"."`)
		})
	})
}

func urlEscape(p string) string {
	return strings.NewReplacer("%", "%25", "\x00", "%00", "?", "%3f", "#", "%23", " ", "%20").Replace(p)
}

// zeros is a reader of n zero bytes.
type zeros struct{ n int64 }

// Read implements io.Reader.
func (z *zeros) Read(b []byte) (int, error) {
	if z.n == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(b)), z.n)
	clear(b[:n])
	z.n -= n
	return int(n), nil
}

func TestUploadOfOneGigabyte(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	s := serve(t, "RECLUSE_SERVER_MAX_UPLOAD=1g")
	a := s.create(s.vars["E2B_API_KEY"], `{"timeout":300}`)
	post := func(size int64) (int, string) {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.vars["E2B_API_URL"]+"/files?path=big", &zeros{size})
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range headersOf(a) {
			r.Header.Set(name, value)
		}
		r.Header.Set("Content-Type", "application/octet-stream")
		res, err := http.DefaultClient.Do(r)
		if err != nil && size > 1<<30 { // the server may close the connection before it has read the rest
			return http.StatusRequestEntityTooLarge, ""
		}
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	size := func() string {
		_, body := s.request("POST", "/filesystem.Filesystem/Stat", `{"path":"big"}`, "E2b-Sandbox-Id", a.Sandbox, "E2b-Sandbox-Port", "49983",
			"X-Access-Token", a.Token, "Content-Type", "application/json")
		return body
	}
	begun := time.Now()
	if status, body := post(1 << 30); status != http.StatusOK || !strings.Contains(size(), `"1073741824"`) {
		t.Errorf("%d %s %s", status, body, size())
	}
	t.Logf("1 GiB in %s", time.Since(begun))
	if status, body := post(1<<30 + 1); status != http.StatusRequestEntityTooLarge || !strings.Contains(size(), `"1073741824"`) {
		t.Errorf("%d %s %s", status, body, size())
	}
	// The server keeps no file in memory.
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	var peak int
	if _, err := fmt.Sscan(rest, &peak); err != nil || peak > 512<<10 {
		t.Errorf("the server used %d KiB (%v)", peak, err)
	}
}
