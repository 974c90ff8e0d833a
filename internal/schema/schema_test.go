package schema

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type inner struct {
	Kind string `json:"kind" enum:"a,b" doc:"what it is"`
}

type outer struct {
	inner
	ID     string          `json:"-"`
	Deep   *inner          `json:"deep,omitempty"`
	Count  int64           `json:"count,omitempty" minimum:"1" maximum:"9"`
	Maybe  *string         `json:"maybe"`
	Any    json.RawMessage `json:"any,omitempty"`
	Data   []byte          `json:"data,omitempty"`
	When   time.Time       `json:"when,omitzero"`
	Lasts  v1.Duration     `json:"lasts,omitzero"`
	Stream v1.Output       `json:"stream,omitzero"`
}

func TestFormatsHaveTypes(t *testing.T) {
	s := (&Set{}).Of(reflect.TypeFor[v1.Verdict]())
	for _, bundle := range []*jsonschema.Schema{s.Properties["result"], s.Properties["displays"].Items} {
		data := bundle.Properties["data"]
		if data.Properties["text/plain"].Type != "string" || data.Properties["image/png"].Type != "string" || data.Properties["application/json"].Type != "" {
			t.Errorf("%v", data.Properties)
		}
		if more := data.AdditionalProperties; more == nil || more.Not != nil {
			t.Errorf("other formats are %v", more)
		}
		if bundle.Properties["metadata"].Type != "object" {
			t.Errorf("metadata is %v", bundle.Properties["metadata"])
		}
	}
}

func TestSchemas(t *testing.T) {
	const data = `"any":{"description":"any JSON value"},"data":{"type":"string","contentEncoding":"base64"},"when":{"type":"string","format":"date-time"},"lasts":{"type":"string"}`
	want := `{"type":"object","properties":{"kind":{"type":"string","description":"what it is","enum":["a","b"]},` +
		`"deep":{"$ref":"#/Inner"},"count":{"type":"integer","minimum":1,"maximum":9,"format":"int64"},"maybe":{"type":["string","null"]},` + data +
		`,"stream":{"$ref":"#/Output"}},"required":["kind","maybe"],"additionalProperties":false}`
	s := &Set{Prefix: "#/", Named: map[string]*jsonschema.Schema{}}
	if ref := s.Of(reflect.TypeFor[*outer]()).Ref; ref != "#/Outer" {
		t.Errorf("a reference to %q", ref)
	}
	got, err := json.Marshal(s.Named["Outer"])
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := json.Unmarshal(got, &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if s.Named["Output"].Properties["text"] == nil || s.Named["Inner"] == nil {
		t.Errorf("%v", s.Named)
	}
	if p := (&Set{}).Of(reflect.TypeFor[outer]()).Properties["deep"]; p.Ref != "" || p.Properties["kind"] == nil {
		t.Errorf("%+v", p)
	}
}
