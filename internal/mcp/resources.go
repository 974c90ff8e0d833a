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
	eventsSoFar  = time.Second // in which those there are of a run that goes on have come
	maxResources = 200         // files that are listed
	maxRuns      = 50          // the newest that are listed
)

// addResources serves the files of sessions and the trajectories of runs. Reading makes nothing: of a session that is not there, nothing can be read.
func (f *face) addResources() {
	f.server.AddResourceTemplate(&sdk.ResourceTemplate{
		Name: "session-file", Title: "File of a session", URITemplate: filesTemplate,
		Description: "A file in a session's sandbox, e.g. recluse://sessions/work/files/home/user/report.csv",
	}, f.readFile)
	f.server.AddResourceTemplate(&sdk.ResourceTemplate{
		Name: "run", Title: "Trajectory of a run", URITemplate: runsTemplate, MIMEType: trajectoryType,
		Description: "Everything a run did, one event a line, so far if it still runs",
	}, f.readRun)
	f.server.AddReceivingMiddleware(f.listResources)
}

func (f *face) readFile(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	uri := req.Params.URI
	name, file, ok := fileOf(uri)
	if !ok {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	l, err := f.link(req.Extra, req.Session)
	if err != nil {
		return nil, told(err)
	}
	var b bytes.Buffer
	i, err := l.client.Session(name).Files().ReadRange(ctx, file, 0, maxResource, &b)
	switch {
	case absent(err) || v1.CodeOf(err) == v1.CodeFileNotFound:
		return nil, sdk.ResourceNotFoundError(uri)
	case err != nil:
		return nil, told(err)
	case i.Size > maxResource:
		return nil, told(&v1.Error{Code: v1.CodeTooLarge, Op: "read resource", Message: "the file is too large for a resource", Remedy: "read it in parts with the tool files"})
	}
	c := &sdk.ResourceContents{URI: uri, MIMEType: mimeOf(file, b.Bytes())}
	if utf8.Valid(b.Bytes()) {
		c.Text = b.String()
	} else {
		c.Blob = b.Bytes()
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{c}}, nil
}

// fileOf returns the session and the absolute path that a URI means.
func fileOf(uri string) (session, file string, ok bool) {
	rest, ok := strings.CutPrefix(uri, filesPrefix)
	session, file, found := strings.Cut(rest, "/files/")
	session, err1 := url.PathUnescape(session)
	file, err2 := url.PathUnescape(file)
	return session, "/" + file, ok && found && err1 == nil && err2 == nil && session != ""
}

// runOf returns the id of the run that a URI means.
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

// readRun gives the events of a run, as the model of the client may want to learn from them. Those of a run that goes on are those so far.
func (f *face) readRun(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	uri := req.Params.URI
	id, ok := runOf(uri)
	if !ok {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	l, err := f.link(req.Extra, req.Session)
	if err != nil {
		return nil, told(err)
	}
	info, err := l.client.Run(ctx, id)
	if v1.CodeOf(err) == v1.CodeRunNotFound {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	if err != nil {
		return nil, told(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if info.Running { // its events would be waited for
		defer time.AfterFunc(eventsSoFar, cancel).Stop()
	}
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	for e, err := range l.client.RunEvents(ctx, id, 0) {
		if err != nil && ctx.Err() == nil {
			return nil, told(err)
		}
		if err != nil {
			break
		}
		if err := w.Encode(e); err != nil {
			return nil, told(err)
		}
		if b.Len() > maxResource {
			return nil, told(&v1.Error{Code: v1.CodeTooLarge, Op: "read resource", Message: "the trajectory is too large for a resource", Remedy: "recluse runs export " + id})
		}
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: uri, MIMEType: trajectoryType, Text: b.String()}}}, nil
}

// listResources adds the newest runs, and the files in the home directory of the connection's own session, to the listing.
func (f *face) listResources(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		list, ok := res.(*sdk.ListResourcesResult)
		r, isList := req.(*sdk.ListResourcesRequest)
		if err != nil || !ok || !isList || list.NextCursor != "" {
			return res, err
		}
		l, err := f.link(r.Extra, r.Session)
		if err != nil {
			return nil, told(err)
		}
		list.Resources = append(list.Resources, l.runs(ctx)...)
		list.Resources = append(list.Resources, l.homeFiles(ctx)...)
		return list, nil
	}
}

func (l *link) runs(ctx context.Context) (out []*sdk.Resource) {
	for i, err := range l.client.Runs(ctx) {
		if err != nil {
			continue // it cannot be read, or the server has no models and no runs
		}
		if len(out) == maxRuns {
			break
		}
		out = append(out, &sdk.Resource{Name: "run " + i.ID, Description: i.Query, MIMEType: trajectoryType, URI: runsPrefix + url.PathEscape(i.ID)})
	}
	return out
}

// homeFiles lists nothing of a session that is not there: looking must not make it.
func (l *link) homeFiles(ctx context.Context) (out []*sdk.Resource) {
	if l.own == "" {
		return nil
	}
	if _, _, err := l.client.Get(ctx, l.own); err != nil {
		return nil
	}
	for i, err := range l.client.Session(l.own).Files().List(ctx, v1.DefaultHome, sandbox.ListOptions{}) {
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
			Name: path.Base(p), Size: i.Size, MIMEType: mimeOf(p, nil), URI: filesPrefix + url.PathEscape(l.own) + "/files" + (&url.URL{Path: p}).EscapedPath(),
		})
	}
	return out
}
