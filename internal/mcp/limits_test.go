package mcp

import (
	"encoding/json"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestTheSchemaOfLimitsFitsTheirJSON(t *testing.T) {
	schema, err := limitsSchema().Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var l v1.RunLimits
	for _, f := range l.Fields() {
		if err := f.Set("3"); err != nil {
			t.Fatal(err)
		}
	}
	for text, good := range map[string]bool{
		string(mustJSON(t, l)): true, `{}`: true, `{"tokens":-1,"time":"none"}`: true, `{"tokens":-2}`: false, `{"turns":0}`: false, `{"time":3}`: false, `{"max_tokens":3}`: false,
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(v); (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
