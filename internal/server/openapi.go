package server

import (
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// document is the OpenAPI description of the table. Its schemas are made from the types that the handlers use.
func (s *Server) document() *huma.OpenAPI {
	reg := huma.NewMapRegistry("#/components/schemas/", schemaName)
	text, duration := reflect.TypeFor[string](), reflect.TypeFor[string]()
	reg.RegisterTypeAlias(reflect.TypeFor[v1.Text](), text)
	reg.RegisterTypeAlias(reflect.TypeFor[v1.Duration](), duration)
	reg.RegisterTypeAlias(reflect.TypeFor[json.RawMessage](), reflect.TypeFor[any]()) // any value, not bytes
	reg.RegisterTypeAlias(reflect.TypeFor[chatText](), text)                          // or parts of type text
	reg.RegisterTypeAlias(reflect.TypeFor[v1.Verdict](), reflect.TypeFor[verdictSchema]())
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "recluse", Version: s.opts.Version, Description: "Sandboxes for model-written code, bound to sessions. " +
			"Errors are RFC 9457 problems with a stable code. Times that are given are texts like 90s or none; fields that end in _ns are nanoseconds. " +
			"A text that is not valid UTF-8 is an object with its base64."},
		Components: &huma.Components{Schemas: reg, SecuritySchemes: map[string]*huma.SecurityScheme{"key": {Type: "http", Scheme: "bearer"}}},
	}
	problem := &huma.Response{Description: "A problem", Content: map[string]*huma.MediaType{
		v1.ProblemType: {Schema: reg.Schema(reflect.TypeFor[v1.Problem](), true, "")},
	}}
	for i := range s.routes {
		doc.AddOperation(operation(&s.routes[i], reg, problem))
	}
	return doc
}

var pathParam = regexp.MustCompile(`\{(\w+)\}`)

func operation(r *route, reg huma.Registry, problem *huma.Response) *huma.Operation {
	op := &huma.Operation{
		Method: r.method, Path: r.path, Summary: r.summary, Tags: []string{r.tag}, OperationID: operationID(r),
		Responses: map[string]*huma.Response{"default": problem},
	}
	if r.scope != scopeNone {
		op.Security = []map[string][]string{{"key": {}}}
		op.Description = "Needs the scope " + r.scope.String() + "."
	}
	for _, m := range pathParam.FindAllStringSubmatch(r.path, -1) {
		op.Parameters = append(op.Parameters, &huma.Param{Name: m[1], In: "path", Required: true, Schema: &huma.Schema{Type: "string"}})
	}
	for _, q := range r.query {
		op.Parameters = append(op.Parameters, &huma.Param{Name: q.name, In: "query", Description: q.doc, Schema: &huma.Schema{Type: q.kind}})
	}
	if r.repeatable {
		op.Parameters = append(op.Parameters, &huma.Param{
			Name: v1.HeaderIdempotency, In: "header", Schema: &huma.Schema{Type: "string"}, Description: "a repetition under the same key gets the first answer again",
		})
	}
	switch {
	case r.in != nil:
		op.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{"application/json": {Schema: reg.Schema(r.in, true, "")}}}
	case r.accepts != "":
		op.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{r.accepts: {Schema: &huma.Schema{Type: "string", Format: "binary"}}}}
	}
	op.Responses[strconv.Itoa(r.success())] = answerOf(r, reg)
	return op
}

func answerOf(r *route, reg huma.Registry) *huma.Response {
	res := &huma.Response{Description: http.StatusText(r.success()), Content: map[string]*huma.MediaType{}}
	if r.out != nil {
		res.Content["application/json"] = &huma.MediaType{Schema: reg.Schema(r.out, true, "")}
	}
	for _, g := range r.gives {
		res.Content[g] = &huma.MediaType{Schema: &huma.Schema{Type: "string"}}
	}
	return res
}

func (r *route) success() int {
	if r.status != 0 {
		return r.status
	}
	if r.out == nil && len(r.gives) == 0 {
		return http.StatusNoContent
	}
	return http.StatusOK
}

// operationID makes a name from method and path: "post-sessions-session-cells".
func operationID(r *route) string {
	p := strings.NewReplacer("/v1/", "", "{", "", "}", "", "/", "-", ".", "-").Replace(r.path)
	return strings.ToLower(r.method) + "-" + strings.Trim(p, "-")
}

// schemaName returns the name of a type in the document.
func schemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[verdictSchema]() {
		return "Verdict"
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// PlainVerdict is a verdict without its methods. It is exported for huma, which looks into no other embedded types.
type PlainVerdict v1.Verdict

// verdictSchema is what a verdict looks like once it has been written: its fields, and what its own methods add or replace.
type verdictSchema struct {
	PlainVerdict
	Ended        string       `json:"ended" enum:"exit,signal,timeout,cancelled,memory,killed,start"`
	Signal       string       `json:"signal,omitempty"`
	SignalNumber int          `json:"signal_number,omitempty"`
	Status       int          `json:"status" doc:"what a shell would say"`
	Stdout       outputSchema `json:"stdout"`
	Stderr       outputSchema `json:"stderr"`
}

// PlainOutput is an output without its methods.
type PlainOutput v1.Output

// outputSchema is what an output looks like once it has been written.
type outputSchema struct {
	PlainOutput
	Text      string `json:"text" doc:"what was kept, invalid UTF-8 replaced, with a line where something was cut"`
	Kept      int64  `json:"kept"`
	Cut       int64  `json:"cut"`
	TailBytes int    `json:"tail_bytes,omitempty"`
	Head      string `json:"head_base64,omitempty" contentEncoding:"base64" doc:"only when the text had to replace something"`
	Tail      string `json:"tail_base64,omitempty" contentEncoding:"base64"`
}

// documents keeps the written document of each server; it does not change.
type documents struct {
	once       sync.Once
	json, yaml []byte
	err        error
}

func (d *documents) make(s *Server) {
	d.once.Do(func() {
		doc := s.document()
		if d.json, d.err = json.Marshal(doc); d.err == nil {
			d.yaml, d.err = doc.YAML()
		}
	})
}

func openapiJSON(c *call) error {
	return writeDocument(c, "application/json", func(d *documents) []byte { return d.json })
}

func openapiYAML(c *call) error {
	return writeDocument(c, "application/yaml", func(d *documents) []byte { return d.yaml })
}

func writeDocument(c *call, media string, pick func(*documents) []byte) error {
	c.s.documents.make(c.s)
	if c.s.documents.err != nil {
		return c.s.documents.err
	}
	c.w.Header().Set("Content-Type", media)
	_, _ = c.w.Write(pick(&c.s.documents))
	return nil
}
