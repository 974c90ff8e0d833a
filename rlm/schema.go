package rlm

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// answerSchema is the JSON Schema of an answer. The zero value accepts any text.
type answerSchema struct {
	text     json.RawMessage
	compiled *jsonschema.Resolved
}

// check validates an answer against the schema and sets its Value. It returns "" or the reason for the refusal.
func (s answerSchema) check(a *v1.RunAnswer) string {
	if s.compiled == nil {
		return ""
	}
	raw := a.Value
	if raw == nil {
		raw = json.RawMessage(stripFence(a.Content))
	}
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Sprintf("the answer must be JSON that meets the schema, and this is not valid JSON: %v", err)
	}
	if err := s.compiled.Validate(doc); err != nil {
		return "the answer does not meet the schema: " + err.Error()
	}
	a.Value = raw
	return ""
}

// find returns the JSON value that meets the schema and that is the whole reply, or its only block that is not code. It
// returns nil if there is none.
func (s answerSchema) find(text string, r *parsedReply) *v1.RunAnswer {
	if s.compiled == nil {
		return nil
	}
	if len(r.quoted) == 1 {
		text = r.quoted[0].text
	}
	a := &v1.RunAnswer{Content: strings.TrimSpace(text), How: v1.HowJSON}
	if !json.Valid([]byte(a.Content)) || s.check(a) != "" {
		return nil
	}
	return a
}

// compileSchema compiles the JSON Schema of an answer. The schema must not refer to files or URLs.
func compileSchema(raw json.RawMessage) (*jsonschema.Resolved, error) {
	s := &jsonschema.Schema{}
	err := json.Unmarshal(raw, s)
	if err == nil {
		err = checkTypes(reflect.ValueOf(s))
	}
	var resolved *jsonschema.Resolved
	if err == nil {
		resolved, err = s.Resolve(nil)
	}
	if err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidSchema,
			Op:      "read schema",
			Message: "invalid schema for answers",
			Remedy:  "pass a JSON Schema, draft 2020-12 or draft 7",
			Err:     err,
		}
	}
	return resolved, nil
}

// schemaTypes are the valid values of the keyword type.
var schemaTypes = []string{"array", "boolean", "integer", "null", "number", "object", "string"}

// checkTypes returns an error for an unknown type in a schema or its nested schemas. The library accepts such a schema,
// but no value meets it.
func checkTypes(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer:
		s, ok := v.Interface().(*jsonschema.Schema)
		if !ok || s == nil {
			return nil
		}
		types := s.Types
		if s.Type != "" {
			types = []string{s.Type}
		}
		for _, name := range types {
			if !slices.Contains(schemaTypes, name) {
				return fmt.Errorf("unknown type %q", name)
			}
		}
		for _, field := range v.Elem().Fields() {
			if err := checkTypes(field); err != nil {
				return err
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if err := checkTypes(v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if err := checkTypes(v.MapIndex(key)); err != nil {
				return err
			}
		}
	}
	return nil
}
