package terms

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate/source"
)

// jsonFile reads a JSON file token by token, so that a mistake is reported where it is.
type jsonFile struct {
	name string
	data []byte
	dec  *json.Decoder
}

func newJSONFile(name string, data []byte) *jsonFile {
	return &jsonFile{name: name, data: data, dec: json.NewDecoder(bytes.NewReader(data))}
}

func (f *jsonFile) errorf(offset int64, format string, args ...any) error {
	return source.ErrorAt(f.name, f.data, int(offset), fmt.Sprintf(format, args...))
}

// offset returns where the next token begins.
func (f *jsonFile) offset() int64 {
	i := f.dec.InputOffset()
	for i < int64(len(f.data)) && strings.IndexByte(" \t\r\n,:", f.data[i]) >= 0 {
		i++
	}
	return i
}

func (f *jsonFile) token() (json.Token, error) {
	from := f.offset()
	tok, err := f.dec.Token()
	if err == nil {
		return tok, nil
	}
	if se, ok := errors.AsType[*json.SyntaxError](err); ok {
		return nil, f.errorf(from, "not valid JSON: %s", se.Error())
	}
	return nil, f.decodeError(from, err)
}

// decode reads the next value.
func (f *jsonFile) decode(into any) error {
	from := f.offset()
	if err := f.dec.Decode(into); err != nil {
		return f.decodeError(from, err)
	}
	return nil
}

// decodeError adds the position to an error of the JSON package; from is where the failed value begins.
func (f *jsonFile) decodeError(from int64, err error) error {
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		// A decoder that has returned tokens miscounts; a new one knows how far into the value it came.
		var skip json.RawMessage
		again := json.NewDecoder(bytes.NewReader(f.data[from:])).Decode(&skip)
		if se, ok := errors.AsType[*json.SyntaxError](again); ok {
			return f.errorf(from+max(se.Offset-1, 0), "not valid JSON: %s", se.Error())
		}
	}
	if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return f.errorf(from, "%s should be %s, and is %s", cmp.Or(te.Field, "this"), te.Type, te.Value)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return f.errorf(int64(len(f.data)), "the file ends too early")
	}
	return f.errorf(from, "%v", err)
}

// elements calls f for each element of a list, or for each value of an object with its key and the key's offset.
// message is the error if the value does not begin with delim.
func (f *jsonFile) elements(delim json.Delim, message string, each func(key string, at int64) error) error {
	from := f.offset()
	if tok, err := f.token(); err != nil {
		return err
	} else if tok != delim {
		return f.errorf(from, "%s", message)
	}
	for f.dec.More() {
		key, at := "", f.offset()
		if delim == '{' {
			tok, err := f.token()
			if err != nil {
				return err
			}
			key, _ = tok.(string)
		}
		if err := each(key, at); err != nil {
			return err
		}
	}
	_, err := f.token()
	return err
}

// end reports an error unless the whole file is read.
func (f *jsonFile) end() error {
	if from := f.offset(); from < int64(len(f.data)) {
		return f.errorf(from, "unexpected data behind the end of the file's only value")
	}
	return nil
}

func (t *Thesaurus) parseJSON(name string, data []byte) error {
	t.grow(bytes.Count(data, []byte(`"nterm"`)))
	f := newJSONFile(name, data)
	found := false
	err := f.elements('{', "the thesaurus should be an object", func(key string, at int64) error {
		switch key {
		case "name":
			return f.decode(&t.name)
		case "data":
			if found {
				return f.errorf(at, "data is given twice")
			}
			found = true
			return f.elements('{', "data should be an object", func(term string, at int64) error {
				return t.parseEntry(f, term, at)
			})
		}
		var skip json.RawMessage // other tools write more than we read
		return f.decode(&skip)
	})
	if err != nil {
		return err
	}
	if err := f.end(); err != nil {
		return err
	}
	if len(t.terms) == 0 {
		return f.errorf(0, "no terms under data")
	}
	return nil
}

func (t *Thesaurus) parseEntry(f *jsonFile, term string, at int64) error {
	value := f.offset()
	var entry struct {
		ID    json.RawMessage `json:"id"`
		NTerm string          `json:"nterm"`
	}
	if err := f.decode(&entry); err != nil {
		return err
	}
	if strings.TrimSpace(entry.NTerm) == "" {
		return f.errorf(value, "missing nterm, the concept of term %q", term)
	}
	if !validID(entry.ID) {
		return f.errorf(value, "term %q has no id: a number or a string", term)
	}
	if err := t.add(term, entry.NTerm); err != nil {
		return f.errorf(at, "%v", err)
	}
	return nil
}

// validID reports whether an id is a number or a string that is not empty.
func validID(raw json.RawMessage) bool {
	var id string
	if json.Unmarshal(raw, &id) == nil {
		return id != ""
	}
	_, err := strconv.ParseFloat(string(raw), 64)
	return err == nil
}

// LoadEdges reads connections between concepts of the thesaurus from a JSON file: [["concept", "concept"], …].
func (t *Thesaurus) LoadEdges(file string) ([][2]string, error) {
	data, err := source.Read(file, maxFile)
	if err != nil {
		return nil, &v1.Error{Code: CodeGraphInvalid, Op: "load edges", Remedy: "name a list of edges in JSON", Err: err}
	}
	edges, err := t.parseEdges(file, data)
	if err != nil {
		return nil, invalid(CodeGraphInvalid, "load edges", `correct the file; its form is [["concept", "concept"], …]`, err)
	}
	return edges, nil
}

func (t *Thesaurus) parseEdges(name string, data []byte) (edges [][2]string, err error) {
	f := newJSONFile(name, data)
	err = f.elements('[', "the edges should be a list of pairs", func(_ string, at int64) error {
		var pair []string
		if err := f.decode(&pair); err != nil {
			return err
		}
		if len(pair) != 2 {
			return f.errorf(at, "an edge has two ends, this one has %d", len(pair))
		}
		for _, end := range pair {
			if _, err := t.find(end); err != nil {
				return f.errorf(at, "%v", err)
			}
		}
		edges = append(edges, [2]string(pair))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return edges, f.end()
}
