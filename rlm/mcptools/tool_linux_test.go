package mcptools

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/rlm"
)

// overHTTP returns the test's server over HTTP. Open sessions end with the test.
func overHTTP(t *testing.T, opts *sdk.StreamableHTTPOptions) http.Handler {
	s := newServer()
	t.Cleanup(func() {
		for ss := range s.Sessions() {
			_ = ss.Close()
		}
	})
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, opts)
}

// serveHTTP serves the test's server, and requires a key.
func serveHTTP(t *testing.T, opts *sdk.StreamableHTTPOptions) (*httptest.Server, Server) {
	t.Helper()
	h := overHTTP(t, opts)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer key" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv, Server{Name: "shop", URL: srv.URL, Headers: map[string]string{"Authorization": "Bearer key"}}
}

func TestToolsOfAProgramAndOfAnAddress(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-secret")
	for name, of := range map[string]func(t *testing.T) Server{
		"a program": func(*testing.T) Server { return itself("stdio") },
		"an address": func(t *testing.T) Server {
			_, s := serveHTTP(t, nil)
			return s
		},
		"an address that answers with JSON": func(t *testing.T) Server {
			_, s := serveHTTP(t, &sdk.StreamableHTTPOptions{JSONResponse: true})
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := of(t)
			_, tools := open(t, Options{MaxResult: 1 << 14}, s)
			for _, tt := range []struct{ tool, kwargs, want string }{
				{"shop_get_args", `{"from_":"here","user_id":7}`, `"{\"from\":\"here\",\"user-id\":7}"`},
				{"shop_get_args", `{"from_":"here","user_id":7,"limit":null}`, `"{\"from\":\"here\",\"user-id\":7}"`},
				{"shop_get_args", `{"from_":"here","user_id":7,"limit":3}`, `"{\"from\":\"here\",\"limit\":3,\"user-id\":7}"`},
				{"shop_sum", `{"numbers":[1,2.5]}`, `{"sum":3.5}`},
			} {
				if got, err := call(t.Context(), t, tools[tt.tool], tt.kwargs); err != nil || got != tt.want {
					t.Errorf("%s(%s) returned %s, %v; want %s", tt.tool, tt.kwargs, got, err, tt.want)
				}
			}
			got, err := call(t.Context(), t, tools["shop_look"], `{}`)
			if err != nil || !strings.HasPrefix(got, `["a picture",{"$media":{"type":"image","mime_type":"image/png","data":"`) || !strings.Contains(got, `"file:///x"`) || !strings.HasSuffix(got, `"embedded"]`) {
				t.Errorf("a list of parts: %s %v", got, err)
			}
			for _, tt := range []struct {
				tool, kwargs string
				code         v1.Code
				says         string
			}{
				{"shop_fail", `{}`, CodeToolFailed, "the shop is shut"},
				{"shop_refuse", `{}`, CodeCallRefused, "never heard of it"},
				{"shop_big", `{"bytes":16385}`, CodeResultTooLarge, "16385 bytes"},
				{"shop_big", `{"bytes":"` + strings.Repeat("9", 1<<14) + `"}`, v1.CodeTooLarge, "arguments"},
			} {
				if _, err := call(t.Context(), t, tools[tt.tool], tt.kwargs); v1.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s: %v; want %s", tt.tool, err, tt.code)
				}
			}
			if got, err := call(t.Context(), t, tools["shop_big"], `{"bytes":16384}`); err != nil || len(got) != 1<<14+2 {
				t.Errorf("the largest result: %d bytes, %v", len(got), err)
			}
			// More than the transport reads.
			if _, err := call(t.Context(), t, tools["shop_big"], `{"bytes":1200000}`); err == nil {
				t.Error("an endless result was accepted")
			}
			if got, err := call(t.Context(), t, tools["shop_sum"], `{"numbers":[1]}`); err != nil || got != `{"sum":1}` {
				t.Errorf("the next call: %s %v", got, err)
			}
		})
	}
}

func TestAProgramGetsNoKeysButItsOwn(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-secret")
	s := itself("stdio")
	s.Env["OWN_TOKEN"] = "mine"
	_, tools := open(t, Options{}, s)
	if got, err := call(t.Context(), t, tools["shop_secret"], `{}`); err != nil || got != `"|mine"` {
		t.Errorf("%s %v", got, err)
	}
}

func TestWhatTheModelAndItsCodeHearOfATool(t *testing.T) {
	_, tools := open(t, Options{}, itself("stdio"))
	tool := tools["shop_get_args"]
	if want := "shop_get_args(from_, user_id, *, limit=...): Does get-args."; tool.Doc != want {
		t.Errorf("%q, want %q", tool.Doc, want)
	}
	for _, part := range []string{"More about it.", "user_id: int. Whose.", "limit: int, optional, default 10"} {
		if !strings.Contains(tool.Help, part) {
			t.Errorf("%q is missing in %s", part, tool.Help)
		}
	}
}

func TestNamesAreSafeAndUnique(t *testing.T) {
	s := &server{Server: Server{Name: "llm"}}
	names := uniqueNames{}
	var got []string
	for _, name := range []string{"query", "query", "a-b", "a.b", "a b", "ünder", "1st"} {
		got = append(got, s.tool(&sdk.Tool{Name: name}, names).Name)
	}
	want := []string{"llm_query_2", "llm_query_3", "llm_a_b", "llm_a_b_2", "llm_a_b_3", "llm__nder", "llm_1st"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAServerThatDiesIsStartedAgain(t *testing.T) {
	_, tools := open(t, Options{}, itself("stdio"))
	for range 3 {
		_, err := call(t.Context(), t, tools["shop_die"], `{}`)
		if v1.CodeOf(err) != CodeServerLost || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "out of luck") {
			t.Fatalf("%v", err)
		}
		if got, err := call(t.Context(), t, tools["shop_sum"], `{"numbers":[1,2]}`); err != nil || got != `{"sum":3}` {
			t.Fatalf("the call after the server died: %s %v", got, err)
		}
	}
}

func TestAnAddressThatGoesAwayAndComesBack(t *testing.T) {
	front := &switchable{}
	srv := httptest.NewServer(front)
	defer srv.Close()
	front.set(overHTTP(t, nil))
	set, tools := open(t, Options{}, Server{Name: "shop", URL: srv.URL})
	front.set(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusBadGateway) }))
	if _, err := call(t.Context(), t, tools["shop_sum"], `{"numbers":[1]}`); err == nil {
		t.Error("a server that is down answered")
	}
	if again, err := set.Tools(t.Context()); err != nil || len(again) != len(tools) {
		t.Errorf("the tools of a server that is down: %d, %v", len(again), err)
	}
	// When the server is back, it does not know its old sessions.
	front.set(overHTTP(t, nil))
	if got, err := call(t.Context(), t, tools["shop_sum"], `{"numbers":[1]}`); err != nil || got != `{"sum":1}` {
		t.Errorf("%s %v", got, err)
	}
}

func TestACallThatIsGivenUpIsCancelledInTheServer(t *testing.T) {
	for name, tt := range map[string]struct {
		timeout time.Duration
		code    v1.Code
	}{
		"by its caller":   {DefaultTimeout, v1.CodeInternal},
		"by its time-out": {100 * time.Millisecond, CodeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			var tools map[string]rlm.Tool
			var file string
			for begun := false; !begun; tt.timeout *= 4 { // a busy host may need longer to start
				_, tools = open(t, Options{Timeout: tt.timeout}, itself("stdio"))
				file = filepath.Join(t.TempDir(), "state")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() {
					_, err := call(ctx, t, tools["shop_wait"], `{"file":"`+file+`"}`)
					ended <- err
				}()
				if tt.code != CodeTimeout {
					testneed.Await(t, "the call has begun", holds(file, "begun"))
					cancel()
				}
				if err := <-ended; v1.CodeOf(err) != tt.code {
					t.Fatalf("%v", err)
				}
				_, err := os.Stat(file)
				begun = err == nil || tt.timeout > time.Minute
			}
			testneed.Await(t, "the server hears of it", holds(file, "cancelled"))
			testneed.Await(t, "the next call comes through", func() bool {
				_, err := call(t.Context(), t, tools["shop_fail"], `{}`)
				return v1.CodeOf(err) == CodeToolFailed
			})
		})
	}
}

func TestServersThatCannotBeUsed(t *testing.T) {
	_, shut := serveHTTP(t, nil)
	shut.Headers = nil
	for name, tt := range map[string]struct {
		server Server
		says   string
	}{
		"no such program":             {Server{Name: "x", Command: []string{"/nonexistent/program"}}, "no such file"},
		"one that ends":               {itself("broken"), "there is no license file"},
		"one that says nothing":       {itself("mute"), "no answer within the timeout"},
		"one that is no MCP server":   {Server{Name: "x", Command: []string{"echo", "hello"}}, "the program exited"},
		"an address where nobody is":  {Server{Name: "x", URL: "http://127.0.0.1:1/mcp"}, "connection refused"},
		"an address that wants a key": {shut, "Unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			wait := time.Minute
			if tt.says == "no answer within the timeout" {
				wait = 100 * time.Millisecond
			}
			set, err := Open([]Server{tt.server}, Options{Connect: wait})
			if err != nil {
				t.Fatal(err)
			}
			defer set.Close()
			if _, err := set.Tools(t.Context()); v1.CodeOf(err) != CodeServerUnreachable || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestTheAddressOfAServerIsNotTold(t *testing.T) {
	const token = "/SECRET?key=SECRET"
	front := &switchable{}
	srv := httptest.NewServer(front)
	front.set(overHTTP(t, nil))
	_, tools := open(t, Options{}, Server{Name: "shop", URL: srv.URL + token})
	front.set(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.0.0.1:1"+token, http.StatusTemporaryRedirect)
	}))
	_, moved := call(t.Context(), t, tools["shop_sum"], `{"numbers":[1]}`)
	srv.CloseClientConnections()
	srv.Close()
	_, away := call(t.Context(), t, tools["shop_sum"], `{"numbers":[1]}`)
	for _, err := range []error{moved, away} {
		if err == nil || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%v", err)
		}
	}
}

func TestParse(t *testing.T) {
	t.Setenv("TOKEN", "a b")
	for text, want := range map[string][]string{
		`docs=docs-server --stdio "two words"`:  {"docs-server", "--stdio", "two words"},
		`docs=env TOKEN="$TOKEN" server`:        {"env", "TOKEN=a b", "server"},
		`docs= prog `:                           {"prog"},
		`docs=https://docs.example/mcp?a=b`:     {"https://docs.example/mcp?a=b"},
		`docs=`:                                 nil,
		`docs-server --stdio`:                   nil,
		`=prog`:                                 nil,
		`two words=prog`:                        nil,
		`docs=prog "open`:                       nil,
		`docs=https://`:                         nil,
		`docs=prog $(touch /tmp/never-made-it)`: nil,
	} {
		s, err := Parse(text)
		got := s.Command
		if s.URL != "" {
			got = []string{s.URL}
		}
		if want == nil {
			if v1.CodeOf(err) != CodeServerInvalid {
				t.Errorf("%s: %v %v", text, got, err)
			}
		} else if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q %v", text, got, err)
		}
	}
}

func TestReadFile(t *testing.T) {
	t.Setenv("DOCS_TOKEN", "tok")
	file := filepath.Join(t.TempDir(), "mcp.json")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"mcpServers": {
		"web": {"type": "http", "url": "https://x.example/mcp", "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"}},
		"docs": {"command": "docs", "args": ["a b"], "env": {"TOKEN": "${DOCS_TOKEN}$1"}},
		"off": {"command": "x", "disabled": true}}}`)
	got, err := ReadFile(file)
	if err != nil || len(got) != 2 || got[0].Name != "docs" || !slices.Equal(got[0].Command, []string{"docs", "a b"}) || got[0].Env["TOKEN"] != "tok$1" || got[1].Headers["Authorization"] != "Bearer tok" {
		t.Errorf("%+v %v", got, err)
	}
	for _, bad := range []string{`{`, `{"mcpServers": {"x": {}}}`, `{"mcpServers": {"x y": {"command": "x"}}}`, `{"mcpServers": {"x": {"command": "x", "url": "https://x"}}}`} {
		write(bad)
		if _, err := ReadFile(file); v1.CodeOf(err) != CodeServerInvalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestSecretsStayWhereTheServerIs(t *testing.T) {
	var got string
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") }))
	defer srv.Close()
	for name, tt := range map[string]struct{ server, want string }{
		"there":                    {srv.URL + "/mcp", "Bearer key"},
		"elsewhere":                {"http://elsewhere.example/mcp", ""},
		"there, but not encrypted": {strings.Replace(srv.URL, "http:", "https:", 1) + "/mcp", ""},
	} {
		w := newTransport(&Server{URL: tt.server, Headers: map[string]string{"Authorization": "Bearer key"}}, 1<<10)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/to", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := w.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		w.base.CloseIdleConnections()
		if got != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
