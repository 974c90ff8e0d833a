package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/editdistance"
	"github.com/recluse-dev/recluse/internal/schema"
)

// maxDepth is how deep JSON may be nested. No request of this API needs more than five levels.
const maxDepth = 64

// strict rejects unknown fields. Duplicate fields, fields in another case and invalid UTF-8 are rejected in any case.
var strict = json.RejectUnknownMembers(true)

// unmarshal decodes a JSON body into v. An empty body is an empty object.
func unmarshal(raw []byte, v any, opts ...json.Options) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = []byte("{}")
	}
	if err := checkDepth(raw); err != nil {
		return err
	}
	if err := json.Unmarshal(raw, v, opts...); err != nil {
		return jsonError(err)
	}
	return nil
}

// unmarshalRequest decodes the JSON of a request into v, which points to a struct. Unknown fields and missing ones are
// rejected.
func unmarshalRequest(raw []byte, v any) error {
	if err := unmarshal(raw, v, strict); err != nil {
		return err
	}
	in := reflect.ValueOf(v).Elem()
	for _, f := range schema.Required(in.Type()) {
		// A field that has a value was in the JSON.
		if in.FieldByIndex(f.Index).IsZero() && !slices.Contains(names(raw), f.Name) {
			return missingField(f.Name)
		}
	}
	return nil
}

func missingField(name string) error { return invalid("missing field %q", name) }

// names returns the names of the fields of an object.
//
// Preconditions: raw is valid JSON.
func names(raw []byte) (names []string) {
	d := jsontext.NewDecoder(bytes.NewBuffer(raw))
	_, _ = d.ReadToken()
	for d.PeekKind() == jsontext.KindString {
		token, err := d.ReadToken()
		if err != nil {
			break
		}
		names = append(names, token.String())
		if d.SkipValue() != nil {
			break
		}
	}
	return names
}

// checkDepth rejects JSON that is nested deeper than maxDepth. Other mistakes are left to the decoder.
func checkDepth(raw []byte) error {
	if bytes.Count(raw, []byte("{"))+bytes.Count(raw, []byte("[")) <= maxDepth {
		return nil // most requests: reading all tokens costs as much as decoding them
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(raw))
	for {
		if _, err := d.ReadToken(); err != nil {
			return nil //nolint:nilerr // the end, or a mistake that the decoder reports
		}
		if d.StackDepth() > maxDepth {
			return invalidJSON("JSON nested deeper than %d at byte %d", maxDepth, d.InputOffset())
		}
	}
}

func invalidJSON(format string, args ...any) *v1.Error {
	return &v1.Error{Code: v1.CodeInvalidJSON, Op: "read request", Message: fmt.Sprintf(format, args...)}
}

// jsonError returns an error that names the wrong field and its position.
func jsonError(err error) error {
	if e, ok := errors.AsType[*v1.Error](err); ok {
		return e // from an UnmarshalJSON method
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		switch {
		case errors.Is(e.Err, jsontext.ErrDuplicateName):
			return invalidJSON("duplicate field %q at byte %d", field(e.JSONPointer), e.ByteOffset)
		case errors.Is(e.Err, io.ErrUnexpectedEOF):
			return invalidJSON("the JSON is incomplete: it ends at byte %d", e.ByteOffset)
		}
		return invalidJSON("invalid JSON at byte %d: %v", e.ByteOffset, e.Err)
	}
	e, ok := errors.AsType[*json.SemanticError](err)
	switch {
	case !ok:
		out := invalidJSON("unexpected JSON in the body")
		out.Err = err
		return out
	case errors.Is(e.Err, json.ErrUnknownName):
		out := invalidJSON("unknown field %q at byte %d", field(e.JSONPointer), e.ByteOffset)
		out.Code, out.Remedy = v1.CodeUnknownField, suggestField(e.GoType, e.JSONPointer.LastToken())
		return out
	case errors.Is(e.Err, v1.ErrNegative):
		out := invalidJSON("field %q: %v", field(e.JSONPointer), e.Err)
		out.Code = v1.CodeInvalidRequest
		return out
	case e.JSONPointer == "":
		return invalidJSON("the body is a JSON %s, not an object", kind(e.JSONKind))
	case e.Err != nil:
		return invalidJSON("field %q at byte %d: %v", field(e.JSONPointer), e.ByteOffset, e.Err)
	}
	return invalidJSON("field %q at byte %d cannot be a JSON %s", field(e.JSONPointer), e.ByteOffset, kind(e.JSONKind))
}

func kind(k jsontext.Kind) string {
	switch k {
	case jsontext.KindBeginObject:
		return "object"
	case jsontext.KindBeginArray:
		return "array"
	default:
		return k.String()
	}
}

// field returns the path of a field, such as "spec.limits.memory".
func field(p jsontext.Pointer) string {
	var path []string
	for token := range p.Tokens() {
		path = append(path, token)
	}
	return strings.Join(path, ".")
}

// suggestField returns what to do about an unknown field: the field of t whose name is nearest, or where the fields are
// listed.
func suggestField(t reflect.Type, unknown string) string {
	best, least := "", 3
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if d := editdistance.Distance(strings.ToLower(unknown), name, least); d < least && d*2 < len(name) {
			best, least = name, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return "/v1/openapi.json lists the fields"
}
