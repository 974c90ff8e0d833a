package mcp

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/schema"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// Options says what is served. The zero value is good.
type Options struct {
	Version string
	Logger  *slog.Logger
	// TerraphimNames adds the names that terraphim's tools have, with their parameters.
	TerraphimNames bool
	// Spec is what a session that has to be made is made from; nil: the server's default.
	Spec *sandbox.Spec
	// SamplingCalls bounds how often the client's own model is asked in one connection; 0: DefaultSamplingCalls, below: never.
	SamplingCalls int
	// Lent begins a run of a tenant's with a model that only this process can reach: the client's own. Nil: Engine.
	Lent func(ctx context.Context, tenant string, q rlm.Question, m llm.Model) (*rlm.Run, error)
	// Engine makes what runs a question here, with such a model. Nil: the model is asked directly, and what needs a run is refused.
	Engine func(ctx context.Context, models func(depth int, name string) (llm.Model, error)) (*rlm.Engine, error)
}

// link is how one call reaches the API: as whom, and in which session.
type link struct {
	client *client.Client
	own    string                              // the session of the connection; empty: it has none
	gone   context.Context                     // ends when nobody can hear the answer any more; nil: the call's own context tells
	made   func(*sdk.ServerSession, belonging) // is called with what ends with the connection
}

// belonging is what ends with the connection that made it: a session, or a snapshot of one.
type belonging struct {
	session  string
	snapshot string // empty: the session itself
}

// end ends it. That it has ended already is no error.
func (b belonging) end(ctx context.Context, c *client.Client) error {
	var err error
	if b.snapshot != "" {
		err = c.DeleteSnapshot(ctx, b.session, b.snapshot)
	} else {
		err = c.Session(b.session).End(ctx, "its MCP client has gone")
	}
	if absent(err) || v1.CodeOf(err) == v1.CodeSnapshotNotFound {
		return nil
	}
	return err
}

// face is one MCP server, whatever it is reached by.
type face struct {
	opts   Options
	server *sdk.Server
	link   func(*sdk.RequestExtra, *sdk.ServerSession) (*link, error)
	tools  []entry // for search_tools
	quota  quotas
	owners sync.Map // connections that made their own session: *sdk.ServerSession → nothing

	subscriptions subscriptions
}

const instructions = `recluse gives you a machine of your own: a sandbox with a live Python interpreter, a shell and files, kept between calls.
Use run_code for Python (variables stay), run_bash for commands, files to read and write, snapshot before something risky, and query to let a
recursive model answer a question over a text that is too large to read. Nothing you run there touches the user's machine.`

func newFace(o Options, reach func(*sdk.RequestExtra, *sdk.ServerSession) (*link, error)) *face {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	f := &face{opts: o, link: reach}
	f.server = sdk.NewServer(
		&sdk.Implementation{Name: "recluse", Title: "recluse", Version: o.Version},
		&sdk.ServerOptions{
			Instructions:       instructions,
			Logger:             o.Logger,
			Capabilities:       &sdk.ServerCapabilities{},
			CompletionHandler:  f.complete,
			SubscribeHandler:   f.subscribe,
			UnsubscribeHandler: f.unsubscribe,
			// Files and runs are those of one tenant, and tools differ with the kind of connection.
			SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.CacheScope = "private" },
		},
	)
	f.server.AddReceivingMiddleware(brief, f.listTools)
	f.server.AddSendingMiddleware(addressed)
	f.addRun()
	f.addQuery()
	f.addContext()
	f.addSnapshot()
	f.addFiles()
	f.addStatus()
	f.addSearch()
	if o.TerraphimNames {
		f.addTerraphim()
	}
	f.addResources()
	f.addPrompts()
	return f
}

// call is one tool call.
type call struct {
	context.Context
	*link
	f   *face
	req *sdk.CallToolRequest
}

// where is the argument that all tools have.
type where struct {
	Session string `json:"session,omitempty" doc:"name of the session to work in; left out: the one of this connection"`
}

// tool describes one tool.
type tool struct {
	name, title, description string
	readOnly, destructive    bool
	idempotent               bool
	shape                    func(in *jsonschema.Schema) // says more about the arguments than their types do
}

// shower is a result that is shown to models otherwise than as JSON. It may return nil.
type shower interface{ shown() *sdk.CallToolResult }

// add adds a tool. What it returns is structured; the text beside it is the same as JSON, unless it is a shower.
func add[In, Out any](f *face, t tool, do func(c *call, in In) (Out, error)) {
	var types schema.Set
	in, out := types.Of(reflect.TypeFor[In]()), types.Of(reflect.TypeFor[Out]())
	if t.shape != nil {
		t.shape(in)
	}
	closed := false // what runs in a sandbox does not reach the world
	f.tools = append(f.tools, entry{Name: t.name, Description: t.description})
	sdk.AddTool(f.server, &sdk.Tool{
		Name: t.name, Title: t.title, Description: t.description, InputSchema: in, OutputSchema: out,
		Annotations: &sdk.ToolAnnotations{Title: t.title, ReadOnlyHint: t.readOnly, DestructiveHint: &t.destructive, IdempotentHint: t.idempotent, OpenWorldHint: &closed},
	}, func(ctx context.Context, req *sdk.CallToolRequest, args In) (*sdk.CallToolResult, Out, error) {
		var none Out
		l, err := f.link(req.Extra, req.Session)
		if err != nil {
			return nil, none, told(err)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if l.gone != nil {
			defer context.AfterFunc(l.gone, cancel)()
		}
		c := &call{Context: ctx, link: l, f: f, req: req}
		if err := c.answer(); err != nil {
			return nil, none, told(err)
		}
		out, err := do(c, args)
		if err != nil {
			if q := c.question(err); q != nil {
				return q, none, nil
			}
			return nil, none, told(err)
		}
		if s, ok := any(out).(shower); ok {
			return s.shown(), out, nil
		}
		return nil, out, nil
	})
}

// name is the session that a call means.
func (c *call) name(given string) (string, error) {
	if given == "" {
		given = c.own
	}
	if given == "" {
		return "", &v1.Error{
			Code: v1.CodeSessionNeeded, Op: "find session", Message: "this connection has no session of its own",
			Remedy: "give the argument session, a name of your choice, and the same one each time",
		}
	}
	return given, nil
}

// open opens the session that a call means. Opened.New tells the model that nothing of an earlier session is there.
func (c *call) open(given string) (*client.Session, session.Opened, error) {
	name, err := c.name(given)
	if err != nil {
		return nil, session.Opened{}, err
	}
	s, opened, err := c.client.Open(c, name, session.OpenOptions{IfNew: session.Settings{Spec: c.f.opts.Spec}})
	if opened.New && name == c.own && c.made != nil {
		c.f.owners.Store(c.req.Session, nil)
		c.made(c.req.Session, belonging{session: name})
	}
	return s, opened, err
}

// keep notes a snapshot or a copy of a session. It ends with the connection if that session is the connection's own and was made by it:
// what is made of a session that was there before stays, as that session does.
func (c *call) keep(of string, made belonging) {
	if of != c.own || c.made == nil {
		return
	}
	if _, owner := c.f.owners.Load(c.req.Session); owner {
		c.made(c.req.Session, made)
	}
}

// listTools marks the argument session as required for a client whose connection has no session of its own.
func (f *face) listTools(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		list, ok := res.(*sdk.ListToolsResult)
		r, isList := req.(*sdk.ListToolsRequest)
		if err != nil || !ok || !isList {
			return res, err
		}
		l, err := f.link(r.Extra, r.Session)
		if err != nil {
			return nil, told(err)
		}
		if l.own != "" {
			return list, nil
		}
		for i, t := range list.Tools {
			in, ok := t.InputSchema.(*jsonschema.Schema)
			if !ok || in.Properties["session"] == nil {
				continue
			}
			tool, args := *t, *in
			args.Required = append(slices.Clone(in.Required), "session")
			tool.InputSchema = &args
			list.Tools[i] = &tool
		}
		return list, nil
	}
}

// absent reports the error of a session that is not there.
func absent(err error) bool {
	code := v1.CodeOf(err)
	return code == v1.CodeSessionNotFound || code == v1.CodeSessionExpired || code == v1.CodeSessionEnded
}

// between bounds a number.
func between(s *jsonschema.Schema, property string, least, most float64) {
	s.Properties[property].Minimum, s.Properties[property].Maximum = &least, &most
}

// longest bounds a text, in characters.
func longest(s *jsonschema.Schema, property string, most int) {
	s.Properties[property].MaxLength = &most
}
