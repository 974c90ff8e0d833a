package server

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/recluse-dev/recluse/sandbox"
)

// fill sets every field of a value, so that nothing is left out when it is written.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				fill(f)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte("1"))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8:
		v.SetUint(0xff) // no text, so that it is written as base64, too
	case reflect.Float64:
		v.SetFloat(1)
	default:
		panic("a field of a kind that cannot be filled: " + v.Kind().String())
	}
}

func TestTheSchemaOfAVerdictIsWhatIsWritten(t *testing.T) {
	var v sandbox.Verdict
	fill(reflect.ValueOf(&v).Elem())
	v.Signal = syscall.SIGTERM
	written := map[string]json.RawMessage{}
	b, err := json.Marshal(&v)
	if err == nil {
		err = json.Unmarshal(b, &written)
	}
	if err != nil {
		t.Fatal(err)
	}
	var stdout map[string]json.RawMessage
	if err := json.Unmarshal(written["stdout"], &stdout); err != nil {
		t.Fatal(err)
	}
	s := &Server{}
	s.routes = s.table()
	raw, err := json.Marshal(s.document())
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]map[string]json.RawMessage{"Verdict": written, "Output": stdout} {
		if got, want := slices.Sorted(maps.Keys(doc.Components.Schemas[name].Properties)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
			t.Errorf("%s has %v, and is written with %v", name, got, want)
		}
	}
}
