package e2b

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// access is what a created sandbox answers.
type access struct {
	Sandbox string `json:"sandboxID"`
	Token   string `json:"envdAccessToken"`
	Traffic string `json:"trafficAccessToken"`
	Domain  string `json:"domain"`
}

// request sends a request to the server and returns its status and body. Headers are names and values in turn.
func (s *testServer) request(method, path, body string, headers ...string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.vars["E2B_API_URL"]+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// create makes a sandbox with a key and options in JSON.
func (s *testServer) create(key, options string) access {
	s.t.Helper()
	status, body := s.request("POST", "/v2/sandboxes", options, "X-API-Key", key)
	var a access
	if err := json.Unmarshal([]byte(body), &a); err != nil || status != http.StatusCreated {
		s.t.Fatalf("%d %s", status, body)
	}
	return a
}

// key creates a key in E2B's form.
func (s *testServer) key(args ...string) string {
	s.t.Helper()
	out, err := s.Run(append([]string{"key", "create", "test", "--e2b", "--json"}, args...)...)
	var k struct{ Secret string }
	if err == nil {
		err = json.Unmarshal([]byte(out), &k)
	}
	if err != nil || !strings.HasPrefix(k.Secret, "e2b_") || len(k.Secret) != 44 {
		s.t.Fatalf("%v %s", err, out)
	}
	return k.Secret
}

func TestAccess(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	s := serve(t)
	mine := s.vars["E2B_API_KEY"]
	other, reader := s.key("--tenant", "other"), s.key("--scope", "read")
	a, b := s.create(mine, `{"timeout":300}`), s.create(other, `{"timeout":300}`)
	envd := []string{"E2b-Sandbox-Id", a.Sandbox, "E2b-Sandbox-Port", "49983"}
	code := []string{"E2b-Sandbox-Id", a.Sandbox, "E2b-Sandbox-Port", "49999"}
	with := func(list []string, more ...string) []string { return append(append([]string{}, list...), more...) }
	host := fmt.Sprintf("49983-%s.%s", b.Sandbox, b.Domain)
	for _, tt := range []struct {
		name, method, path, body string
		headers                  []string
		want                     int
	}{
		{"the owner", "GET", "/sandboxes/" + a.Sandbox, "", []string{"X-API-Key", mine}, 200},
		{"no key", "GET", "/sandboxes/" + a.Sandbox, "", nil, 401},
		{"a wrong key", "GET", "/sandboxes/" + a.Sandbox, "", []string{"X-API-Key", mine[:43] + "g"}, 401},
		{"another tenant", "GET", "/sandboxes/" + a.Sandbox, "", []string{"X-API-Key", other}, 404},
		{"another tenant kills", "DELETE", "/sandboxes/" + a.Sandbox, "", []string{"X-API-Key", other}, 404},
		{"a reader reads", "GET", "/sandboxes/" + a.Sandbox, "", []string{"X-API-Key", reader}, 200},
		{"a reader asks for tokens", "POST", "/v2/sandboxes/" + a.Sandbox + "/connect", "", []string{"X-API-Key", reader}, 403},
		{"a reader creates", "POST", "/sandboxes", "{}", []string{"X-API-Key", reader}, 403},
		{"an unknown option", "POST", "/sandboxes", `{"gpu":true}`, []string{"X-API-Key", mine}, 501},
		{"an unknown option below", "POST", "/sandboxes", `{"network":{"egressProxy":{"address":"x"}}}`, []string{"X-API-Key", mine}, 501},
		{"without a token", "POST", "/sandboxes", `{"secure":false}`, []string{"X-API-Key", mine}, 501},
		{"a path of the host as the template", "POST", "/sandboxes", `{"templateID":"oci:/etc"}`, []string{"X-API-Key", mine}, 403},
		{"a long timeout", "POST", "/sandboxes", `{"timeout":9223372036854775807}`, []string{"X-API-Key", mine}, 400},
		{"no JSON", "POST", "/sandboxes", `[]`, []string{"X-API-Key", mine}, 400},
		{"a volume", "POST", "/volumes", `{"name":"v"}`, []string{"X-API-Key", mine}, 501},
		{"a key", "POST", "/api-keys", `{"name":"k"}`, []string{"X-API-Key", mine}, 501},

		{"the token", "GET", "/files?path=/etc/passwd", "", with(envd, "X-Access-Token", a.Token), 200},
		{"no token", "GET", "/files?path=/etc/passwd", "", envd, 401},
		{"a key is no token", "GET", "/files?path=/etc/passwd", "", with(envd, "X-Access-Token", mine), 401},
		{"the token of another sandbox", "GET", "/files?path=/etc/passwd", "", with(envd, "X-Access-Token", b.Token), 502},
		{"a token with another tenant", "GET", "/health", "", with(envd, "X-Access-Token", a.Token[:32]+b.Token[32:]), 502},
		{"a changed token", "GET", "/health", "", with(envd, "X-Access-Token", "0"+a.Token[1:]), 401},
		{"the traffic token for files", "GET", "/files?path=/etc/passwd", "", with(envd, "E2b-Traffic-Access-Token", a.Traffic), 401},
		{"the traffic token for contexts", "GET", "/contexts", "", with(code, "E2b-Traffic-Access-Token", a.Traffic), 200},
		{"no token for contexts", "GET", "/contexts", "", code, 401},
		{"no token for code", "POST", "/execute", `{"code":"1"}`, code, 401},
		{"no token for processes", "POST", "/process.Process/List", "{}", with(envd, "Content-Type", "application/json"), 401},
		{"no token for the file service", "POST", "/filesystem.Filesystem/Stat", `{"path":"/"}`, with(envd, "Content-Type", "application/json"), 401},
		{
			"an unknown field of a call", "POST", "/process.Process/List", `{"x":1}`,
			with(envd, "X-Access-Token", a.Token, "Content-Type", "application/json"), 400,
		},
		{"header and host disagree", "GET", "/health", "", with(envd, "X-Access-Token", a.Token, "Host", host), 502},
		{"the host name alone", "GET", "/health", "", []string{"X-Access-Token", b.Token, "Host", host}, 204},
		{"an unknown host", "GET", "/health", "", []string{"Host", "evil.example"}, 421},
		{"a forged signature", "GET", "/files?path=/etc/passwd&signature=v1_AAAA", "", nil, 401},
		{"a file that is no file", "GET", "/files?path=/proc", "", with(envd, "X-Access-Token", a.Token), 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if status, body := s.request(tt.method, tt.path, tt.body, tt.headers...); status != tt.want {
				t.Errorf("%d, want %d: %s", status, tt.want, body)
			}
		})
	}
	// Guesses of signatures cost a search each, so they are limited for all callers together.
	limited := false
	for range 200 {
		status, _ := s.request("GET", "/files?path=a&signature=v1_AAAA", "")
		limited = limited || status == http.StatusTooManyRequests
	}
	if !limited {
		t.Error("200 guesses of a signature were not limited")
	}
	// The tokens of a sandbox end with the key that created it.
	id := strings.TrimPrefix(other, "e2b_")[:16]
	if out, err := s.Run("key", "revoke", id); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if status, body := s.request("GET", "/health", "", "X-Access-Token", b.Token, "Host", host); status != http.StatusUnauthorized {
		t.Errorf("%d %s", status, body)
	}
	// The end of the test ends the sandboxes of the default tenant only.
	if status, body := s.request("DELETE", "/sandboxes/"+b.Sandbox, "", "X-API-Key", s.key("--tenant", "other")); status != http.StatusNoContent {
		t.Errorf("%d %s", status, body)
	}
}

func TestPortsOfASandbox(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	s := serve(t)
	for _, public := range []bool{true, false} {
		a := s.create(s.vars["E2B_API_KEY"], fmt.Sprintf(`{"timeout":300,"network":{"allowPublicTraffic":%v}}`, public))
		out, err := s.Run("exec", "--session", a.Sandbox, "--background", "--", "sh", "-c",
			"mkdir -p /tmp/www && echo inside > /tmp/www/f && cd /tmp/www && exec python3 -m http.server 8000")
		if err != nil {
			t.Fatalf("%v %s", err, out)
		}
		host := "8000-" + a.Sandbox + "." + a.Domain
		testneed.Await(t, "the program listens", func() bool {
			status, _ := s.request("GET", "/f", "", "Host", host, "E2b-Traffic-Access-Token", a.Traffic)
			return status == http.StatusOK
		})
		status, body := s.request("GET", "/f", "", "Host", host)
		if public && (status != http.StatusOK || body != "inside\n") || !public && status != http.StatusUnauthorized {
			t.Errorf("public %v: %d %s", public, status, body)
		}
	}
	// A session with a name that its creator chose is never public.
	if out, err := s.Run("exec", "--session", "named", "--", "true"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if status, body := s.request("GET", "/", "", "Host", "8000-named.localhost"); status == http.StatusOK || status == http.StatusBadGateway {
		t.Errorf("%d %s", status, body)
	}
}

func TestLargeMessagesAndUploads(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	s := serve(t, "RECLUSE_SERVER_MAX_UPLOAD=1m")
	a := s.create(s.vars["E2B_API_KEY"], `{"timeout":300}`)
	envd := []string{"E2b-Sandbox-Id", a.Sandbox, "E2b-Sandbox-Port", "49983", "X-Access-Token", a.Token}
	big := string(bytes.Repeat([]byte{'x'}, 10<<20))
	if status, body := s.request("POST", "/files?path=f", big, append(envd, "Content-Type", "application/octet-stream")...); status != 413 {
		t.Errorf("%d %s", status, body)
	}
	if status, body := s.request("POST", "/process.Process/List", `{"x":"`+big+`"}`, append(envd, "Content-Type", "application/json")...); status < 400 {
		t.Errorf("%d %s", status, body)
	}
	if status, body := s.request("GET", "/files?path=f", "", envd...); status != 404 {
		t.Errorf("%d %s", status, body)
	}
}

func TestRatesAndQuotas(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	s := serve(t, "RECLUSE_SERVER_RATE=0.01", "RECLUSE_SERVER_BURST=2", "RECLUSE_QUOTA_SESSIONS=1")
	key := []string{"X-API-Key", s.vars["E2B_API_KEY"]}
	s.create(s.vars["E2B_API_KEY"], `{"timeout":300}`)
	if status, body := s.request("POST", "/v2/sandboxes", "{}", key...); status != http.StatusServiceUnavailable {
		t.Errorf("a full server: %d %s", status, body)
	}
	if status, body := s.request("GET", "/v2/sandboxes", "", key...); status != http.StatusTooManyRequests {
		t.Errorf("too many requests: %d %s", status, body)
	}
}
