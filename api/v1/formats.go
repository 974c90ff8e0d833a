package v1

import (
	"encoding/json"
	"reflect"
	"strings"
)

// Formats of our own.
const (
	MIMETable = "application/vnd.recluse.table+json" // columns of a data frame: lists of values by name
	MIMEChart = "application/vnd.recluse.chart+json" // what a figure shows: axes, units, points
)

// Formats is a value in several formats, by MIME type. Binary formats are base64.
type Formats map[string]json.RawMessage

// formatsJSON is the JSON form of Formats. The formats that interpreters know are strings, except for application/json.
type formatsJSON struct {
	Plain        string          `json:"text/plain,omitempty" doc:"the value as text"`
	HTML         string          `json:"text/html,omitempty" doc:"the value as HTML"`
	Markdown     string          `json:"text/markdown,omitempty" doc:"the value as Markdown"`
	Latex        string          `json:"text/latex,omitempty" doc:"the value as LaTeX"`
	SVG          string          `json:"image/svg+xml,omitempty" doc:"a picture, as XML"`
	PNG          string          `json:"image/png,omitempty" doc:"a picture, in base64"`
	JPEG         string          `json:"image/jpeg,omitempty" doc:"a picture, in base64"`
	JSON         json.RawMessage `json:"application/json,omitempty" doc:"the value as JSON"`
	otherFormats                 //nolint:unused // used by the schema
}

// otherFormats are further formats that a program displays.
type otherFormats map[string]json.RawMessage //nolint:unused // used by the schema

// JSONType returns the type whose fields describe the JSON of Formats.
func (Formats) JSONType() reflect.Type { return reflect.TypeFor[formatsJSON]() }

// UnmarshalJSON reads formats. Programs may display anything: where a string is expected, null is left out, and any
// other JSON value becomes a string that contains its JSON.
func (f *Formats) UnmarshalJSON(b []byte) error {
	var in map[string]json.RawMessage
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	for mime, value := range in {
		switch {
		case !textFormats[mime] || value[0] == '"':
			continue
		case value[0] == 'n':
			delete(in, mime)
			continue
		}
		text, err := json.Marshal(string(value))
		if err != nil {
			return err
		}
		in[mime] = text
	}
	*f = in
	return nil
}

// textFormats are the formats that formatsJSON has as strings.
var textFormats = func() map[string]bool {
	out := map[string]bool{}
	for f := range reflect.TypeFor[formatsJSON]().Fields() {
		if f.Type.Kind() == reflect.String {
			mime, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			out[mime] = true
		}
	}
	return out
}()

// LabelForkOf is the label of a snapshot that is only needed until a fork is made. Its value is the original's id.
const LabelForkOf = "recluse.fork-of"
