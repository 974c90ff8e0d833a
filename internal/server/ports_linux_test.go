package server_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// webServer is a server inside. It reports requests as JSON, and has a stream of events, a large file, an echo over a
// WebSocket, and a page.
const webServer = `
import base64, hashlib, http.server, json, struct, threading
go, done = threading.Event(), threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self, body, *headers):
        self.send_response(200)
        for name, value in headers + (("Content-Length", str(len(body))),):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"data: one\n\n")
            go.wait(60)
            self.wfile.write(b"data: two\n\n")
            self.close_connection = True
        elif self.path.startswith("/large/"):
            n = int(self.path[7:])
            self.send_response(200)
            self.send_header("Content-Length", str(n))
            self.end_headers()
            while n:
                self.wfile.write(bytes(min(n, 1 << 20)))
                n -= min(n, 1 << 20)
        elif self.path == "/loaded": # until then, the page is loading
            done.wait(60)
            self.answer(b"")
        elif self.path == "/done":
            done.set()
            self.answer(b"")
        elif self.path == "/page":
            self.answer(PAGE, ("Content-Type", "text/html"))
        elif self.path == "/ws":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            while True:
                head = self.rfile.read(2)
                if len(head) < 2 or head[0] & 15 == 8: break
                n = head[1] & 127
                if n == 126: n = struct.unpack(">H", self.rfile.read(2))[0]
                mask, data = self.rfile.read(4), bytearray(self.rfile.read(n))
                for i in range(n): data[i] ^= mask[i % 4]
                size = bytes([n]) if n < 126 else bytes([126]) + struct.pack(">H", n)
                self.wfile.write(head[:1] + size + data)
            self.close_connection = True
        else:
            self.report()
    def report(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        seen = {"method": self.command, "path": self.path, "headers": self.headers.items(), "body": body}
        self.answer(json.dumps(seen).encode(), ("Content-Type", "application/json"), ("Set-Cookie", "app=1; Path=/; Domain=localhost; HttpOnly"),
            ("Set-Cookie", "recluse_port=stolen"), ("X-Frame-Options", "DENY"))
    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = report
PAGE = b"""<!doctype html><title>page</title><p id=out>waiting</p><img src=/loaded><script type=module>
const ws = new WebSocket("ws://" + location.host + "/ws");
ws.onopen = () => ws.send("hello");
const m = await new Promise(ok => ws.onmessage = ok);
const seen = await (await fetch("/seen", {method: "POST", body: "data"})).json();
document.getElementById("out").textContent = "socket " + m.data + ", fetch " + seen.method + " " + seen.body + ", cookies [" + document.cookie + "] " + location.search;
fetch("/done");
</script>"""
web = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler)
threading.Thread(target=web.serve_forever, daemon=True).start()
`

// openWeb opens a session with the server on port 8000.
func openWeb(t *testing.T, k *servertest.Bench, tenant, name string) *session.Session {
	t.Helper()
	ses := open(t, k, tenant, name)
	v, err := ses.Cell(t.Context(), sandbox.Cell{Code: webServer})
	if err != nil || !v.OK() {
		t.Fatalf("%+v %v", v, err)
	}
	return ses
}

// seen is a request as the server inside has seen it.
type seen struct {
	Method, Path, Body string
	Headers            [][2]string
}

func (s seen) header(name string) string {
	var all []string
	for _, h := range s.Headers {
		if strings.EqualFold(h[0], name) {
			all = append(all, h[1])
		}
	}
	return strings.Join(all, "|")
}

// byHost returns a client that connects to the server whatever the name of the host, as a browser does with names below
// localhost.
func byHost(t *testing.T, k *servertest.Bench) *http.Client {
	t.Helper()
	at := strings.TrimPrefix(k.URL, "http://")
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", at)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// TestPortsOverHTTP uses a server inside in both forms: the path and the host name.
func TestPortsOverHTTP(t *testing.T) {
	k := servertest.New(t, server.Options{})
	key := k.Key("default", "execute")
	ses := openWeb(t, k, "default", "work")
	by := byHost(t, k)
	port := k.URL[strings.LastIndexByte(k.URL, ':'):]
	forms := map[string]string{
		"path": k.URL + "/v1/sessions/work/ports/8000/http",
		"host": "http://8000-work.localhost" + port,
		"id":   "http://8000-" + ses.ID() + ".localhost" + port,
	}
	for form, base := range forms {
		t.Run(form, func(t *testing.T) {
			do := func(method, path, body string, header ...string) (http.Header, string) {
				req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+key)
				for i := 0; i+1 < len(header); i += 2 {
					req.Header.Add(header[i], header[i+1])
				}
				res, err := by.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				b, err := io.ReadAll(res.Body)
				if err != nil {
					t.Fatal(err)
				}
				if res.StatusCode != http.StatusOK {
					t.Errorf("%s %s: %s", method, path, res.Status)
				}
				return res.Header, string(b)
			}
			const raw = "/a//../%2e%2E/b%2Fc;d?x=%zz&y=1;2"
			header, body := do(http.MethodPost, raw, "content", "Cookie", "recluse_port=secret; theirs=1", "Recluse-Tenant", "default",
				"Connection", "X-Hop", "X-Hop", "1", "X-Forwarded-For", "203.0.113.9", "Forwarded", "for=203.0.113.9", "X-Theirs", "2")
			var got seen
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatal(err, body)
			}
			if got.Method != http.MethodPost || got.Path != raw || got.Body != "content" {
				t.Errorf("%+v", got)
			}
			want := map[string]string{
				"Authorization": "", "Recluse-Tenant": "", "Cookie": "theirs=1", "X-Hop": "", "Forwarded": "", "X-Theirs": "2",
				"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http",
			}
			if form == "path" {
				want["Host"], want["X-Forwarded-Prefix"] = "localhost:8000", "/v1/sessions/work/ports/8000/http"
			} else {
				want["Host"] = strings.TrimPrefix(base, "http://")
			}
			for name, value := range want {
				if got.header(name) != value {
					t.Errorf("%s: %q, want %q", name, got.header(name), value)
				}
			}
			if strings.Contains(body, key) || strings.Contains(body, "secret") {
				t.Errorf("a secret has reached the program: %s", body)
			}
			if form == "path" {
				if header.Get("Content-Security-Policy") != "sandbox" || header.Get("X-Content-Type-Options") != "nosniff" {
					t.Errorf("%v", header)
				}
			} else if got := header["Set-Cookie"]; len(got) != 1 || got[0] != "app=1; Path=/; HttpOnly" {
				t.Errorf("cookies: %q", got)
			}
			if header.Get("X-Frame-Options") != "DENY" {
				t.Errorf("a header of the program is missing: %v", header)
			}

			size := 8 << 20
			if testneed.AllTests() {
				size = 100 << 20
			}
			if _, body := do(http.MethodGet, fmt.Sprintf("/large/%d", size), ""); len(body) != size || strings.Trim(body, "\x00") != "" {
				t.Errorf("%d bytes", len(body))
			}
			testEvents(t, by, ses, base, key)
			testEcho(t, by, base, key)
		})
	}
	if a := ask(t, k, key, "GET", "/v1/sessions/work/ports/9999/http/", ""); a.status != http.StatusBadGateway || a.problem(t).Code != v1.CodePortClosed {
		t.Errorf("a closed port: %+v", a)
	}
	var page v1.PortPage
	ask(t, k, key, "GET", "/v1/sessions/work/ports", "").decode(t, &page)
	if len(page.Ports) != 1 || page.Ports[0].Port != 8000 || page.Ports[0].PID == 0 {
		t.Errorf("%+v", page)
	}
}

// testEvents checks that events arrive while the program inside is still sending.
func testEvents(t *testing.T, by *http.Client, ses *session.Session, base, key string) {
	t.Helper()
	cell := func(code string) {
		if v, err := ses.Cell(t.Context(), sandbox.Cell{Code: code}); err != nil || !v.OK() {
			t.Fatal(v, err)
		}
	}
	cell("go.clear()")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := by.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	if line, err := lines.ReadString('\n'); line != "data: one\n" {
		t.Fatal(line, err)
	}
	cell("go.set()")
	if rest, err := io.ReadAll(lines); string(rest) != "\ndata: two\n\n" {
		t.Errorf("%q %v", rest, err)
	}
}

// testEcho sends messages over a WebSocket of the program inside.
func testEcho(t *testing.T, by *http.Client, base, key string) {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), base+"/ws", &websocket.DialOptions{ //nolint:bodyclose // it is the connection's
		HTTPClient: by,
		HTTPHeader: http.Header{"Authorization": {"Bearer " + key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	for _, text := range []string{"hello", strings.Repeat("x", 5000)} {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := conn.Read(t.Context()); string(got) != text {
			t.Fatalf("%q %v", got, err)
		}
	}
}

func TestWhoMayUseAPort(t *testing.T) {
	k := servertest.New(t, server.Options{})
	mine, read, foreign := k.Key("a", "execute"), k.Key("a", "read"), k.Key("b", "admin")
	ses := openWeb(t, k, "a", "work")
	token, err := k.Client(mine).Session("work").Token(t.Context(), "execute", 0)
	if err != nil {
		t.Fatal(err)
	}
	open(t, k, "a", "other")
	other, err := k.Client(mine).Session("other").Token(t.Context(), "execute", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key    string
		status int
		code   v1.Code
	}{
		{mine, 200, ""},
		{token, 200, ""},
		{"", 401, v1.CodeUnauthorized},
		{"rk_0000000000000000_0", 401, v1.CodeUnauthorized},
		{read, 403, v1.CodeForbidden},
		{foreign, 404, v1.CodeSessionNotFound},
		{other, 404, v1.CodeSessionNotFound},
	} {
		for form, a := range map[string]answer{
			"path": ask(t, k, c.key, "GET", "/v1/sessions/work/ports/8000/http/", ""),
			"host": ask(t, k, c.key, "GET", "/", "", "Host", "8000-work.localhost"),
			"id":   ask(t, k, c.key, "GET", "/", "", "Host", "8000-"+ses.ID()+".localhost"),
		} {
			if a.status != c.status || c.code != "" && a.problem(t).Code != c.code {
				t.Errorf("%s with %.12s: %d %s", form, c.key, a.status, a.body)
			}
		}
	}
	for _, header := range [][2]string{{"Sec-Fetch-Site", "none"}, {"Sec-Fetch-Mode", "navigate"}, {"Origin", k.URL}} {
		a := ask(t, k, mine, "GET", "/v1/sessions/work/ports/8000/http/", "", header[0], header[1])
		if a.status != http.StatusForbidden || a.problem(t).Code != v1.CodeOrigin {
			t.Errorf("%v on the origin of the API: %d %s", header, a.status, a.body)
		}
	}
	if a := ask(t, k, token, "POST", "/v1/sessions/work/ports/8000/link", "{}"); a.status != http.StatusForbidden {
		t.Errorf("a token creates a link: %d %s", a.status, a.body)
	}
}

func TestUnknownHostsAreRefused(t *testing.T) {
	k := servertest.New(t, server.Options{Hosts: []string{"box.example"}, PortsDomain: "preview.example"})
	key := k.Key("default", "execute")
	openWeb(t, k, "default", "work")
	for host, status := range map[string]int{
		"localhost": 200, "LOCALHOST.:1": 200, "127.0.0.1": 200, "[::1]:7070": 200, "127.9.9.9": 200,
		"box.example": 200, "Box.Example.:443": 200,
		"evil.example": 421, "localhost.evil.example": 421, "box.example.evil": 421, "203.0.113.9": 421, "0.0.0.0": 421,
		"work.localhost": 421, "x.preview.example": 421, "preview.example": 421, "0-work.localhost": 421,
		"70000-work.localhost": 421, "08000-work.localhost": 421, "+8000-work.localhost": 421, "8000-.localhost": 421,
	} {
		if a := ask(t, k, key, "GET", "/v1/server", "", "Host", host); a.status != status {
			t.Errorf("%s: %d %s", host, a.status, a.body)
		} else if status == 421 && a.problem(t).Code != v1.CodeHostUnknown {
			t.Errorf("%s: %s", host, a.body)
		}
	}
	for _, host := range []string{"8000-work.localhost", "8000-WORK.LocalHost.", "8000-work.localhost:1", "8000-work.preview.example.:443"} {
		var got seen
		a := ask(t, k, key, "GET", "/v1/server", "", "Host", host) // a path of the API
		a.decode(t, &got)
		if a.status != 200 || got.Path != "/v1/server" || got.header("Host") != host {
			t.Errorf("%s: %d %s", host, a.status, a.body)
		}
	}
	for _, bad := range []server.Options{{Hosts: []string{"*"}}, {Hosts: []string{"a:1"}}, {Hosts: []string{"x.localhost"}}, {PortsDomain: "http://x/y"}, {PortsDomain: "127.0.0.1"}} {
		if server.CheckHosts(bad.Hosts, bad.PortsDomain) == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// newLink creates a link, and returns it with the host to send and the cookie that it sets.
func newLink(t *testing.T, k *servertest.Bench, key, session string, port uint16, life time.Duration) (link *url.URL, cookie string) {
	t.Helper()
	l, err := k.Client(key).Session(session).PortLink(t.Context(), port, life)
	if err != nil {
		t.Fatal(err)
	}
	if link, err = url.Parse(l.URL); err != nil {
		t.Fatal(err)
	}
	return link, "recluse_port=" + link.Query().Get("recluse_link")
}

func TestLinksToPorts(t *testing.T) {
	k := servertest.New(t, server.Options{})
	key := k.Key("default", "execute")
	openWeb(t, k, "default", "work")
	link, cookie := newLink(t, k, key, "work", 8000, time.Hour)
	if link.Hostname() != "8000-work.localhost" || link.Port() == "" {
		t.Fatal(link)
	}
	host := link.Host
	get := func(path string, header ...string) answer {
		return ask(t, k, "", "GET", path, "", append([]string{"Host", host}, header...)...)
	}
	plain := byHost(t, k)
	res, err := plain.Get(link.String() + "&x=1")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != "/?x=1" || res.Header.Get("Referrer-Policy") != "no-referrer" {
		t.Fatalf("%s %v", res.Status, res.Header)
	}
	if c := res.Cookies(); len(c) != 1 || c[0].Name+"="+c[0].Value != cookie || !c[0].HttpOnly || c[0].Domain != "" || c[0].Path != "/" || c[0].SameSite != http.SameSiteLaxMode {
		t.Fatalf("%+v", c)
	}
	var got seen
	a := get("/x", "Cookie", "a=b; "+cookie, "Authorization", "Basic dXNlcjpwYXNz")
	a.decode(t, &got)
	if got.header("Cookie") != "a=b" || got.header("Authorization") != "Basic dXNlcjpwYXNz" {
		t.Errorf("%+v", got)
	}
	// A page below the same domain can set cookies of this name, too.
	if a := get("/x", "Cookie", "recluse_port=nonsense; "+cookie); a.status != 200 {
		t.Errorf("%+v", a)
	}

	for name, header := range map[string][]string{
		"a page of this host":                {"Origin", "http://" + host, "Sec-Fetch-Site", "same-origin"},
		"a page of another port":             {"Origin", strings.Replace("http://"+host, "8000-", "9000-", 1), "Sec-Fetch-Site", "same-site"},
		"the user":                           {"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
		"a link on another page":             {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
		"!a page of another session":         {"Origin", strings.Replace("http://"+host, "-work", "-evil", 1), "Sec-Fetch-Site", "same-site"},
		"!a page elsewhere":                  {"Origin", "https://evil.example"},
		"!a page without an origin":          {"Origin", "null"},
		"!an image on another page":          {"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"},
		"!a frame on another page":           {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"},
		"!a page of the API's origin itself": {"Origin", k.URL},
	} {
		a := get("/", append(header, "Cookie", cookie)...)
		if want := map[bool]int{false: 200, true: 403}[name[0] == '!']; a.status != want {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}

	text := strings.TrimPrefix(cookie, "recluse_port=")
	grant, mac, _ := strings.Cut(text, ".")
	raw, err := base64.RawURLEncoding.DecodeString(grant)
	if err != nil {
		t.Fatal(err)
	}
	longer := base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(raw), `"p":8000`, `"p":8001`, 1)))
	for _, bad := range []string{
		longer + "." + mac, grant + ".", grant, "." + mac, grant + "." + mac[:len(mac)-2], grant + "." + strings.ToUpper(mac), "x.y",
		grant + "." + base64.RawURLEncoding.EncodeToString(sum(sha256.New(), raw)),
	} {
		if a := get("/", "Cookie", "recluse_port="+bad); a.status != http.StatusUnauthorized {
			t.Errorf("cookie %q: %d %s", bad, a.status, a.body)
		}
		if a := get("/?recluse_link=" + url.QueryEscape(bad)); a.status != http.StatusUnauthorized || a.header.Get("Set-Cookie") != "" {
			t.Errorf("link %q: %d %s", bad, a.status, a.body)
		}
	}
	if a := ask(t, k, "", "GET", "/", "", "Host", "8001-work.localhost", "Cookie", cookie); a.status != http.StatusNotFound {
		t.Errorf("the link of another port: %d %s", a.status, a.body)
	}
	if a := ask(t, k, "", "GET", "/v1/sessions/work/ports/8000/http/", "", "Cookie", cookie); a.status != http.StatusUnauthorized {
		t.Errorf("the cookie on the origin of the API: %d %s", a.status, a.body)
	}

	short, shortCookie := newLink(t, k, key, "work", 8000, time.Second)
	testneed.Await(t, "the end of the link", func() bool { return get("/", "Cookie", shortCookie).status == http.StatusUnauthorized })
	if a := get("/?" + short.RawQuery); a.status != http.StatusUnauthorized {
		t.Errorf("an expired link: %d %s", a.status, a.body)
	}
	for body, status := range map[string]int{`{"expires_in":"721h"}`: 400, `{"expires_in":"1ms"}`: 400, `{"expires_in":"720h"}`: 201} {
		if a := ask(t, k, key, "POST", "/v1/sessions/work/ports/8000/link", body); a.status != status {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}

	k.Stop()
	k.Start()
	if a := get("/", "Cookie", cookie); a.status != 200 {
		t.Errorf("after a restart of the server: %d %s", a.status, a.body)
	}
	k.Stop()
	db, err := sql.Open("sqlite", filepath.Join(filepath.Dir(filepath.Dir(k.Socket)), store.File))
	if err == nil {
		_, err = db.ExecContext(t.Context(), "DELETE FROM meta WHERE name = 'secret'")
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	k.Start()
	if a := get("/", "Cookie", cookie); a.status != http.StatusUnauthorized {
		t.Errorf("after the secret was removed: %d %s", a.status, a.body)
	}
}

func TestALinkEndsWithItsKeyAndItsSession(t *testing.T) {
	k := servertest.New(t, server.Options{})
	k.Key("a", "execute")
	made, err := k.Trusted.CreateKey(t.Context(), v1.NewAPIKey{Name: "n", Tenant: "a", Scope: "execute"})
	if err != nil {
		t.Fatal(err)
	}
	openWeb(t, k, "a", "work")
	link, cookie := newLink(t, k, made.Secret, "work", 8000, time.Hour)
	if strings.Contains(link.Host, "work") {
		t.Errorf("tenants share the origin of %s", link.Host)
	}
	get := func() answer { return ask(t, k, "", "GET", "/", "", "Host", link.Host, "Cookie", cookie) }
	if a := get(); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	if a := ask(t, k, "", "GET", "/?"+link.RawQuery, "", "Host", "8000-work.localhost"); a.status != http.StatusNotFound {
		t.Errorf("the link on the name of another tenant's session: %+v", a)
	}
	if err := k.Trusted.RevokeKey(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	if a := get(); a.status != http.StatusUnauthorized {
		t.Errorf("after the key was revoked: %+v", a)
	}
	key := k.Key("a", "execute")
	_, cookie = newLink(t, k, key, "work", 8000, time.Hour)
	c := k.Client(key)
	if err := c.Session("work").End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	openWeb(t, k, "a", "work")
	if a := get(); a.status != http.StatusNotFound && a.status != http.StatusGone {
		t.Errorf("after the session was replaced: %+v", a)
	}
}

func sum(h hash.Hash, b []byte) []byte { h.Write(b); return h.Sum(nil) }

// Chromium opens a link to a port, and its page uses a WebSocket and fetch.
func TestChromiumOpensALinkToAPort(t *testing.T) {
	k := servertest.New(t, server.Options{})
	openWeb(t, k, "default", "work")
	link, _ := newLink(t, k, k.Key("default", "execute"), "work", 8000, time.Hour)
	link.Path = "/page"
	dom := testneed.Chromium(t, link.String(), "--dump-dom")
	if !strings.Contains(dom, ">socket hello, fetch POST data, cookies [] <") {
		t.Errorf("the page is %s", dom)
	}
}
