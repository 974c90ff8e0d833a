package agents

import (
	"bytes"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// pair is a key of ours and its value as TOML.
type pair struct{ key, value string }

func (p pair) String() string { return p.key + " = " + p.value }

// setTable gives a TOML file in whose table our pairs are set. Everything else stays byte for byte, what its owner has put into the table
// included: it is found by its text, and what comes out is read again to see that nothing else has changed.
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
		return nil, unusable(path, "write it as a table of its own, or remove it", "%s is there in a form that cannot be changed safely", header)
	}
	var out []byte
	if begin >= 0 {
		text, err := setPairs(path, data[begin:end], table, pairs)
		if err != nil {
			return nil, err
		}
		out = slices.Concat(data[:begin], text, data[end:])
	} else {
		out = ended(data)
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
	return out, checked(path, out, want)
}

// dropTable gives a TOML file without a table and those below it. Everything else stays, as with setTable.
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
		out = slices.Concat(bytes.TrimRight(out[:begin], "\r\n"), after(out[:begin], out[end:]))
	}
	got, err := parseTOML(path, out)
	if err != nil || lookup(got, name) != nil {
		return nil, unusable(path, "remove it by hand", "%s is there in a form that cannot be changed safely", header)
	}
	forget(want, name)
	forget(got, name) // tables that are empty without it
	if !reflect.DeepEqual(want, got) {
		return nil, unusable(path, "change it by hand", "our table cannot be told from the rest of it")
	}
	return out, nil
}

// checked refuses a file that does not say what is wanted.
func checked(path string, data []byte, want map[string]any) error {
	got, err := parseTOML(path, data)
	if err != nil {
		return unusable(path, "change it by hand", "our table does not fit into it: %v", err)
	}
	if !reflect.DeepEqual(want, got) {
		return unusable(path, "change it by hand", "our table cannot be told from the rest of it")
	}
	return nil
}

// setPairs gives the text of a table in which our pairs are set. Those that say the same already stay as they are written.
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
		text = append(ended(text), p.String()+"\n"...)
	}
	return text, nil
}

// assign sets a pair in what a file says.
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

// ended gives a copy of a text whose last line has an end.
func ended(text []byte) []byte {
	text = bytes.Clone(text)
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	return text
}

// findPair gives the bytes of a key and its value, without the comment behind it.
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
		// The value ends where what we have of it is whole for the first time: it may have several lines, and a # in it.
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

// after joins what stood before and behind a table that was removed.
func after(before, behind []byte) []byte {
	if len(bytes.TrimSpace(before)) == 0 {
		return behind
	}
	if len(bytes.TrimSpace(behind)) == 0 {
		return []byte("\n")
	}
	return append([]byte("\n\n"), bytes.TrimLeft(behind, "\r\n")...)
}

// findTable gives the bytes of the first table with such a header, from there to the next header, without the comments and empty lines before that.
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
		return nil, unusable(path, "mend it, or move it away", "it is no TOML: %v", err)
	}
	return v, nil
}

// lookup finds a value by its path.
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

// forget removes a value, and tables that are empty without it.
func forget(v map[string]any, name []string) {
	if len(name) == 1 {
		delete(v, name[0])
		return
	}
	if next, ok := v[name[0]].(map[string]any); ok {
		forget(next, name[1:])
		if len(next) == 0 {
			delete(v, name[0])
		}
	}
}

// tomlString writes a basic string.
func tomlString(s string) string {
	b, err := marshal(s) // JSON's escapes are TOML's, but for one
	if err != nil {
		panic(err) // a string
	}
	return strings.ReplaceAll(strings.TrimSuffix(string(b), "\n"), "\x7f", `\u007f`)
}
