package server

import (
	"errors"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestAMistakeInJSONIsNamed(t *testing.T) {
	for body, want := range map[string]v1.Error{
		`{"name":`:                                {Code: v1.CodeInvalidJSON, Message: `the JSON is incomplete: it ends at byte 8`},
		`print(1)`:                                {Code: v1.CodeInvalidJSON, Message: `invalid JSON at byte 0: invalid character 'p' at start of value`},
		`[]`:                                      {Code: v1.CodeInvalidJSON, Message: `the body is a JSON array, not an object`},
		`{}{}`:                                    {Code: v1.CodeInvalidJSON, Message: `invalid JSON at byte 2: invalid character '{' after top-level value`},
		"{\"name\":\"\xff\"}":                     {Code: v1.CodeInvalidJSON, Message: `invalid JSON at byte 9: invalid UTF-8`},
		`{"spec":{"limits":{"memory":"1"}}}`:      {Code: v1.CodeInvalidJSON, Message: `field "spec.limits.memory" at byte 28 cannot be a JSON string`},
		`{"policy":{"idle":"soon"}}`:              {Code: v1.CodeInvalidJSON, Message: `field "policy.idle" at byte 18: invalid duration "soon": want a time like 90s, 1h30m, 7d or none`},
		`{"policy":{"idle":"-1s"}}`:               {Code: v1.CodeInvalidRequest, Message: `field "policy.idle": negative duration "-1s"`},
		`{"spec":{"env":{"A":"1","A":"2"}}}`:      {Code: v1.CodeInvalidJSON, Message: `duplicate field "spec.env.A" at byte 24`},
		`{"name":"a","n\u0061me":"b"}`:            {Code: v1.CodeInvalidJSON, Message: `duplicate field "name" at byte 12`},
		`{"spec":{"limits":{"memry":1}}}`:         {Code: v1.CodeUnknownField, Message: `unknown field "spec.limits.memry" at byte 19`, Remedy: `did you mean "memory"?`},
		`{"spec":{"mounts":[{"Host":"/"}]}}`:      {Code: v1.CodeUnknownField, Message: `unknown field "spec.mounts.0.Host" at byte 20`, Remedy: `did you mean "host"?`},
		`{"colour":1}`:                            {Code: v1.CodeUnknownField, Message: `unknown field "colour" at byte 1`, Remedy: `/v1/openapi.json lists the fields`},
		strings.Repeat("[", maxDepth+1) + `nope]`: {Code: v1.CodeInvalidJSON, Message: `JSON nested deeper than 64 at byte 65`},
	} {
		var in v1.OpenRequest
		err := unmarshal([]byte(body), &in, strict)
		got, ok := errors.AsType[*v1.Error](err)
		if !ok || got.Code != want.Code || got.Message != want.Message || got.Remedy != want.Remedy {
			t.Errorf("%s: %v, want %v", body, err, &want)
		}
	}
	var in v1.OpenRequest
	if err := unmarshal([]byte(" \n"), &in, strict); err != nil {
		t.Errorf("an empty body: %v", err)
	}
}
