package mcp

import (
	"bytes"
	"context"
	"mime"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/sandbox"
)

const (
	filesTemplate = "recluse://sessions/{session}/files{+path}"
	filesPrefix   = "recluse://sessions/"

	maxResource  = 4 << 20
	maxResources = 200 // files that are listed
)

// addResources serves the files of sessions. Reading makes nothing: of a session that is not there, nothing can be read.
func (f *face) addResources() {
	f.server.AddResourceTemplate(&sdk.ResourceTemplate{
		Name: "session-file", Title: "File of a session", URITemplate: filesTemplate,
		Description: "A file in a session's sandbox, e.g. recluse://sessions/work/files/home/user/report.csv",
	}, f.readFile)
	f.server.AddReceivingMiddleware(f.listFiles)
}

func (f *face) readFile(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	uri := req.Params.URI
	rest, ok := strings.CutPrefix(uri, filesPrefix)
	name, file, found := strings.Cut(rest, "/files/")
	if !ok || !found {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	name, err1 := url.PathUnescape(name)
	file, err2 := url.PathUnescape(file)
	if err1 != nil || err2 != nil || name == "" {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	l, err := f.link(req.Extra, req.Session)
	if err != nil {
		return nil, told(err)
	}
	var b bytes.Buffer
	i, err := l.client.Session(name).Files().ReadRange(ctx, "/"+file, 0, maxResource, &b)
	switch {
	case absent(err) || sandbox.CodeOf(err) == sandbox.CodeFileNotFound:
		return nil, sdk.ResourceNotFoundError(uri)
	case err != nil:
		return nil, told(err)
	case i.Size > maxResource:
		return nil, told(&sandbox.Error{Code: sandbox.CodeTooLarge, Op: "read resource", Message: "the file is too large for a resource", Remedy: "read it in parts with the tool files"})
	}
	c := &sdk.ResourceContents{URI: uri, MIMEType: mimeOf(file, b.Bytes())}
	if utf8.Valid(b.Bytes()) {
		c.Text = b.String()
	} else {
		c.Blob = b.Bytes()
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{c}}, nil
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

// listFiles adds the files in the home directory of the connection's own session to the listing, if there is one.
func (f *face) listFiles(next sdk.MethodHandler) sdk.MethodHandler {
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
		if l.own == "" {
			return res, nil
		}
		for i, err := range l.client.Session(l.own).Files().List(ctx, sandbox.DefaultHome, sandbox.ListOptions{}) {
			if err != nil || len(list.Resources) >= maxResources { // no session, no files
				break
			}
			if i.Kind != "file" {
				continue
			}
			p := i.Path
			if !path.IsAbs(p) {
				p = path.Join(sandbox.DefaultHome, p)
			}
			list.Resources = append(list.Resources, &sdk.Resource{
				Name: path.Base(p), Size: i.Size, MIMEType: mimeOf(p, nil), URI: filesPrefix + url.PathEscape(l.own) + "/files" + (&url.URL{Path: p}).EscapedPath(),
			})
		}
		return list, nil
	}
}
