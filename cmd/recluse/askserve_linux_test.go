package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// asMCP is the environment variable that makes the test program an MCP server.
const asMCP = "RECLUSE_TEST_AS_MCP"

func init() {
	if os.Getenv(asMCP) == "" {
		return
	}
	s := sdk.NewServer(&sdk.Implementation{Name: "shop", Version: "1"}, nil)
	type args struct {
		What string `json:"what" jsonschema:"what is bought"`
	}
	sdk.AddTool(s, &sdk.Tool{Name: "price", Description: "Tells what something costs."}, func(_ context.Context, _ *sdk.CallToolRequest, in args) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf("%s: %d cents", in.What, 10*len(in.What))}}}, nil, nil
	})
	if err := s.Run(context.Background(), &sdk.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(0)
}

// shop returns the value of --mcp for this program as an MCP server.
func shop(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return "shop=env " + asMCP + "=1 '" + self + "'"
}

const shopScript = `
name: root
rules:
  - reply: |
      ¬repl
      FINAL(shop_price(what="tea"))
      ¬
`

func TestAskWithToolsOfAnMCPServer(t *testing.T) {
	a := newAsker(t, "0s")
	a.write("root.yaml", strings.ReplaceAll(shopScript, "¬", "```"))
	ask := []string{"ask", "What is the tea?", "--context", a.big, "-q"}
	if got := a.must(append(ask, "--mcp", shop(t))...); got != "tea: 30 cents\n" {
		t.Errorf("%q", got)
	}
	// Neither model nor server is needed to see it again.
	if got := a.must("runs", "replay", "last", "-q"); got != "tea: 30 cents\n" {
		t.Errorf("replay: %q", got)
	}
	t.Run("that is none", func(t *testing.T) {
		for want, args := range map[string][]string{
			"invalid server \"shop\"": {"--mcp", "shop"},
			"no such file":            {"--mcp", "shop=/nonexistent/program"},
			"duplicate server name":   {"--mcp", shop(t), "--mcp", shop(t)},
			"server's configuration":  {"--mcp", shop(t), "--session", "work"},
		} {
			if got := a.run("", append(ask, args...)...); got.status != statusFailure || !strings.Contains(got.stderr, want) {
				t.Errorf("%v: %+v", args, got)
			}
		}
	})
	t.Run("that the server's owner has configured", func(t *testing.T) {
		a.env = append(a.env, "RECLUSE_MCP_SERVERS="+shop(t))
		if got := a.must(append(ask, "--session", "work")...); got != "tea: 30 cents\n" {
			t.Errorf("%q", got)
		}
	})
}

// kept reads the files of a run.
func (a *asker) kept(id string) *rlm.Info {
	a.t.Helper()
	e, err := rlm.New(rlm.Options{
		Models: func(int, string) (llm.Model, error) { return nil, rlm.NoModel() }, Sandboxes: rlm.FromBackend(nil), Dir: filepath.Join(a.data, "recluse", "runs"),
	})
	if err != nil {
		a.t.Fatal(err)
	}
	info, err := e.Show(id)
	if err != nil {
		a.t.Fatal(err)
	}
	return info
}

func TestARunGoesOnByItselfInTheNextServer(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"after it was killed": syscall.SIGKILL, "after it was stopped": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAsker(t, "10m")
			first, _ := a.serveByHand()
			c, err := client.New(client.Options{Socket: a.server().Socket})
			if err != nil {
				t.Fatal(err)
			}
			info, err := c.StartRun(t.Context(), client.RunOptions{Query: "What is the password?", Contexts: []client.RunContext{{Path: a.big}}})
			if err != nil {
				t.Fatal(err)
			}
			id := info.ID
			a.thinking(id)
			if err := first.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = first.Wait()   // it was killed, or leaves
			left := a.kept(id) // read from the files, because a call to the server would start one
			if left.Result != nil || left.Running || left.Turns != 2 {
				t.Errorf("what is left: %+v", left)
			}
			a.hurry()
			_, log := a.serveByHand()
			log.await(t, "an interrupted run was resumed")
			if c, err = client.New(client.Options{Socket: a.server().Socket}); err != nil {
				t.Fatal(err)
			}
			kinds := map[v1.RunEventKind]int{}
			var how v1.Resumed
			for e, err := range c.RunEvents(t.Context(), id, 0) {
				if err != nil {
					t.Fatal(err)
				}
				if kinds[e.Kind]++; e.Kind == v1.KindResumed && e.Decode(&how) != nil {
					t.Error("an event cannot be read")
				}
			}
			if info, err = c.Run(t.Context(), id); err != nil || info.Result == nil || info.Result.Answer != "swordfish" {
				t.Fatalf("%+v %v", info, err)
			}
			// Three turns, a sub-call, and the call that was interrupted.
			if how.How != rlm.HowAttached || kinds[v1.KindResumed] != 1 || kinds[v1.KindCellStarted] != 3 || kinds[v1.KindCallStarted] != 5 || info.Result.Usage.Calls != 4 {
				t.Errorf("%+v %v %+v", how, kinds, info.Result.Usage)
			}
			a.await("its tries are no longer counted", func() bool {
				_, err := os.Stat(filepath.Join(a.data, "recluse", "runs", id, "tries"))
				return os.IsNotExist(err)
			})
		})
	}
}
