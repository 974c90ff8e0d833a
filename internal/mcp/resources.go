package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"mime"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	filesTemplate = "recluse://sessions/{session}/files{+path}"
	filesPrefix   = "recluse://sessions/"

	runsTemplate   = "recluse://runs/{run}"
	runsPrefix     = "recluse://runs/"
	trajectoryType = "application/jsonl"

	maxResource  = 4 << 20
	eventsWait   = time.Second // time in which all past events of a running run arrive
	maxResources = 200         // maximum number of listed files
	maxRuns      = 50          // maximum number of listed runs
)

// addResources adds the files of sessions and the trajectories of runs. Reading a resource does not create a session.
func (srv *mcpServer) addResources() {
	srv.server.AddResourceTemplate(&sdk.ResourceTemplate{
		Name: "session-file", Title: "File of a session", URITemplate: filesTemplate,
		Description: "A file in a session's sandbox, for example recluse://sessions/work/files/home/user/report.csv",
	}, srv.readFile)
	srv.server.AddResourceTemplate(&sdk.ResourceTemplate{
		Name: "run", Title: "Trajectory of a run", URITemplate: runsTemplate, MIMEType: trajectoryType,
		Description: "All events of a run, one per line; of a running run, the events so far",
	}, srv.readRun)
	srv.server.AddReceivingMiddleware(srv.listResources)
}

func (srv *mcpServer) readFile(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	uri := req.Params.URI
	name, file, ok := fileOf(uri)
	if !ok {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	l, err := srv.link(req.Extra, req.Session)
	if err != nil {
		return nil, forModel(err)
	}
	var b bytes.Buffer
	i, err := l.client.Session(name).Files().ReadRange(ctx, file, 0, maxResource, &b)
	switch {
	case sessionGone(err) || v1.CodeOf(err) == v1.CodeFileNotFound:
		return nil, sdk.ResourceNotFoundError(uri)
	case err != nil:
		return nil, forModel(err)
	case i.Size > maxResource:
		return nil, forModel(&v1.Error{
			Code:    v1.CodeTooLarge,
			Op:      "read resource",
			Message: "the file is too large for a resource",
			Remedy:  "read it in parts with the tool files",
		})
	}
	c := &sdk.ResourceContents{URI: uri, MIMEType: mimeOf(file, b.Bytes())}
	if utf8.Valid(b.Bytes()) {
		c.Text = b.String()
	} else {
		c.Blob = b.Bytes()
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{c}}, nil
}

// fileOf returns the session and the absolute path in a URI.
func fileOf(uri string) (session, file string, ok bool) {
	rest, ok := strings.CutPrefix(uri, filesPrefix)
	session, file, found := strings.Cut(rest, "/files/")
	session, err1 := url.PathUnescape(session)
	file, err2 := url.PathUnescape(file)
	return session, "/" + file, ok && found && err1 == nil && err2 == nil && session != ""
}

// runOf returns the id of the run in a URI.
func runOf(uri string) (string, bool) {
	rest, ok := strings.CutPrefix(uri, runsPrefix)
	id, err := url.PathUnescape(rest)
	return id, ok && err == nil && id != ""
}

func mimeOf(name string, data []byte) string {
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	if utf8.Valid(data) {
		return "text/plain"
	}
	return "application/octet-stream"
}

// readRun returns the trajectory of a run. For a running run, it returns the events so far.
func (srv *mcpServer) readRun(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	uri := req.Params.URI
	id, ok := runOf(uri)
	if !ok {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	l, err := srv.link(req.Extra, req.Session)
	if err != nil {
		return nil, forModel(err)
	}
	info, err := l.client.Run(ctx, id)
	if v1.CodeOf(err) == v1.CodeRunNotFound {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	if err != nil {
		return nil, forModel(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if info.Running { // RunEvents waits for further events
		defer time.AfterFunc(eventsWait, cancel).Stop()
	}
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	for e, err := range l.client.RunEvents(ctx, id, 0) {
		if err != nil && ctx.Err() == nil {
			return nil, forModel(err)
		}
		if err != nil {
			break
		}
		if err := w.Encode(e); err != nil {
			return nil, forModel(err)
		}
		if b.Len() > maxResource {
			return nil, forModel(&v1.Error{
				Code:    v1.CodeTooLarge,
				Op:      "read resource",
				Message: "the trajectory is too large for a resource",
				Remedy:  "run: recluse runs export " + id,
			})
		}
	}
	contents := []*sdk.ResourceContents{{URI: uri, MIMEType: trajectoryType, Text: b.String()}}
	return &sdk.ReadResourceResult{Contents: contents}, nil
}

// listResources adds the newest runs, and the files in the home directory of the connection's own session, to the
// listing.
func (srv *mcpServer) listResources(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		list, ok := res.(*sdk.ListResourcesResult)
		r, isList := req.(*sdk.ListResourcesRequest)
		if err != nil || !ok || !isList || list.NextCursor != "" {
			return res, err
		}
		l, err := srv.link(r.Extra, r.Session)
		if err != nil {
			return nil, forModel(err)
		}
		list.Resources = append(list.Resources, l.runs(ctx)...)
		list.Resources = append(list.Resources, l.homeFiles(ctx)...)
		return list, nil
	}
}

func (l *link) runs(ctx context.Context) (out []*sdk.Resource) {
	for i, err := range l.client.Runs(ctx) {
		if err != nil {
			continue // this run cannot be read, or the server has no models and therefore no runs
		}
		if len(out) == maxRuns {
			break
		}
		out = append(out, &sdk.Resource{
			Name:        "run " + i.ID,
			Description: i.Query,
			MIMEType:    trajectoryType,
			URI:         runsPrefix + url.PathEscape(i.ID),
		})
	}
	return out
}

// homeFiles returns the files in the home directory of the connection's own session. It does not create the session.
func (l *link) homeFiles(ctx context.Context) (out []*sdk.Resource) {
	if l.ownSession == "" {
		return nil
	}
	if _, _, err := l.client.Get(ctx, l.ownSession); err != nil {
		return nil
	}
	for i, err := range l.client.Session(l.ownSession).Files().List(ctx, v1.DefaultHome, sandbox.ListOptions{}) {
		if err != nil || len(out) >= maxResources {
			break
		}
		if i.Kind != "file" {
			continue
		}
		p := i.Path
		if !path.IsAbs(p) {
			p = path.Join(v1.DefaultHome, p)
		}
		out = append(out, &sdk.Resource{
			Name:     path.Base(p),
			Size:     i.Size,
			MIMEType: mimeOf(p, nil),
			URI:      filesPrefix + url.PathEscape(l.ownSession) + "/files" + (&url.URL{Path: p}).EscapedPath(),
		})
	}
	return out
}
