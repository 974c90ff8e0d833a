package server

import (
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v3"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/schema"
)

// object is a part of the OpenAPI document.
type object = map[string]any

// document returns the OpenAPI document of the table of routes. Its schemas are derived from the types that the
// handlers use.
func (s *Server) document() object {
	types := &schema.Set{Prefix: "#/components/schemas/", Named: map[string]*jsonschema.Schema{}}
	paths := map[string]object{}
	for i := range s.routes {
		r := &s.routes[i]
		if paths[r.path] == nil {
			paths[r.path] = object{}
		}
		paths[r.path][strings.ToLower(r.method)] = operation(r, types)
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title":   "recluse",
			"version": s.opts.Version,
			"description": "Sandboxes for model-written code, bound to sessions. " +
				"Errors are RFC 9457 problems with a stable code. " +
				"Durations in requests are strings such as 90s, or none; fields that end in _ns are nanoseconds. " +
				"A text that is not valid UTF-8 is an object with its base64 encoding. " +
				"The schema of an answer of type " + v1.EventStream + " describes one event, with its data decoded.",
			"license": object{"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
		},
		"servers": []object{{"url": "/", "description": "the server that serves this document"}},
		"paths":   paths,
		"components": object{
			"schemas":         types.Named,
			"responses":       problemResponses(types),
			"securitySchemes": object{"key": object{"type": "http", "scheme": "bearer"}},
		},
	}
}

var pathParam = regexp.MustCompile(`\{(\w+)\}`)

// operation returns the OpenAPI operation of a route.
func operation(r *route, types *schema.Set) object {
	op := object{"operationId": operationID(r), "summary": r.summary, "tags": []string{r.tag}, "security": []object{}}
	if r.scope != scopeNone {
		op["security"] = []object{{"key": []string{}}}
		op["description"] = "Requires the scope " + r.scope.String() + "."
	}
	params := []object{}
	for _, m := range pathParam.FindAllStringSubmatch(r.path, -1) {
		params = append(params, object{
			"name":     m[1],
			"in":       "path",
			"required": true,
			"schema":   object{"type": "string"},
		})
	}
	for _, q := range r.query {
		params = append(params, object{
			"name":        q.name,
			"in":          "query",
			"required":    q.required,
			"description": q.doc,
			"schema":      q.schema(),
		})
	}
	if r.repeatable {
		params = append(params, object{
			"name":        v1.HeaderIdempotency,
			"in":          "header",
			"description": "a repeated request with the same key gets the first answer again",
			"schema":      object{"type": "string"},
		})
	}
	op["parameters"] = params
	switch {
	case r.in != nil:
		op["requestBody"] = object{"required": r.needsBody(), "content": content(types, "application/json", r.in)}
	case r.accepts != "":
		op["requestBody"] = object{
			"required": r.needsBody(),
			"content":  object{r.accepts: object{"schema": object{"type": "string", "format": "binary"}}},
		}
	}
	op["responses"] = responses(r, types)
	return op
}

func content(types *schema.Set, media string, t reflect.Type) object {
	return object{media: object{"schema": types.Of(t)}}
}

// responses describes every answer of a route: success, other statuses, and problems.
func responses(r *route, types *schema.Set) object {
	success := object{}
	if r.out != nil {
		success = content(types, "application/json", r.out)
	}
	if r.events != nil {
		success[v1.EventStream] = object{"schema": r.events.schema(types)}
	}
	if r.gives != "" {
		success[r.gives] = object{"schema": object{"type": "string"}}
	}
	status := r.status
	switch {
	case status != 0:
	case len(success) == 0:
		status = http.StatusNoContent
	default:
		status = http.StatusOK
	}
	out := object{"default": problemResponse(r, types, "Problem")}
	if r.proxy {
		body := object{"*/*": object{"schema": object{"type": "string", "format": "binary"}}}
		for _, class := range []string{"2XX", "3XX", "4XX", "5XX"} {
			out[class] = object{"description": "The response of the program", "content": body}
		}
	}
	for _, status := range r.problems() {
		out[strconv.Itoa(status)] = problemResponse(r, types, responseName(status))
	}
	out[strconv.Itoa(status)] = object{"description": http.StatusText(status), "content": success}
	for status, t := range r.also {
		out[strconv.Itoa(status)] = object{
			"description": http.StatusText(status),
			"content":     content(types, "application/json", t),
		}
	}
	return out
}

// operationID returns a name made from method and path, such as "post-sessions-session-cells".
func operationID(r *route) string {
	p := strings.NewReplacer("/v1/", "", "{", "", "}", "", "/", "-", ".", "-").Replace(r.path)
	return strings.ToLower(r.method) + "-" + strings.Trim(p, "-")
}

// Document returns the OpenAPI document in JSON. version is the server's version.
func Document(version string) ([]byte, error) {
	s := &Server{opts: Options{Version: version}}
	s.routes = s.table()
	return json.Marshal(s.document())
}

// writeDocuments returns the OpenAPI document as JSON and YAML, by media type.
func (s *Server) writeDocuments() (map[string][]byte, error) {
	asJSON, err := json.Marshal(s.document())
	if err != nil {
		return nil, err
	}
	var doc any
	if err := json.Unmarshal(asJSON, &doc); err != nil {
		return nil, err
	}
	asYAML, err := yaml.Marshal(doc)
	return map[string][]byte{"application/json": asJSON, "application/yaml": asYAML}, err
}

// openapi returns a handler that sends the OpenAPI document in a media type.
func openapi(media string) func(*call) error {
	return func(c *call) error {
		docs, err := c.s.documents()
		if err != nil {
			return err
		}
		c.w.Header().Set("Content-Type", media)
		_, _ = c.w.Write(docs[media]) // the caller may have disconnected
		return nil
	}
}
