package mcp

import (
	"context"
	"fmt"
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

// Options configures an MCP server. The zero value is usable.
type Options struct {
	Version string
	Logger  *slog.Logger
	// TerraphimNames adds tools with the names and parameters of terraphim's tools.
	TerraphimNames bool
	// Spec is the spec of new sessions; nil: the server's default.
	Spec *sandbox.Spec
	// SamplingCalls is the maximum number of calls of the client's own model in one connection; 0:
	// DefaultSamplingCalls; negative: none.
	SamplingCalls int
	// StartRun starts a run of a tenant with the client's own model, which only this process can reach. Nil: Engine is
	// used.
	StartRun func(ctx context.Context, tenant string, q rlm.Question, m llm.Model) (*rlm.Run, error)
	// Engine returns the RLM engine for runs in this process with the client's own model. If StartRun and Engine are
	// nil, that model can be called directly, but not by a run.
	Engine func(ctx context.Context, models func(depth int, name string) (llm.Model, error)) (*rlm.Engine, error)
}

// link is how one call uses the API: as which caller, and in which session.
type link struct {
	client     *client.Client
	ownSession string                              // name of the connection's own session; empty: it has none
	clientGone context.Context                     // ends when the client is gone; nil: the call's own ctx does
	onMade     func(*sdk.ServerSession, ownedItem) // is called with each item that ends with the connection
}

// ownedItem is a session or a snapshot that ends with the connection that made it.
type ownedItem struct {
	session  string
	snapshot string // empty: the session itself
}

// end ends the session or deletes the snapshot. It returns nil if the item is gone already.
func (b ownedItem) end(ctx context.Context, c *client.Client) error {
	var err error
	if b.snapshot != "" {
		err = c.DeleteSnapshot(ctx, b.session, b.snapshot)
	} else {
		err = c.Session(b.session).End(ctx, "its MCP client disconnected")
	}
	if sessionGone(err) || v1.CodeOf(err) == v1.CodeSnapshotNotFound {
		return nil
	}
	return err
}

// mcpServer is the MCP server behind all transports.
type mcpServer struct {
	opts   Options
	server *sdk.Server
	link   func(*sdk.RequestExtra, *sdk.ServerSession) (*link, error)
	tools  []entry // for search_tools
	quota  quotas
	owners sync.Map // connections that made their own session; the keys are *sdk.ServerSession, the values nil

	subscriptions subscriptions
}

// instructions are sent to the client's model.
const instructions = `recluse gives you your own machine: a sandbox with a live Python interpreter, a shell and files, which are kept between calls.
Use run_code for Python (variables stay), run_bash for shell commands, files to read and write files, snapshot before something risky, and query to let a
recursive model answer a question over a text that is too large to read. Nothing that you run there affects the user's machine.`

func newServer(o Options, linkFor func(*sdk.RequestExtra, *sdk.ServerSession) (*link, error)) *mcpServer {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	srv := &mcpServer{opts: o, link: linkFor}
	srv.server = sdk.NewServer(
		&sdk.Implementation{Name: "recluse", Title: "recluse", Version: o.Version},
		&sdk.ServerOptions{
			Instructions:       instructions,
			Logger:             o.Logger,
			Capabilities:       &sdk.ServerCapabilities{},
			CompletionHandler:  srv.complete,
			SubscribeHandler:   srv.subscribe,
			UnsubscribeHandler: srv.unsubscribe,
			// Files and runs belong to one tenant, and the tools depend on the kind of connection.
			SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.CacheScope = "private" },
		},
	)
	srv.server.AddReceivingMiddleware(shortenErrors, srv.listTools)
	srv.server.AddSendingMiddleware(dropMisaddressed)
	srv.addRun()
	srv.addQuery()
	srv.addContext()
	srv.addSnapshot()
	srv.addFiles()
	srv.addStatus()
	srv.addSearch()
	if o.TerraphimNames {
		srv.addTerraphim()
	}
	srv.addResources()
	srv.addPrompts()
	return srv
}

// call is one tool call.
type call struct {
	context.Context
	*link
	srv *mcpServer
	req *sdk.CallToolRequest
}

// sessionArg is the argument that all tools of a session have.
type sessionArg struct {
	Session string `json:"session,omitempty" doc:"name of the session to use; left out: the session of this connection"`
}

// networkArg is the argument of tools that can create a session and run code in it.
type networkArg struct {
	Network string `json:"network,omitempty" doc:"network policy of the session, if this call creates it: rules and a preset with commas between them, such as 'allow api.github.com, none'. It can only narrow what the user has allowed, which is the policy if this is left out"`
}

// spec returns the spec of a new session whose model requests a network policy. The model can only narrow the policy
// that the user has configured.
func (c *call) spec(requested string) (*sandbox.Spec, error) {
	configured := c.srv.opts.Spec
	if requested == "" {
		return configured, nil
	}
	var spec sandbox.Spec
	if configured != nil {
		spec = *configured
	}
	narrow := v1.ParseNetwork(requested)
	if narrow.Preset == "" {
		narrow.Preset = v1.NetworkNone // not the default of the server
	}
	if err := sandbox.NetworkWithin(narrow, spec.Network); err != nil {
		return nil, err
	}
	spec.Network = narrow
	return &spec, nil
}

// tool describes one tool.
type tool struct {
	name, title, description string
	readOnly, destructive    bool
	idempotent               bool
	shape                    func(in *jsonschema.Schema) // adds constraints to the schema of the arguments; nil: none
}

// renderer is a result whose content for models is not JSON. If render returns nil, it is JSON.
type renderer interface{ render() *sdk.CallToolResult }

// add adds a tool. The results are structured. Their text content is the same as JSON, unless Out is a renderer.
func add[In, Out any](srv *mcpServer, t tool, do func(c *call, in In) (Out, error)) {
	var types schema.Set
	in, out := types.Of(reflect.TypeFor[In]()), types.Of(reflect.TypeFor[Out]())
	if t.shape != nil {
		t.shape(in)
	}
	openWorld := false // the tools act on a sandbox, not on external systems
	srv.tools = append(srv.tools, entry{Name: t.name, Description: t.description})
	sdk.AddTool(srv.server, &sdk.Tool{
		Name:         t.name,
		Title:        t.title,
		Description:  t.description,
		InputSchema:  in,
		OutputSchema: out,
		Annotations: &sdk.ToolAnnotations{
			Title:           t.title,
			ReadOnlyHint:    t.readOnly,
			DestructiveHint: &t.destructive,
			IdempotentHint:  t.idempotent,
			OpenWorldHint:   &openWorld,
		},
	}, func(ctx context.Context, req *sdk.CallToolRequest, args In) (*sdk.CallToolResult, Out, error) {
		var none Out
		l, err := srv.link(req.Extra, req.Session)
		if err != nil {
			return nil, none, forModel(err)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if l.clientGone != nil {
			defer context.AfterFunc(l.clientGone, cancel)()
		}
		c := &call{Context: ctx, link: l, srv: srv, req: req}
		if err := c.resolveApproval(); err != nil {
			return nil, none, forModel(err)
		}
		out, err := do(c, args)
		if err != nil {
			if q := c.approvalRequest(err); q != nil {
				return q, none, nil
			}
			return nil, none, forModel(err)
		}
		if s, ok := any(out).(renderer); ok {
			return s.render(), out, nil
		}
		return nil, out, nil
	})
}

// name returns the name of the session that a call uses.
func (c *call) name(given string) (string, error) {
	if given == "" {
		given = c.ownSession
	}
	if given == "" {
		return "", &v1.Error{
			Code:    v1.CodeSessionNeeded,
			Op:      "find session",
			Message: "this connection has no session of its own",
			Remedy:  "set the argument session to a name of your choice, and use the same name in each call",
		}
	}
	return given, nil
}

// open opens the session that a call uses, and creates it if it does not exist.
func (c *call) open(given string) (*client.Session, session.Opened, error) {
	return c.openWith(given, "")
}

// openWith opens a session as open does. A new one has the requested network policy; an existing one must have it.
func (c *call) openWith(given, network string) (*client.Session, session.Opened, error) {
	name, err := c.name(given)
	if err != nil {
		return nil, session.Opened{}, err
	}
	spec, err := c.spec(network)
	if err != nil {
		return nil, session.Opened{}, err
	}
	s, opened, err := c.client.Open(c, name, session.OpenOptions{IfNew: session.Settings{Spec: spec}})
	if err == nil && network != "" && opened.Spec.Network.String() != spec.Network.String() {
		err = &v1.Error{
			Code:    v1.CodeSpecConflict,
			Op:      "open session",
			Message: fmt.Sprintf("session %q already exists, and its network policy is %q", name, opened.Spec.Network),
			Remedy:  "leave network out, or use a new session",
		}
	}
	if opened.New && name == c.ownSession && c.onMade != nil {
		c.srv.owners.Store(c.req.Session, nil)
		c.onMade(c.req.Session, ownedItem{session: name})
	}
	return s, opened, err
}

// noteOwned notes a snapshot or a copy of session of. It ends with the connection if the connection made that session
// and owns it. Copies and snapshots of a session that existed before stay, as the session does.
func (c *call) noteOwned(of string, made ownedItem) {
	if of != c.ownSession || c.onMade == nil {
		return
	}
	if _, owner := c.srv.owners.Load(c.req.Session); owner {
		c.onMade(c.req.Session, made)
	}
}

// listTools marks the argument session as required for a client whose connection has no session of its own.
func (srv *mcpServer) listTools(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		list, ok := res.(*sdk.ListToolsResult)
		r, isList := req.(*sdk.ListToolsRequest)
		if err != nil || !ok || !isList {
			return res, err
		}
		l, err := srv.link(r.Extra, r.Session)
		if err != nil {
			return nil, forModel(err)
		}
		if l.ownSession != "" {
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

// sessionGone reports whether err means that a session does not exist or has ended.
func sessionGone(err error) bool {
	code := v1.CodeOf(err)
	return code == v1.CodeSessionNotFound || code == v1.CodeSessionExpired || code == v1.CodeSessionEnded
}

// setRange sets the minimum and the maximum of a numeric property.
func setRange(s *jsonschema.Schema, property string, lowest, highest float64) {
	s.Properties[property].Minimum, s.Properties[property].Maximum = &lowest, &highest
}

// setMaxLength sets the maximum length of a text property in characters.
func setMaxLength(s *jsonschema.Schema, property string, characters int) {
	s.Properties[property].MaxLength = &characters
}
