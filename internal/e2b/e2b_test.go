package e2b

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOptionsAreHonouredOrRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ body, refused string }{
		{`{"templateID":"base","timeout":5,"metadata":{"a":"b"},"network":{"denyOut":["0.0.0.0/0"]}}`, ""},
		{`{"newer":null,"other":false,"third":"","fourth":[],"fifth":{ },"sixth":0,"network":{"rules":{}}}`, ""},
		{`{"newer":true}`, `"newer" is not supported`},
		{`{"network":{"maskRequestHost":"x"}}`, `"network.maskRequestHost" is not supported`},
		{`{"volumeMounts":[{"name":"v"}]}`, `"volumeMounts" is not supported`},
		{`{"timeout":"5"}`, `invalid value of the option "timeout"`},
		{`[]`, "not a JSON object"},
		{``, ""},
	} {
		var in newSandbox
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader(tt.body))
		err := readBody(w, r, &in)
		if (err == nil) != (tt.refused == "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%s: %v, want %q", tt.body, err, tt.refused)
		}
	}
}

func TestLinesAreASCIIAndWholeCharacters(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	l := &lines{w: w, flush: func() error { return nil }}
	out := &texts{lines: l, kind: "stdout"}
	const text = "aü\u2028😀\xff\n"
	for _, b := range []byte(text) { // each byte arrives alone
		if _, err := out.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.emit(len(out.rest)); err != nil {
		t.Fatal(err)
	}
	got := ""
	for line := range strings.Lines(w.Body.String()) {
		if i := strings.IndexFunc(line, func(r rune) bool { return r > unicode.MaxASCII }); i >= 0 {
			t.Errorf("%q is not ASCII", line)
		}
		var m struct{ Type, Text string }
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Type != "stdout" {
			t.Errorf("%q: %v", line, err)
		}
		got += m.Text
	}
	if want := strings.ToValidUTF8(text, "\ufffd"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWhatIsAllowedBeatsWhatIsDenied(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	for _, tt := range []struct {
		name     string
		options  networkOptions
		internet *bool
		want     *v1.Network
	}{
		{"nothing", networkOptions{}, nil, nil},
		{"internet", networkOptions{}, &yes, &v1.Network{Preset: v1.NetworkPublic}},
		{"no internet", networkOptions{}, &no, &v1.Network{Preset: v1.NetworkNone}},
		{
			"an allow-list",
			networkOptions{Allow: []string{"*.example.com", "2001:db8::/32"}, Deny: []string{allTraffic}},
			&yes,
			&v1.Network{Preset: v1.NetworkNone, Rules: []v1.NetworkRule{"allow *.example.com:*", "allow [2001:db8::/32]:*"}},
		},
		{
			"a deny-list",
			networkOptions{Allow: []string{"a.example"}, Deny: []string{"192.0.2.0/24"}},
			&yes,
			&v1.Network{Preset: v1.NetworkPublic, Rules: []v1.NetworkRule{"allow a.example:*", "deny 192.0.2.0/24"}},
		},
	} {
		got, err := policyOf(tt.options, tt.internet)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v, %v", tt.name, got, tt.want, err)
		}
	}
}

func TestRequestsNameTheirSandbox(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		host, id, port, wantID string
		wantPort               int
		ok                     bool
	}{
		{"127.0.0.1:7070", "", "", "", 0, false},
		{"127.0.0.1:7070", "abc", "49999", "abc", 49999, true},
		{"127.0.0.1:7070", "abc", "", "abc", envdPort, true},
		{"49983-abc.localhost:7070", "", "", "abc", 49983, true},
		{"8000-abc.preview.example", "", "", "abc", 8000, true},
		{"8000-abc.localhost", "abc", "49983", nobody, envdPort, true},
		{"49983-abc.localhost", "def", "49983", nobody, envdPort, true},
		{"99999-abc.localhost", "", "", "abc", 99999, false},
		{"-1-abc.localhost", "", "", "", 0, false},
		{"8000-abc", "", "", "abc", 8000, false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = tt.host
		r.Header.Set(headerSandbox, tt.id)
		r.Header.Set(headerPort, tt.port)
		id, port, ok := target(r)
		if ok != tt.ok || ok && (id != tt.wantID || port != tt.wantPort) {
			t.Errorf("%+v: %q %d %v", tt, id, port, ok)
		}
	}
}

func TestTokensNameTheirTenantOnlyWithOurProof(t *testing.T) {
	t.Parallel()
	h := &Handler{opts: Options{Secret: []byte("secret")}}
	token := h.token(envdToken, session.Key{Tenant: "team-ü", Name: "x"}, "id")
	if tenant, ok := h.tenantOf(token); !ok || tenant != "team-ü" {
		t.Errorf("%q %v", tenant, ok)
	}
	if other := h.token(trafficToken, session.Key{Tenant: "team-ü", Name: "x"}, "id"); other[:32] == token[:32] {
		t.Error("the tokens for traffic and for envd are the same")
	}
	forged := token[:64] + "74656e616e74"
	for _, bad := range []string{"", token[:63], token[:64], forged, token + "g", strings.Repeat("0", 1000)} {
		if tenant, ok := h.tenantOf(bad); ok {
			t.Errorf("%.80q is a token of %q", bad, tenant)
		}
	}
}

func TestMetadataIsEncodedTwice(t *testing.T) {
	t.Parallel()
	got, err := metadataQuery("a%2520b=c%2526d&e=f")
	if want := map[string]string{"a b": "c&d", "e": "f"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %v", got, err)
	}
	if _, err := metadataQuery("a=%25zz"); err == nil {
		t.Error("an invalid encoding was accepted")
	}
}

func TestEntriesBelowADirectory(t *testing.T) {
	t.Parallel()
	for _, tt := range [][3]string{{"/a", "/a/b/c", "b/c"}, {"/", "/b", "b"}, {"/a", "/ab", "/ab"}} {
		if got := below(tt[0], tt[1]); got != tt[2] {
			t.Errorf("%q below %q: %q", tt[1], tt[0], got)
		}
	}
}

func TestAnIncompleteFormIsAnError(t *testing.T) {
	t.Parallel()
	whole := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/f\"\r\n\r\n" + strings.Repeat("x", 10_000) + "\r\n--b--\r\n"
	for _, tt := range []struct {
		length, want int
		ok           bool
	}{{len(whole), 10_000, true}, {len(whole) - 8, 0, false}, {5_000, 0, false}, {100, 0, false}} {
		got := 0
		err := eachFile(strings.NewReader(whole[:tt.length]), "b", "", func(_ string, r io.Reader) error {
			b, err := io.ReadAll(r)
			got = len(b)
			return err
		})
		if (err == nil) != tt.ok || tt.ok && got != tt.want {
			t.Errorf("%d bytes: %d, %v", tt.length, got, err)
		}
	}
}
