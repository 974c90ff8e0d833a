package rlm

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestSchemasThatAreRefused(t *testing.T) {
	for _, tt := range []struct{ schema, cause string }{
		{`{`, "unexpected end"},
		{`[]`, ""},
		{`"object"`, ""},
		{`{"type": "nonsense"}`, `unknown type "nonsense"`},
		{`{"type": ["string", "text"]}`, `unknown type "text"`},
		{`{"properties": {"a": {"items": {"type": "int"}}}}`, `unknown type "int"`},
		{`{"anyOf": [{"type": "string"}, {"type": "Object"}]}`, `unknown type "Object"`},
		{`{"minimum": "1"}`, ""},
		{`{"required": "a"}`, ""},
		{`{"pattern": "("}`, ""},
		{`{"$ref": "#/$defs/none"}`, ""},
		{`{"$ref": "file:///etc/passwd"}`, ""},
		{`{"$ref": "https://example.com/schema.json"}`, ""},
	} {
		_, err := compileSchema(json.RawMessage(tt.schema))
		if v1.CodeOf(err) != v1.CodeInvalidSchema || !strings.Contains(err.Error(), tt.cause) {
			t.Errorf("%s: %v", tt.schema, err)
		}
	}
}

func TestSchemasOfBothDrafts(t *testing.T) {
	for _, schema := range []string{
		`{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {"n": {"$ref": "#/$defs/count"}}, "required": ["n"], "$defs": {"count": {"type": "integer", "minimum": 1}}}`,
		`{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"n": {"$ref": "#/definitions/count"}}, "required": ["n"], "definitions": {"count": {"type": "integer", "minimum": 1}}}`,
	} {
		s, err := compileSchema(json.RawMessage(schema))
		if err != nil {
			t.Errorf("%s: %v", schema, err)
			continue
		}
		for answer, ok := range map[string]bool{`{"n": 7}`: true, `{"n": 0}`: false, `{"n": "7"}`: false, `{}`: false, `[]`: false} {
			var doc any
			if err := json.Unmarshal([]byte(answer), &doc); err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(doc); (err == nil) != ok {
				t.Errorf("%s: %v", answer, err)
			}
		}
	}
}
