// Package testfill fills values for tests that check that every field of a type is written, converted or described.
// Fields that are added later are covered without a change of the test.
package testfill

import (
	"encoding/json"
	"reflect"
)

// Fill sets every zero field of the value that p points to, recursively.
func Fill(p any) { fill(reflect.ValueOf(p).Elem()) }

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			if f.CanSet() {
				fill(f)
			}
		}
		return
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem())
		return
	}
	if !v.IsZero() {
		return
	}
	switch v.Kind() {
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
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8:
		v.SetUint(0xff) // not valid UTF-8, so that the test also covers bytes written as base64
	case reflect.Float64:
		v.SetFloat(1)
	default:
		panic("unsupported kind of a field: " + v.Kind().String())
	}
}
