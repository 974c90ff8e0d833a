package mcptools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

// serverEnv makes this test program an MCP server.
const serverEnv = "RECLUSE_TEST_MCP_SERVER"

var boxes *gvisor.Backend

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	switch os.Getenv(serverEnv) {
	case "":
	case "mute":
		_, _ = io.Copy(io.Discard, os.Stdin) // until its input ends
		return 0
	case "broken":
		fmt.Fprintln(os.Stderr, "there is no license file")
		return 7
	default:
		if err := newServer().Run(context.Background(), &sdk.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return 0
	}
	engine, guest, err := testbin.Programs()
	if err == nil {
		err = errors.Join(os.Setenv("RECLUSE_ENGINE", engine.Path), os.Setenv("RECLUSE_GUEST", guest.Path))
	}
	dir, derr := os.MkdirTemp("", "recluse-mcptools-")
	defer func() { _ = os.RemoveAll(dir) }()
	if err = errors.Join(err, derr); err == nil {
		boxes, err = gvisor.New(gvisor.Options{DataDir: dir})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandboxes for tests:", err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

var picture = []byte("\x89PNG\r\n\x1a\nnot really")

// newServer returns a server with a tool for each kind of result.
func newServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	add := func(name, schema string, f func(ctx context.Context, args map[string]any) (*sdk.CallToolResult, error)) {
		s.AddTool(&sdk.Tool{Name: name, Description: "Does " + name + ".\nMore about it.", InputSchema: json.RawMessage(schema)},
			func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				var args map[string]any
				if err := json.Unmarshal(r.Params.Arguments, &args); err != nil {
					return nil, err
				}
				return f(ctx, args)
			})
	}
	text := func(t string) *sdk.CallToolResult {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: t}}}
	}
	add("get-args", `{"type":"object","required":["from","user-id"],"properties":{"from":{"type":"string"},"user-id":{"type":"integer","description":"Whose."},"limit":{"type":"integer","default":10}}}`,
		func(_ context.Context, args map[string]any) (*sdk.CallToolResult, error) {
			b, err := json.Marshal(args)
			return text(string(b)), err
		})
	add("sum", `{"type":"object","required":["numbers"],"properties":{"numbers":{"type":"array","items":{"type":"number"}}}}`,
		func(_ context.Context, args map[string]any) (*sdk.CallToolResult, error) {
			total := 0.0
			for _, n := range args["numbers"].([]any) {
				total += n.(float64)
			}
			return &sdk.CallToolResult{StructuredContent: map[string]any{"sum": total}, Content: []sdk.Content{&sdk.TextContent{Text: "it is " + fmt.Sprint(total)}}}, nil
		})
	add("look", `{"type":"object"}`, func(context.Context, map[string]any) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{
			&sdk.TextContent{Text: "a picture"}, &sdk.ImageContent{MIMEType: "image/png", Data: picture}, &sdk.ResourceLink{URI: "file:///x", Name: "x"},
			&sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: "mem:y", Text: "embedded"}},
		}}, nil
	})
	add("fail", `{"type":"object"}`, func(context.Context, map[string]any) (*sdk.CallToolResult, error) {
		res := text("the shop is shut")
		res.IsError = true
		return res, nil
	})
	add("refuse", `{"type":"object"}`, func(context.Context, map[string]any) (*sdk.CallToolResult, error) {
		return nil, errors.New("never heard of it")
	})
	add("big", `{"type":"object","required":["bytes"],"properties":{"bytes":{"type":"integer"}}}`, func(_ context.Context, args map[string]any) (*sdk.CallToolResult, error) {
		return text(strings.Repeat("x", int(args["bytes"].(float64)))), nil
	})
	add("die", `{"type":"object"}`, func(context.Context, map[string]any) (*sdk.CallToolResult, error) {
		fmt.Fprintln(os.Stderr, "out of luck")
		os.Exit(3)
		return nil, nil
	})
	// The file shows that the call has started, and then that it was cancelled.
	add("wait", `{"type":"object","required":["file"],"properties":{"file":{"type":"string"}}}`, func(ctx context.Context, args map[string]any) (*sdk.CallToolResult, error) {
		file := args["file"].(string)
		if err := os.WriteFile(file, []byte("begun"), 0o600); err != nil {
			return nil, err
		}
		<-ctx.Done()
		return text("too late"), os.WriteFile(file, []byte("cancelled"), 0o600)
	})
	add("secret", `{"type":"object"}`, func(context.Context, map[string]any) (*sdk.CallToolResult, error) {
		return text(os.Getenv("OPENAI_API_KEY") + "|" + os.Getenv("OWN_TOKEN")), nil
	})
	return s
}

// itself returns a Server that is this test program.
func itself(kind string) Server {
	// its end is waited for
	return Server{Name: "shop", Command: []string{"/proc/self/exe"}, Env: map[string]string{serverEnv: kind, "GORACE": "atexit_sleep_ms=0"}}
}

func open(t *testing.T, o Options, servers ...Server) (*Set, map[string]rlm.Tool) {
	t.Helper()
	set, err := Open(servers, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(set.Close)
	tools, err := set.Tools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]rlm.Tool{}
	for _, tool := range tools {
		byName[tool.Name] = tool
	}
	return set, byName
}

// call calls a tool with arguments as JSON, and returns the result as JSON.
func call(ctx context.Context, t *testing.T, tool rlm.Tool, kwargs string) (string, error) {
	t.Helper()
	if tool.Call == nil {
		t.Fatal("tool not found")
	}
	c := rlm.ToolCall{}
	if err := json.Unmarshal([]byte(kwargs), &c.Kwargs); err != nil {
		t.Fatal(err)
	}
	v, err := tool.Call(ctx, c)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String()), nil
}

func holds(file, text string) func() bool {
	return func() bool {
		b, err := os.ReadFile(file)
		return err == nil && string(b) == text
	}
}
