package server_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

func TestBadInput(t *testing.T) {
	k := servertest.New(t, server.Options{Limits: server.Limits{Body: 4096}})
	s := open(t, k, "default", "work")
	if v, err := s.Run(t.Context(), sandbox.Command{
		RunOptions: sandbox.RunOptions{ID: "used"}, Shell: "mkdir /tmp/d && mkfifo /tmp/fifo && ln -s /tmp/fifo /tmp/link",
	}); err != nil || !v.OK() {
		t.Fatal(v, err)
	}
	const cells, ses = "/v1/sessions/work/cells", "/v1/sessions/work"
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code                     v1.Code
	}{
		{"an unknown session", "GET", "/v1/sessions/nope", "", 404, v1.CodeSessionNotFound},
		{"a name with a slash", "GET", "/v1/sessions/a%2Fb", "", 400, v1.CodeInvalidKey},
		{"a name with a snapshot's mark", "PUT", "/v1/sessions/a@b", "{}", 400, v1.CodeInvalidKey},
		{"a name that is too long", "PUT", "/v1/sessions/" + strings.Repeat("x", 129), "{}", 400, v1.CodeInvalidKey},
		{"a name that climbs", "GET", "/v1/sessions/..%2f..%2fetc", "", 400, v1.CodeInvalidKey},
		{"a body that is too large", "POST", cells, `{"code":"` + strings.Repeat("x", 5000) + `"}`, 413, v1.CodeTooLarge},
		{"JSON that breaks off", "POST", cells, `{"code":`, 400, v1.CodeInvalidJSON},
		{"no JSON at all", "POST", cells, `print(1)`, 400, v1.CodeInvalidJSON},
		{"an empty body", "POST", cells, ``, 400, v1.CodeInvalidRequest},
		{"no code", "POST", cells, `{}`, 400, v1.CodeInvalidRequest},
		{"no code beside other fields", "POST", cells, `{"context":"default"}`, 400, v1.CodeInvalidRequest},
		{"no name of a snapshot", "POST", ses + "/snapshots", `{}`, 400, v1.CodeInvalidRequest},
		{"no value of a variable", "PUT", ses + "/vars/v", ``, 400, v1.CodeInvalidRequest},
		{"an id that was used", "POST", cells, `{"code":"1","id":"used"}`, 409, v1.CodeOperationExists},
		{"a command of an id that was used", "POST", ses + "/commands", `{"args":["true"],"id":"used","background":true}`, 409, v1.CodeOperationExists},
		{"an array", "POST", cells, `[]`, 400, v1.CodeInvalidJSON},
		{"two objects", "POST", cells, `{"code":"1"}{"code":"2"}`, 400, v1.CodeInvalidJSON},
		{"a field of another kind", "POST", cells, `{"code":1}`, 400, v1.CodeInvalidJSON},
		{"an unknown field", "POST", cells, `{"code":"1","cod":2}`, 400, v1.CodeUnknownField},
		{"an unknown field further down", "PUT", "/v1/sessions/x", `{"spec":{"limits":{"memry":1}}}`, 400, v1.CodeUnknownField},
		{"a field twice", "POST", cells, `{"code":"1","code":"2"}`, 400, v1.CodeInvalidJSON},
		{"a field twice, once escaped", "POST", cells, `{"code":"1","c\u006fde":"2"}`, 400, v1.CodeInvalidJSON},
		{"a field twice further down", "PUT", "/v1/sessions/x", `{"spec":{"limits":{"memory":1, "cpus":1, "memory":2}}}`, 400, v1.CodeInvalidJSON},
		{"a variable twice", "POST", cells, `{"code":"1","env":{"A":"1","A":"2"}}`, 400, v1.CodeInvalidJSON},
		{"a field of another case", "POST", cells, `{"CODE":"3"}`, 400, v1.CodeUnknownField},
		{"a field of another case, by an odd letter", "PUT", "/v1/sessions/x", `{"ſpec":{}}`, 400, v1.CodeUnknownField},
		{"a field of another case further down", "PUT", "/v1/sessions/x", `{"spec":{"mounts":[{"Host":"/"}]}}`, 400, v1.CodeUnknownField},
		{"deep JSON", "POST", cells, `{"code":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, 400, v1.CodeInvalidJSON},
		{"negative memory", "PUT", "/v1/sessions/x", `{"spec":{"limits":{"memory":-1}}}`, 400, v1.CodeInvalidSpec},
		{"negative processors", "PUT", "/v1/sessions/x", `{"spec":{"limits":{"cpus":-0.5}}}`, 400, v1.CodeInvalidSpec},
		{"too little memory", "PUT", "/v1/sessions/x", `{"spec":{"limits":{"memory":1}}}`, 400, v1.CodeInvalidSpec},
		{"a negative lifetime", "PUT", "/v1/sessions/x", `{"policy":{"expires":"-5s"}}`, 400, v1.CodeInvalidRequest},
		{"a lifetime that is none", "PUT", "/v1/sessions/x", `{"policy":{"expires":"soon"}}`, 400, v1.CodeInvalidJSON},
		{"negative snapshots", "PUT", "/v1/sessions/x", `{"policy":{"snapshots":-1}}`, 400, v1.CodeInvalidRequest},
		{"another spec", "PUT", ses, `{"spec":{"limits":{"memory":268435456}}}`, 409, v1.CodeSpecConflict},
		{"another gate", "PUT", ses, `{"gate":"block"}`, 409, v1.CodeSpecConflict},
		{"another lifetime", "PUT", ses, `{"policy":{"expires":"1h"}}`, 409, v1.CodeSpecConflict},
		{"another spec beside one for a new session", "PUT", ses, `{"spec":{"shell":"dash"},"if_new":{"spec":{"limits":{"memory":268435456}}}}`, 409, v1.CodeSpecConflict},
		{"negative memory of a new session", "PUT", ses, `{"if_new":{"spec":{"limits":{"memory":-1}}}}`, 400, v1.CodeInvalidSpec},
		{"an unknown field of a new session", "PUT", ses, `{"if_new":{"sepc":{}}}`, 400, v1.CodeUnknownField},
		{"a backend nobody knows", "PUT", "/v1/sessions/x", `{"backend":"abacus"}`, 0, ""},
		{"a new session that is there", "POST", "/v1/sessions", `{"name":"work"}`, 409, v1.CodeSessionExists},
		{"a negative timeout", "POST", cells, `{"code":"1","timeout":"-1s"}`, 400, v1.CodeInvalidRequest},
		{"a timeout as a number", "POST", cells, `{"code":"1","timeout":30}`, 400, v1.CodeInvalidJSON},
		{"negative inline bytes", "POST", cells, `{"code":"1","inline_bytes":-1}`, 400, v1.CodeInvalidRequest},
		{"a fate that is none", "POST", cells, `{"code":"1","on_disconnect":"explode"}`, 400, v1.CodeInvalidRequest},
		{"neither args nor shell", "POST", ses + "/commands", `{}`, 400, v1.CodeInvalidRequest},
		{"a terminal without a socket", "POST", ses + "/commands", `{"args":["sh"],"pty":{"rows":1,"cols":1}}`, 400, v1.CodeInvalidRequest},
		{"no WebSocket", "GET", ses + "/stream", "", 426, v1.CodeWebSocket},
		{"an operation nobody knows", "GET", ses + "/operations/nope", "", 404, v1.CodeNotFound},
		{"output of an operation nobody knows", "GET", ses + "/operations/nope/output", "", 404, v1.CodeNotFound},
		{"a signal that is none", "POST", ses + "/operations/nope/signal", `{"signal":"SIGNOPE"}`, 400, v1.CodeInvalidRequest},
		{"a mark of somebody else's", "GET", ses + "/operations/nope/output?stdout=-1", "", 400, v1.CodeInvalidQuery},
		{"a page of none", "GET", "/v1/sessions?limit=0", "", 400, v1.CodeInvalidQuery},
		{"a page of too many", "GET", "/v1/sessions?limit=100000", "", 400, v1.CodeInvalidQuery},
		{"a negative page", "GET", "/v1/sessions?limit=-1", "", 400, v1.CodeInvalidQuery},
		{"a state that is none", "GET", "/v1/sessions?state=asleep", "", 400, v1.CodeInvalidQuery},
		{"a parameter nobody reads", "GET", "/v1/sessions?page=2", "", 400, v1.CodeInvalidQuery},
		{"no path", "GET", ses + "/files", "", 400, v1.CodeInvalidQuery},
		{"a download of a directory", "GET", ses + "/files?path=/tmp/d", "", 409, v1.CodeFileIsDirectory},
		{"a download of a FIFO", "GET", ses + "/files?path=/tmp/fifo", "", 409, v1.CodeFileNotRegular},
		{"a download through a link to a FIFO", "GET", ses + "/files?path=/tmp/link", "", 409, v1.CodeFileNotRegular},
		{"a download of nothing", "GET", ses + "/files?path=/tmp/none", "", 404, v1.CodeFileNotFound},
		{"a way out of the root", "GET", ses + "/files?root=/tmp/d&path=../../etc/passwd", "", 0, ""},
		{"a negative offset", "GET", ses + "/files?path=/etc/hosts&offset=-1", "", 400, v1.CodeInvalidQuery},
		{"rights that are none", "PUT", ses + "/files?path=/tmp/m&mode=999", "x", 400, v1.CodeInvalidQuery},
		{"a batch that is none", "POST", ses + "/files/batch", "x", 400, v1.CodeInvalidRequest},
		{"a variable nobody set", "GET", ses + "/vars/none", "", 404, v1.CodeVarNotFound},
		{"a snapshot nobody took", "POST", ses + "/restore", `{"ref":"none"}`, 404, v1.CodeSnapshotNotFound},
		{"forks without number", "POST", ses + "/forks", `{"count":-1}`, 400, v1.CodeInvalidRequest},
		{"more forks than anybody needs", "POST", ses + "/forks", `{"count":100000}`, 400, v1.CodeInvalidRequest},
		{"more names than forks", "POST", ses + "/forks", `{"count":1,"names":["a","b"]}`, 400, v1.CodeInvalidRequest},
		{"a route that is none", "GET", "/v1/nothing", "", 404, v1.CodeNoRoute},
		{"a method that is none", "PATCH", ses, "", 405, v1.CodeMethod},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := ask(t, k, "", c.method, c.path, c.body)
			if a.status < 400 || a.status >= 500 && a.status != http.StatusServiceUnavailable || c.status != 0 && a.status != c.status {
				t.Fatalf("%d %s, want %d", a.status, a.body, c.status)
			}
			if c.code == "" {
				return
			}
			p := a.problem(t)
			if p.Code != c.code || p.Detail == "" || p.Status != a.status || p.Type == "" || p.Title == "" {
				t.Errorf("got %+v, want code %s", p, c.code)
			}
		})
	}
	deep := `{"spec":{"env":` + strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat("}", 100) + `}}`
	if p := ask(t, k, "", "PUT", "/v1/sessions/x", deep).problem(t); p.Code != v1.CodeInvalidJSON || !strings.Contains(p.Detail, "nested deeper than 64") {
		t.Errorf("deep JSON: %+v", p)
	}
	if p := ask(t, k, "", "POST", ses+"/forks", `{"count":101}`).problem(t); !strings.Contains(p.Detail, fmt.Sprintf("1 to %d copies", session.MaxForks)) {
		t.Errorf("too many forks: %+v", p)
	}
	// Keys of maps may differ only by their case, and JSON inside of a string is not parsed.
	fine := `{"code":"import os; os.environ['a'] + os.environ['A'] + '{\"code\":1,\"code\":2}'[:0]","env":{"a":"4","A":"2"},"metadata":{"code":"1"}}`
	if a := ask(t, k, "", "POST", cells, fine); a.status != http.StatusOK || !strings.Contains(a.body, "42") {
		t.Errorf("names in two cases: %d %s", a.status, a.body)
	}
	// The content type that curl sends with -d.
	if a := ask(t, k, "", "POST", cells, `{"code":"40+2"}`, "Content-Type", "application/x-www-form-urlencoded"); a.status != http.StatusOK || !strings.Contains(a.body, `"text/plain":"42"`) {
		t.Errorf("as a form: %d %s", a.status, a.body)
	}
	if v, err := s.Run(t.Context(), sandbox.Command{Shell: "true"}); err != nil || !v.OK() {
		t.Errorf("the session did not survive: %v %v", v, err)
	}
}

func TestFilesOfTheHostAreNotForCallersOverTheNetwork(t *testing.T) {
	k := servertest.New(t, server.Options{})
	key := k.Key("default", "execute")
	for _, body := range []string{`{"spec":{"mounts":[{"host":"/etc","path":"/host"}]}}`, `{"if_new":{"spec":{"mounts":[{"host":"/etc","path":"/host"}]}}}`} {
		if p := ask(t, k, key, "PUT", "/v1/sessions/work", body).problem(t); p.Code != v1.CodeMountRefused {
			t.Errorf("%s: %+v", body, p)
		}
	}
}

func TestExpiredSessionSaysSo(t *testing.T) {
	k := servertest.New(t, server.Options{})
	if a := ask(t, k, "", "PUT", "/v1/sessions/brief", `{"policy":{"expires":"1s"}}`); a.status != http.StatusCreated {
		t.Fatal(a.body)
	}
	var a answer
	testneed.Await(t, "the session expires", func() bool {
		a = ask(t, k, "", "GET", "/v1/sessions/brief", "")
		return a.status != http.StatusOK
	})
	if a.status != http.StatusGone || a.problem(t).Code != v1.CodeSessionExpired {
		t.Errorf("%d %s", a.status, a.body)
	}
	var list v1.SessionPage
	ask(t, k, "", "GET", "/v1/sessions?state=expired", "").decode(t, &list)
	if len(list.Sessions) != 1 || list.Sessions[0].Reason == "" {
		t.Errorf("got %+v", list)
	}
}

func TestSessionsComeInPages(t *testing.T) {
	k := servertest.New(t, server.Options{})
	live := []string{"s", "s-1", "s.2", "s0", "t"}
	for _, name := range live {
		open(t, k, "default", name)
	}
	var ended []string
	for range 5 {
		s := open(t, k, "default", "dup")
		ended = append(ended, s.ID())
		if err := s.End(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	names := func(p v1.SessionPage) ([]string, string) {
		return named(p.Sessions, func(i session.Info) string { return i.Key.Name }), p.Next
	}
	ids := func(p v1.SessionPage) ([]string, string) {
		return named(p.Sessions, func(i session.Info) string { return i.ID }), p.Next
	}
	if got := collect(t, k, "", "/v1/sessions?", 2, names); !slices.Equal(got, live) {
		t.Errorf("got %q, want %q", got, live)
	}
	if got := collect(t, k, "", "/v1/sessions?state=ended", 2, ids); !slices.Equal(got, ended) {
		t.Errorf("got %q, want %q", got, ended)
	}
	if got := collect(t, k, "", "/v1/sessions?state=ended&state=ready", 3, names); len(got) != len(live)+len(ended) {
		t.Errorf("got %q", got)
	}
}

// collect reads a list page by page, and returns the results of of for all pages.
func collect[T any](t *testing.T, k *servertest.Bench, key, path string, limit int, of func(T) (names []string, next string)) []string {
	t.Helper()
	var all []string
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	for {
		var page T
		a := ask(t, k, key, "GET", path+"&"+q.Encode(), "")
		if a.status != http.StatusOK {
			t.Fatalf("%s: %d %s", path, a.status, a.body)
		}
		a.decode(t, &page)
		names, next := of(page)
		if len(names) > limit || next != "" && len(names) < limit {
			t.Errorf("%s: a page of %d entries, and %q is next", path, len(names), next)
		}
		all = append(all, names...)
		if next == "" {
			return all
		}
		q.Set("after", next)
	}
}

// named returns the names of a page's entries.
func named[T any](list []T, name func(T) string) []string {
	var out []string
	for _, x := range list {
		out = append(out, name(x))
	}
	return out
}

func TestListsComeInPages(t *testing.T) {
	k := servertest.New(t, server.Options{})
	s := open(t, k, "a", "work")
	key := k.Key("a", "admin")
	k.Key("a", "read")
	k.Key("a", "execute")
	const ses = "/v1/sessions/work"
	for _, c := range []struct{ method, path, body string }{
		{"PUT", ses + "/files?path=d/1&parents=true", "one"},
		{"PUT", ses + "/files?path=d/2", "1"},
		{"POST", ses + "/files/move", `{"from":"d/2","to":"d/3"}`},
		{"POST", ses + "/files/mkdir", `{"path":"d/2"}`},
		{"DELETE", ses + "/files?path=d/1", ""},
		{"PUT", ses + "/files?path=d/1", "again"},
		{"PUT", ses + "/files?path=d/1&exclusive=true", "not twice"},
	} {
		if a := ask(t, k, key, c.method, c.path, c.body); a.status >= 400 && c.body != "not twice" {
			t.Fatalf("%s %s: %d %s", c.method, c.path, a.status, a.body)
		}
	}
	var ops []string
	for range 3 {
		v, err := s.Run(t.Context(), sandbox.Command{Args: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, v.ID)
	}
	if err := s.Hibernate(t.Context()); err != nil { // a snapshot of a hibernated session only adds a name to its image
		t.Fatal(err)
	}
	for _, name := range []string{"z", "y", "x"} {
		if _, err := s.Save(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	snapshots := func(p v1.SnapshotPage) ([]string, string) {
		return named(p.Snapshots, func(s session.Snapshot) string { return s.Name }), p.Next
	}
	// All three have the creation time of their image.
	check("snapshots of the session", slices.Sorted(slices.Values(collect(t, k, key, ses+"/snapshots?", 2, snapshots))), "x", "y", "z")
	check("all snapshots", slices.Sorted(slices.Values(collect(t, k, key, "/v1/snapshots?", 1, snapshots))), "x", "y", "z")
	check("keys", collect(t, k, key, "/v1/keys?", 2, func(p v1.APIKeys) ([]string, string) {
		return named(p.Keys, func(k v1.APIKey) string { return k.Name }), p.Next
	}), "a admin", "a read", "a execute")
	check("operations", collect(t, k, key, ses+"/operations?", 2, func(p v1.OperationPage) ([]string, string) {
		return named(p.Operations, func(o sandbox.Operation) string { return o.ID }), p.Next
	}), ops...)
	check("files", collect(t, k, key, ses+"/files/list?path=d", 2, func(p v1.FilePage) ([]string, string) {
		return named(p.Files, func(i *v1.FileInfo) string { return path.Base(i.Path) }), string(p.Next)
	}), "1", "2", "3")
	check("the audit log", collect(t, k, key, "/v1/audit?actor=a+admin", 3, func(p v1.AuditPage) ([]string, string) {
		next := ""
		if p.Next != 0 {
			next = strconv.FormatInt(p.Next, 10)
		}
		return named(p.Entries, func(e session.Entry) string { return strings.TrimSpace(e.Action + " " + e.Detail + " " + e.Error) }), next
	}), "file.write /home/user/d/1 (3 bytes)", "file.write /home/user/d/2 (1 bytes)", "file.move d/2 to d/3", "file.mkdir d/2",
		"file.remove d/1", "file.write /home/user/d/1 (5 bytes)", "file.write d/1 file_exists")
	if list, err := k.Client(key).Snapshots(t.Context(), "work"); err != nil || len(list) != 3 {
		t.Errorf("the client has %v: %v", list, err)
	}
}

func TestUploadsReplaceUnlessExclusive(t *testing.T) {
	k := servertest.New(t, server.Options{Limits: server.Limits{Upload: 1 << 20}})
	open(t, k, "default", "work")
	const files = "/v1/sessions/work/files"
	check := func(what string, a answer, status int, code v1.Code) {
		t.Helper()
		if a.status != status || code != "" && a.problem(t).Code != code {
			t.Errorf("%s: %d %s, want %d %s", what, a.status, a.body, status, code)
		}
	}
	check("a new file", ask(t, k, "", "PUT", files+"?path=a.txt", "one"), 200, "")
	check("the same again, exclusively", ask(t, k, "", "PUT", files+"?path=a.txt&exclusive=true", "two"), 409, v1.CodeFileExists)
	if a := ask(t, k, "", "GET", files+"?path=/home/user/a.txt", ""); a.body != "one" {
		t.Errorf("it was overwritten: %s", a.body)
	}
	check("the same again", ask(t, k, "", "PUT", files+"?path=a.txt", "two"), 200, "")
	check("added, but exclusively", ask(t, k, "", "PUT", files+"?path=a.txt&append=true&exclusive=true", "+"), 400, v1.CodeInvalidQuery)
	check("added", ask(t, k, "", "PUT", files+"?path=a.txt&append=true", "+"), 200, "")
	if a := ask(t, k, "", "GET", files+"?path=a.txt&offset=1&limit=2", ""); a.body != "wo" {
		t.Errorf("a part: %s", a.body)
	}
	check("a directory that is missing", ask(t, k, "", "PUT", files+"?path=x/y", "1"), 404, v1.CodeFileNotFound)
	check("with its directory", ask(t, k, "", "PUT", files+"?path=x/y&parents=true&mode=600", "1"), 200, "")
	check("too much", ask(t, k, "", "PUT", files+"?path=big", strings.Repeat("x", 1<<20+1)), 413, v1.CodeTooLarge)
	check("what was too much is not there", ask(t, k, "", "GET", files+"/stat?path=big", ""), 404, v1.CodeFileNotFound)
	check("move onto a file, exclusively", ask(t, k, "", "POST", files+"/move", `{"from":"x/y","to":"a.txt","exclusive":true}`), 409, v1.CodeFileExists)
	check("move onto a file", ask(t, k, "", "POST", files+"/move", `{"from":"x/y","to":"a.txt"}`), 204, "")
	check("a directory with content", ask(t, k, "", "PUT", files+"?path=x/z&parents=true", "1"), 200, "")
	check("remove a directory with content", ask(t, k, "", "DELETE", files+"?path=x", ""), 409, v1.CodeFileNotEmpty)
	check("remove all of it", ask(t, k, "", "DELETE", files+"?path=x&recursive=true", ""), 204, "")
	name := "/tmp/%FFname"
	a := ask(t, k, "", "PUT", files+"?path="+name, "1")
	check("a name that is no text", a, 200, "")
	var written, info v1.FileInfo
	a.decode(t, &written)
	ask(t, k, "", "GET", files+"/stat?path="+name, "").decode(t, &info)
	if info.Path != "/tmp/\xffname" || written.Name != info.Path || info.Name != "" {
		t.Errorf("got %q, %q and %q", info.Path, written.Name, info.Name)
	}
	var manifest map[string]any
	ask(t, k, "", "PUT", files+"?path=named", "1").decode(t, &manifest)
	if manifest["name"] != "named" || manifest["path"] != "/home/user/named" || manifest["size"] != 1.0 || manifest["sha256"] == nil {
		t.Errorf("the manifest of an upload: %v", manifest)
	}
}

func TestUploadsOverTheOwnSocketHaveNoLimit(t *testing.T) {
	k := servertest.NewLocal(t, server.Options{Limits: server.Limits{Upload: 1 << 10}})
	open(t, k, "default", "work")
	large := strings.Repeat("x", 1<<20)
	p := ask(t, k, "", "PUT", "/v1/sessions/work/files?path=large", large).problem(t)
	if p.Code != v1.CodeTooLarge || !strings.Contains(p.Detail, "server.max_upload") || !strings.Contains(p.Remedy, "server.max_upload") {
		t.Errorf("over TCP: %+v", p)
	}
	info, err := k.Trusted.Session("work").Files().Write(t.Context(), "large", strings.NewReader(large), sandbox.WriteOptions{})
	if err != nil || info.Size != 1<<20 {
		t.Errorf("over the socket: %+v %v", info, err)
	}
}

func TestBatchUpload(t *testing.T) {
	k := servertest.New(t, server.Options{})
	open(t, k, "default", "work")
	send := func(query string, files ...string) (answer, v1.Uploads) {
		t.Helper()
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for i := 0; i+1 < len(files); i += 2 {
			p, err := w.CreateFormFile("file", files[i])
			if err != nil {
				t.Fatal(err)
			}
			_, _ = p.Write([]byte(files[i+1]))
		}
		w.Close()
		a := ask(t, k, "", "POST", "/v1/sessions/work/files/batch"+query, b.String(), "Content-Type", w.FormDataContentType())
		var out v1.Uploads
		if a.status < 300 {
			a.decode(t, &out)
		}
		return a, out
	}
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	a, out := send("", "a.csv", "1,2", "b.csv", "3")
	if a.status != 200 || len(out.Files) != 2 || out.Failed != 0 || out.Files[0].Name != "a.csv" || out.Files[0].Path != "/home/user/a.csv" || out.Files[0].Size != 3 ||
		out.Files[0].SHA256 != sum("1,2") {
		t.Errorf("%d %+v", a.status, out)
	}
	a, out = send("?exclusive=true", "a.csv", "other", "c.csv", "new")
	if a.status != http.StatusMultiStatus || out.Failed != 1 || out.Files[0].Problem == nil || out.Files[0].Problem.Code != v1.CodeFileExists || out.Files[1].SHA256 != sum("new") {
		t.Errorf("%d %s", a.status, a.body)
	}
	a, out = send("?dir=/tmp/in&parents=true", "../../etc/passwd", "x", "sub/d.csv", "y")
	if a.status != 200 || out.Files[0].Path != "/tmp/in/etc/passwd" || out.Files[1].Path != "/tmp/in/sub/d.csv" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a, _ := send(""); a.status != http.StatusBadRequest {
		t.Errorf("no files: %d %s", a.status, a.body)
	}
}

func TestTarBothWays(t *testing.T) {
	k := servertest.New(t, server.Options{})
	open(t, k, "default", "work")
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Name: "d/f", Mode: 0o644, Size: 2})
	_, _ = w.Write([]byte("hi"))
	w.Close()
	a := ask(t, k, "", "PUT", "/v1/sessions/work/files/tar?path=/tmp/t&parents=true", b.String())
	var st v1.TarStats
	a.decode(t, &st)
	if a.status != 200 || st.Bytes != 2 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := ask(t, k, "", "PUT", "/v1/sessions/work/files/tar?path=/tmp/t&exclusive=true", b.String()); a.status != 409 {
		t.Errorf("over what is there: %d %s", a.status, a.body)
	}
	if a := ask(t, k, "", "GET", "/v1/sessions/work/files/tar?path=/tmp/t", ""); a.status != 200 || !strings.Contains(a.body, "d/f") {
		t.Errorf("%d %.200s", a.status, a.body)
	}
}

func TestIdempotencyKey(t *testing.T) {
	k := servertest.New(t, server.Options{})
	first := ask(t, k, "", "POST", "/v1/sessions", `{}`, v1.HeaderIdempotency, "k1")
	again := ask(t, k, "", "POST", "/v1/sessions", `{}`, v1.HeaderIdempotency, "k1")
	if first.status != http.StatusCreated || again.status != http.StatusCreated || first.body != again.body || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%d %s\n%d %s", first.status, first.body, again.status, again.body)
	}
	other := ask(t, k, "", "POST", "/v1/sessions", `{"name":"x"}`, v1.HeaderIdempotency, "k1")
	if other.problem(t).Code != v1.CodeIdempotency {
		t.Errorf("another request: %d %s", other.status, other.body)
	}
	bad := ask(t, k, "", "POST", "/v1/sessions", `{"spec":{"limits":{"memory":-1}}}`, v1.HeaderIdempotency, "k2")
	good := ask(t, k, "", "POST", "/v1/sessions", `{"name":"y"}`, v1.HeaderIdempotency, "k2")
	if bad.status != 400 || good.status != http.StatusCreated {
		t.Errorf("behind a failure: %d, then %d %s", bad.status, good.status, good.body)
	}
	for i, c := range []struct {
		name, method, path, body string
	}{
		{"a session by its name", "PUT", "/v1/sessions/y-too", `{}`},
		{"a snapshot", "POST", "/v1/sessions/y/snapshots", `{"name":"one"}`},
		{"copies", "POST", "/v1/sessions/y/forks", `{"count":1}`},
	} {
		key := fmt.Sprint("made-", i)
		first := ask(t, k, "", c.method, c.path, c.body, v1.HeaderIdempotency, key)
		again := ask(t, k, "", c.method, c.path, c.body, v1.HeaderIdempotency, key)
		if first.status != http.StatusCreated || first.header.Get("Idempotency-Replayed") != "" || again.status != http.StatusCreated || again.body != first.body ||
			again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s: %d %s\n%d %s", c.name, first.status, first.body, again.status, again.body)
		}
	}
	var made v1.SessionPage
	ask(t, k, "", "GET", "/v1/sessions", "").decode(t, &made)
	if len(made.Sessions) != 4 { // k1, y, y-too and one copy
		t.Errorf("there are %d sessions", len(made.Sessions))
	}
	results := make(chan answer, 5)
	for range 5 {
		go func() { results <- ask(t, k, "", "POST", "/v1/sessions", `{}`, v1.HeaderIdempotency, "k3") }()
	}
	seen := map[string]bool{}
	for range 5 {
		seen[(<-results).body] = true
	}
	if len(seen) != 1 {
		t.Errorf("five at once made %d answers", len(seen))
	}
	k.Stop()
	k.Start()
	if a := ask(t, k, "", "POST", "/v1/sessions", `{}`, v1.HeaderIdempotency, "k1"); a.body != first.body {
		t.Errorf("after a restart: %d %s", a.status, a.body)
	}
}

func TestRunsUnderAnIdempotencyKey(t *testing.T) {
	k := servertest.New(t, server.Options{Drain: 100 * time.Millisecond})
	s := open(t, k, "default", "work")
	const commands, cells = "/v1/sessions/work/commands", "/v1/sessions/work/cells"
	big := `{"shell":"echo x >> /tmp/big; head -c 3000000 /dev/zero | tr '\\0' a"}`
	r, done := listen(t.Context(), t, k, "POST", commands, big, v1.HeaderIdempotency, "big")
	until(t, r)
	done()
	if a := ask(t, k, "", "POST", commands, big, v1.HeaderIdempotency, "big"); a.status != http.StatusConflict {
		t.Errorf("an answer that was not kept: %d %.200s", a.status, a.body)
	}
	if a := ask(t, k, "", "POST", cells, `{"code":"n = 0"}`, v1.HeaderIdempotency, "cell"); a.status != http.StatusOK {
		t.Fatal(a.body)
	}
	for range 2 {
		if a := ask(t, k, "", "POST", cells, `{"code":"n += 1; n"}`, v1.HeaderIdempotency, "count"); a.status != http.StatusOK || !strings.Contains(a.body, `"text/plain":"1"`) {
			t.Errorf("a cell under one key: %d %s", a.status, a.body)
		}
	}
	body := `{"shell":"echo x >> /tmp/runs; while [ ! -e /tmp/go ]; do sleep 0.05; done; cat /tmp/runs"}`
	cell := `{"code":"n += 1; open('/tmp/cell', 'w').write('x')\nimport os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.05)\nn"}`
	var lost sync.WaitGroup
	for path, body := range map[string]string{commands: body, cells: cell} {
		lost.Go(func() {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, k.URL+path, strings.NewReader(body))
			req.Header.Set(v1.HeaderIdempotency, "slow "+path)
			if res, err := plain.Do(req); err == nil {
				res.Body.Close()
			}
		})
	}
	testneed.Await(t, "both run", func() bool {
		v, err := s.Run(t.Context(), sandbox.Command{Shell: "test -s /tmp/runs && test -s /tmp/cell"})
		return err == nil && v.OK()
	})
	k.Stop()
	lost.Wait()
	k.Start()
	if a := ask(t, k, "", "PUT", "/v1/sessions/work/files?path=/tmp/go", ""); a.status != http.StatusOK {
		t.Fatal(a.body)
	}
	a := ask(t, k, "", "POST", commands, body, v1.HeaderIdempotency, "slow "+commands)
	var v sandbox.Verdict
	a.decode(t, &v)
	if a.status != http.StatusOK || string(v.Stdout.Head) != "x\n" {
		t.Errorf("a command behind a restart: %d %s", a.status, a.body)
	}
	a = ask(t, k, "", "POST", cells, cell, v1.HeaderIdempotency, "slow "+cells)
	v = sandbox.Verdict{}
	a.decode(t, &v)
	if a.status != http.StatusOK || v.Result.Text() != "2" {
		t.Errorf("a cell behind a restart: %d %s", a.status, a.body)
	}
}

func TestAFailureToldAsAnEventIsNotKept(t *testing.T) {
	k := servertest.New(t, server.Options{})
	s := open(t, k, "default", "work")
	const commands, body = "/v1/sessions/work/commands", `{"shell":"echo ran"}`
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, done := listen(t.Context(), t, k, "POST", commands, body, v1.HeaderIdempotency, "k")
	for {
		e := next(t, r)
		if e.Kind == v1.EventProblem {
			break
		}
		if e.Kind == v1.EventVerdict {
			t.Fatalf("%s", e.Data)
		}
	}
	done()
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // now the code runs, and the successful answer is stored
		r, done := listen(t.Context(), t, k, "POST", commands, body, v1.HeaderIdempotency, "k")
		if out, v := until(t, r); out != "ran\n" || !v.OK() {
			t.Errorf("%q %+v", out, v)
		}
		done()
	}
}

func TestRequestTimeIsBounded(t *testing.T) {
	k := servertest.New(t, server.Options{Limits: server.Limits{Time: time.Nanosecond}})
	a := ask(t, k, "", "GET", "/v1/sessions?state=expired", "") // this request reads the store
	if a.status != http.StatusGatewayTimeout || a.problem(t).Code != v1.CodeRequestTime {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestASessionCanBeOpenedAsItIsShown(t *testing.T) {
	k := servertest.New(t, server.Options{})
	key := k.Key("default", "execute")
	for name, body := range map[string]string{
		"plain":  `{}`,
		"chosen": `{"spec":{"limits":{"memory":268435456,"cpus":0.5},"env":{"A":"1"}},"labels":{"team":"x"},"policy":{"expires":"1h","idle":"none","on_idle":"keep"}}`,
	} {
		path := "/v1/sessions/" + name
		if a := ask(t, k, key, "PUT", path, body); a.status != http.StatusCreated {
			t.Fatalf("%s: %d %s", name, a.status, a.body)
		}
		var shown struct {
			Policy json.RawMessage `json:"policy"`
			Spec   json.RawMessage `json:"spec"`
		}
		ask(t, k, key, "GET", path, "").decode(t, &shown)
		again, err := json.Marshal(shown)
		if err != nil {
			t.Fatal(err)
		}
		if a := ask(t, k, key, "PUT", path, string(again)); a.status != http.StatusOK {
			t.Errorf("%s: %s: %d %s", name, again, a.status, a.body)
		}
	}
}
