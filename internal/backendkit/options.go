package backendkit

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/recluse-dev/recluse/sandbox"
)

// DecodeOptions decodes the options that a spec has for a backend into v. Unknown fields are an error
// with sandbox.CodeInvalidSpec. Without options v stays as it is.
func DecodeOptions(spec sandbox.Spec, backend string, v any) error {
	text := spec.Options[backend]
	if len(text) == 0 {
		return nil
	}
	return DecodeStrict(text, "the options of the "+backend+" backend", v)
}

// DecodeStrict decodes one JSON value into v. Unknown fields, and anything behind the value, are an
// error with sandbox.CodeInvalidSpec that says what was decoded.
func DecodeStrict(text []byte, what string, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil && !errors.Is(d.Decode(new(json.RawMessage)), io.EOF) {
		err = errors.New("more than one value")
	}
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalidSpec, Op: "check spec", Message: "invalid " + what, Err: err}
	}
	return nil
}
