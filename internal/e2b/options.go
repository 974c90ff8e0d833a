package e2b

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
)

// readBody reads the options of a request. An empty body has none.
func readBody(w http.ResponseWriter, r *http.Request, into any) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return invalid(fmt.Sprintf("the body is larger than %d MiB", maxBody>>20))
		}
		return invalid("the body could not be read")
	}
	if len(b) == 0 {
		return nil
	}
	return readOptions("", b, reflect.ValueOf(into).Elem())
}

// readOptions decodes an object. An unknown option is an error unless its value is empty or false.
func readOptions(prefix string, b []byte, into reflect.Value) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(b, &given); err != nil {
		return invalid("the body is not a JSON object")
	}
	known := map[string]reflect.Value{}
	for i := range into.NumField() {
		name, _, _ := strings.Cut(into.Type().Field(i).Tag.Get("json"), ",")
		known[name] = into.Field(i)
	}
	for name, value := range given {
		f, ok := known[name]
		switch {
		case !ok && empty(value):
		case !ok:
			return unsupported(fmt.Sprintf("the option %.80q", prefix+name))
		case f.Kind() == reflect.Struct && string(value) != "null":
			if err := readOptions(prefix+name+".", value, f); err != nil {
				return err
			}
		default:
			if err := json.Unmarshal(value, f.Addr().Interface()); err != nil {
				return invalid(fmt.Sprintf("invalid value of the option %.80q", prefix+name))
			}
		}
	}
	return nil
}

// empty reports whether a value means that the option was not used.
func empty(value json.RawMessage) bool {
	switch t := strings.Join(strings.Fields(string(value)), ""); t {
	case "null", "false", `""`, "[]", "{}", "0":
		return true
	}
	return false
}
