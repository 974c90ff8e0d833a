package e2b

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// frame is a message in a stream of Connect.
func frame(message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))) + message
}

// frames returns the messages of a stream of Connect. The last one ends it.
func frames(t *testing.T, stream string) (out []string) {
	t.Helper()
	for len(stream) >= 5 {
		n := int(binary.BigEndian.Uint32([]byte(stream[1:5])))
		if len(stream) < 5+n {
			break
		}
		out = append(out, stream[5:5+n])
		stream = stream[5+n:]
	}
	if stream != "" || len(out) == 0 {
		t.Fatalf("an incomplete stream: %q", stream)
	}
	return out
}

// The SDK for Python speaks otherwise than that for JavaScript: the first version of the routes, JSON in streams, the
// user in every request, forms for uploads, and watchers that are asked for their events.
func TestRequestsOfThePythonSDK(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	s := serve(t)
	control := []string{
		"X-API-Key", s.vars["E2B_API_KEY"], "Content-Type", "application/json", "Accept-Encoding", "gzip, deflate, br, zstd",
		"User-Agent", "e2b-python-sdk/2.30.0", "lang", "python", "lang_version", "3.12.3", "package_version", "2.30.0", "publisher", "e2b",
		"sdk_runtime", "python", "system", "Linux",
	}
	want := func(status int) func(have int, body string) string {
		return func(have int, body string) string {
			t.Helper()
			if have != status {
				t.Fatalf("%d, want %d: %s", have, status, body)
			}
			return body
		}
	}
	ok, created, empty := want(http.StatusOK), want(http.StatusCreated), want(http.StatusNoContent)
	var a access
	body := created(s.request("POST", "/sandboxes", `{"templateID":"base","timeout":300,"metadata":{"a":"b"},"envVars":{"G":"hello"},`+
		`"secure":true,"autoPause":false,"allow_internet_access":true,"mcp":null,"network":null}`, control...))
	if err := json.Unmarshal([]byte(body), &a); err != nil || a.Token == "" {
		t.Fatalf("%v %s", err, body)
	}
	envd := []string{
		"E2b-Sandbox-Id", a.Sandbox, "E2b-Sandbox-Port", "49983", "X-Access-Token", a.Token, "User-Agent", "e2b-python-sdk/2.30.0",
		"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("user:")), "Connect-Protocol-Version", "1",
		"Keepalive-Ping-Interval", "50",
	}
	call := func(procedure, in string) (int, string) {
		return s.request("POST", "/"+procedure, in, append([]string{"Content-Type", "application/json"}, envd...)...)
	}

	// A command.
	stream := ok(s.request("POST", "/process.Process/Start",
		frame(`{"process":{"cmd":"/bin/bash","args":["-l","-c","echo $G $A; exit 3"],"envs":{"A":"b"},"cwd":"/tmp"},"stdin":false}`),
		append([]string{"Content-Type", "application/connect+json", "Connect-Timeout-Ms", "60000"}, envd...)...))
	text := strings.Join(frames(t, stream), "\n")
	if out := base64.StdEncoding.EncodeToString([]byte("hello b\n")); !strings.Contains(text, out) || !strings.Contains(text, `"exitCode":3`) {
		t.Errorf("%s", text)
	}
	late := ok(s.request("POST", "/process.Process/Start", frame(`{"process":{"cmd":"/bin/bash","args":["-l","-c","sleep 100"]}}`),
		append([]string{"Content-Type", "application/connect+json", "Connect-Timeout-Ms", "500"}, envd...)...))
	if last := frames(t, late); !strings.Contains(last[len(last)-1], `"deadline_exceeded"`) {
		t.Errorf("%q", last)
	}

	// Files: a form whose file name is the path, and the user in the query.
	form := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/home/user/dir/ü.txt\"\r\nContent-Type: application/octet-stream\r\n\r\npython\r\n--b--\r\n"
	body = ok(s.request("POST", "/files?username=user", form, append([]string{"Content-Type", "multipart/form-data; boundary=b"}, envd...)...))
	if !strings.Contains(body, `"path":"/home/user/dir/ü.txt"`) {
		t.Errorf("%s", body)
	}
	if got := ok(s.request("GET", "/files?path=dir%2F%C3%BC.txt&username=user", "", envd...)); got != "python" {
		t.Errorf("%q", got)
	}
	want(http.StatusNotFound)(call("filesystem.Filesystem/Stat", `{"path":"/home/user/none"}`))

	// A watcher that is asked for its events.
	var w struct {
		ID string `json:"watcherId"`
	}
	body = ok(call("filesystem.Filesystem/CreateWatcher", `{"path":"dir","recursive":true}`))
	if err := json.Unmarshal([]byte(body), &w); err != nil || w.ID == "" {
		t.Fatalf("%v %s", err, body)
	}
	watcher := fmt.Sprintf(`{"watcherId":%q}`, w.ID)
	ok(call("filesystem.Filesystem/MakeDir", `{"path":"dir/sub"}`))
	var events bytes.Buffer
	testneed.Await(t, "the event", func() bool {
		events.WriteString(ok(call("filesystem.Filesystem/GetWatcherEvents", watcher)))
		return strings.Contains(events.String(), `"EVENT_TYPE_CREATE"`) && strings.Contains(events.String(), `"name":"sub"`)
	})
	if got := ok(call("filesystem.Filesystem/GetWatcherEvents", watcher)); strings.Contains(got, `"EVENT_TYPE_CREATE"`) {
		t.Errorf("an event twice: %s", got)
	}
	ok(call("filesystem.Filesystem/RemoveWatcher", watcher))
	want(http.StatusNotFound)(call("filesystem.Filesystem/GetWatcherEvents", watcher))
	want(http.StatusNotFound)(call("filesystem.Filesystem/CreateWatcher", `{"path":"none"}`))

	// The control plane.
	connected := ok(s.request("POST", "/sandboxes/"+a.Sandbox+"/connect", `{"timeout":300}`, control...))
	var again access
	if err := json.Unmarshal([]byte(connected), &again); err != nil || again != a {
		t.Errorf("%v %s", err, connected)
	}
	if body := ok(s.request("GET", "/v2/sandboxes?metadata=a%3Db&limit=10", "", control...)); !strings.Contains(body, a.Sandbox) {
		t.Errorf("%s", body)
	}
	empty(s.request("POST", "/sandboxes/"+a.Sandbox+"/timeout", `{"timeout":200}`, control...))
	empty(s.request("POST", "/sandboxes/"+a.Sandbox+"/refreshes", `{"duration":250}`, control...))
	for path, has := range map[string]string{
		"/sandboxes":                                      a.Sandbox,
		"/sandboxes/" + a.Sandbox + "/metrics":            `"memUsed":`,
		"/sandboxes/" + a.Sandbox + "/logs":               `"line":"state ready`,
		"/v2/sandboxes/" + a.Sandbox + "/logs":            `"message":"state ready`,
		"/templates":                                      `"code-interpreter-v1"`,
		"/v2/sandboxes/" + a.Sandbox + "/logs?level=warn": `{"logs":[]}`,
	} {
		if body := ok(s.request("GET", path, "", control...)); !strings.Contains(body, has) {
			t.Errorf("%s: %s", path, body)
		}
	}
	if body := ok(s.request("GET", "/envs", "", envd...)); !strings.Contains(body, `"G":"hello"`) {
		t.Errorf("%s", body)
	}
	if body := ok(s.request("GET", "/metrics", "", envd...)); !strings.Contains(body, `"mem_total":`) {
		t.Errorf("%s", body)
	}
	empty(s.request("POST", "/sandboxes/"+a.Sandbox+"/pause", "", control...))
	want(http.StatusConflict)(s.request("POST", "/sandboxes/"+a.Sandbox+"/pause", "{}", control...))
	want(http.StatusBadGateway)(call("process.Process/List", "{}"))
	created(s.request("POST", "/sandboxes/"+a.Sandbox+"/resume", `{"timeout":100}`, control...))
	if got := ok(s.request("GET", "/files?path=dir%2F%C3%BC.txt&username=user", "", envd...)); got != "python" {
		t.Errorf("%q", got)
	}
	empty(s.request("DELETE", "/sandboxes/"+a.Sandbox, "", control...))
	want(http.StatusNotFound)(s.request("DELETE", "/sandboxes/"+a.Sandbox, "", control...))
}
