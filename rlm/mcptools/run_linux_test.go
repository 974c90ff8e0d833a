package mcptools

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// engine returns an engine whose model replies with one block of code.
func engine(t *testing.T, dir string, tools []rlm.Tool, code string) *rlm.Engine {
	t.Helper()
	testneed.Sandboxes(t)
	m := llm.NewScripted("root", llm.Rule{Reply: "```repl\n" + code + "\n```"})
	e, err := rlm.New(rlm.Options{
		Models:    func(int, string) (llm.Model, error) { return m, nil },
		Sandboxes: rlm.FromBackend(boxes), Dir: dir, PlainBelow: -1, Tools: tools,
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

const shopping = `
out = [shop_get_args("here", user_id=7), shop_sum([1, 2])["sum"]]
words, image = shop_look()[:2]
out += [words, image["type"], image["mime_type"], image["data"][:4] == b"\x89PNG"]
for wrong in (lambda: shop_fail(), lambda: shop_die(), lambda: shop_sum(), lambda: shop_sum([1], colour=2)):
    try:
        out.append(wrong())
    except Exception as e:
        out.append(type(e).__name__ + " " + getattr(e, "code", "") + " " + str(e).split(" (")[0])
out += [shop_sum(numbers=[4])["sum"], "user_id: int" in shop_get_args.__doc__]
FINAL(out)`

const bought = `["{\"from\":\"here\",\"user-id\":7}", 3, "a picture", "image", "image/png", true, ` +
	`"ToolError mcp_tool_failed call fail of shop: the shop is shut", "ToolError mcp_server_lost call die of shop: the MCP server was lost: exit status 3: out of luck", ` +
	`"TypeError  shop_sum() missing 1 required positional argument: 'numbers'", "TypeError  shop_sum() got an unexpected keyword argument 'colour'", 4, true]`

func TestCodeUsesToolsAndAReplayNeedsNoServer(t *testing.T) {
	set, err := Open([]Server{itself("stdio")}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	tools, err := set.Tools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	res, err := engine(t, dir, tools, shopping).Run(t.Context(), rlm.Question{Query: "Buy it", Inputs: []rlm.Input{rlm.Text("x")}})
	if err != nil || res.Answer != bought {
		t.Fatalf("%v\n%s\n%s", err, res.Answer, bought)
	}
	set.Close()
	r, err := engine(t, dir, nil, "none of this").Replay(t.Context(), res.Run)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.Wait()
	if err != nil || again.Answer != bought {
		t.Errorf("replayed: %v\n%s", err, again.Answer)
	}
}

func TestARunThatIsStoppedCancelsTheCallInTheServer(t *testing.T) {
	set, err := Open([]Server{itself("stdio")}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	tools, err := set.Tools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "state")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	r, err := engine(t, dir, tools, "answer['content'] = 'half'\nshop_wait('"+file+"')").Start(ctx, rlm.Question{Query: "Wait", Inputs: []rlm.Input{rlm.Text("x")}})
	if err != nil {
		t.Fatal(err)
	}
	testneed.Await(t, "the call has begun", holds(file, "begun"))
	r.Cancel()
	if res, err := r.Wait(); err == nil || res.Reason != v1.ReasonCancelled {
		t.Errorf("%+v %v", res, err)
	}
	testneed.Await(t, "the server hears of it", holds(file, "cancelled"))
	// In a fork without the server, the call fails in the code.
	again, err := engine(t, dir, nil, "try:\n    shop_wait('x')\nexcept ToolError as e:\n    FINAL(e.code + ': ' + str(e))").Fork(t.Context(), r.ID(), 0, rlm.ContinueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := again.Wait(); err != nil || !strings.HasPrefix(res.Answer, `tool_missing: tool "shop_wait" is missing`) {
		t.Errorf("%+v %v", res, err)
	}
}
