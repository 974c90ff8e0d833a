package agents

import (
	"bytes"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// pair is a key and its value as TOML.
type pair struct{ key, value string }

func (p pair) String() string { return p.key + " = " + p.value }

// setTable returns a TOML file in which the table name contains the pairs. All other bytes stay, also within the table.
// The table is found by its text, and the result is parsed again to verify that nothing else has changed.
func setTable(path string, data []byte, name []string, pairs []pair) ([]byte, error) {
	want, err := parseTOML(path, data)
	if err != nil {
		return nil, err
	}
	entry, header := lookup(want, name), strings.Join(name, ".")
	begin, end := findTable(data, func(h string) bool { return h == "["+header+"]" })
	below, _ := findTable(data, func(h string) bool { return strings.HasPrefix(h, "["+header+".") })
	table, known := entry.(map[string]any)
	if entry != nil && (!known || begin < 0 && below < 0) {
		return nil, unusable(path, "write it as a table of its own, or remove it",
			"%s exists in a form that cannot be changed safely", header)
	}
	var out []byte
	if begin >= 0 {
		text, err := setPairs(path, data[begin:end], table, pairs)
		if err != nil {
			return nil, err
		}
		out = slices.Concat(data[:begin], text, data[end:])
	} else {
		out = withFinalNewline(data)
		if len(out) > 0 {
			out = append(out, '\n')
		}
		out = append(out, "["+header+"]\n"...)
		for _, p := range pairs {
			out = append(out, p.String()+"\n"...)
		}
	}
	for _, p := range pairs {
		if err := assign(path, want, name, p); err != nil {
			return nil, err
		}
	}
	return out, verify(path, out, want)
}

// dropTable returns a TOML file without a table and the tables below it. Everything else stays, as with setTable.
func dropTable(path string, data []byte, name []string) ([]byte, error) {
	want, err := parseTOML(path, data)
	if err != nil {
		return nil, err
	}
	if lookup(want, name) == nil {
		return data, nil
	}
	header, out := strings.Join(name, "."), data
	for {
		begin, end := findTable(out, func(h string) bool {
			return h == "["+header+"]" || strings.HasPrefix(h, "["+header+".") || strings.HasPrefix(h, "[["+header+".")
		})
		if begin < 0 {
			break
		}
		out = slices.Concat(bytes.TrimRight(out[:begin], "\r\n"), withSeparator(out[:begin], out[end:]))
	}
	got, err := parseTOML(path, out)
	if err != nil || lookup(got, name) != nil {
		return nil, unusable(path, "remove it by hand", "%s exists in a form that cannot be changed safely", header)
	}
	deletePath(want, name)
	deletePath(got, name) // also removes tables that became empty
	if !reflect.DeepEqual(want, got) {
		return nil, unusable(path, "change it by hand",
			"the table of recluse cannot be separated from the rest of the file")
	}
	return out, nil
}

// verify returns an error if data does not contain exactly the values of want.
func verify(path string, data []byte, want map[string]any) error {
	got, err := parseTOML(path, data)
	if err != nil {
		return unusable(path, "change it by hand", "the table of recluse cannot be added: %v", err)
	}
	if !reflect.DeepEqual(want, got) {
		return unusable(path, "change it by hand", "the table of recluse cannot be separated from the rest of the file")
	}
	return nil
}

// setPairs returns the text of a table with the pairs set. Pairs that have the same value already stay as they are
// written.
func setPairs(path string, text []byte, have map[string]any, pairs []pair) ([]byte, error) {
	for _, p := range pairs {
		v, err := parseTOML(path, []byte(p.String()))
		if err != nil {
			return nil, err
		}
		if reflect.DeepEqual(have[p.key], v[p.key]) {
			continue
		}
		if begin, end := findPair(text, p.key); begin >= 0 {
			text = slices.Concat(text[:begin], []byte(p.String()), text[end:])
			continue
		}
		text = append(withFinalNewline(text), p.String()+"\n"...)
	}
	return text, nil
}

// assign sets a pair in the parsed content of a file.
func assign(path string, v map[string]any, name []string, p pair) error {
	for _, key := range name {
		next, ok := v[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			v[key] = next
		}
		v = next
	}
	one, err := parseTOML(path, []byte(p.String()))
	if err != nil {
		return err
	}
	v[p.key] = one[p.key]
	return nil
}

// withFinalNewline returns a copy of a text that ends with a newline, unless it is empty.
func withFinalNewline(text []byte) []byte {
	text = bytes.Clone(text)
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	return text
}

// findPair returns the position of a key and its value, without the comment after it.
func findPair(text []byte, key string) (begin, end int) {
	at := 0
	for line := range bytes.Lines(text) {
		trimmed := bytes.TrimLeft(line, " \t")
		rest, ok := bytes.CutPrefix(trimmed, []byte(key))
		if !ok || !bytes.HasPrefix(bytes.TrimLeft(rest, " \t"), []byte("=")) {
			at += len(line)
			continue
		}
		begin = at + len(line) - len(trimmed)
		// The value ends at the first position where the text is valid TOML. It may have several lines and contain a #.
		for end = begin + 1; end <= len(text); end++ {
			if end < len(text) && text[end] != '#' && text[end] != '\n' {
				continue
			}
			if toml.Unmarshal(text[begin:end], &map[string]any{}) == nil {
				return begin, begin + len(bytes.TrimRight(text[begin:end], " \t\r"))
			}
		}
		return -1, -1
	}
	return -1, -1
}

// withSeparator returns the text behind a removed table, with newlines that separate it from the text before the table.
func withSeparator(before, behind []byte) []byte {
	if len(bytes.TrimSpace(before)) == 0 {
		return behind
	}
	if len(bytes.TrimSpace(behind)) == 0 {
		return []byte("\n")
	}
	return append([]byte("\n\n"), bytes.TrimLeft(behind, "\r\n")...)
}

// findTable returns the position of the first table whose header matches, up to the next header, without the comments
// and empty lines before the next header.
func findTable(data []byte, header func(string) bool) (begin, end int) {
	begin = -1
	at := 0
	for line := range bytes.Lines(data) {
		text, _, _ := strings.Cut(string(line), "#")
		text = strings.TrimSpace(text)
		switch {
		case begin < 0 && header(text):
			begin, end = at, at+len(line)
		case begin >= 0 && strings.HasPrefix(text, "["):
			return begin, end
		case begin >= 0 && text != "":
			end = at + len(line)
		}
		at += len(line)
	}
	return begin, end
}

func parseTOML(path string, data []byte) (map[string]any, error) {
	v := map[string]any{}
	if err := toml.Unmarshal(data, &v); err != nil {
		return nil, unusable(path, repairRemedy, "invalid TOML: %v", err)
	}
	return v, nil
}

// lookup returns the value at a path, or nil.
func lookup(v map[string]any, name []string) any {
	for i, key := range name {
		next, ok := v[key]
		if !ok || i == len(name)-1 {
			return next
		}
		if v, ok = next.(map[string]any); !ok {
			return nil
		}
	}
	return nil
}

// deletePath removes a value, and tables that become empty.
func deletePath(v map[string]any, name []string) {
	if len(name) == 1 {
		delete(v, name[0])
		return
	}
	if next, ok := v[name[0]].(map[string]any); ok {
		deletePath(next, name[1:])
		if len(next) == 0 {
			delete(v, name[0])
		}
	}
}

// tomlString returns s as a basic string of TOML.
func tomlString(s string) string {
	b, err := marshal(s) // JSON escapes are valid in TOML, but JSON does not escape DEL
	if err != nil {
		panic(err) // a string can always be encoded
	}
	return strings.ReplaceAll(strings.TrimSuffix(string(b), "\n"), "\x7f", `\u007f`)
}
