package agents

import (
	"bytes"
	"reflect"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// setTable gives a TOML file with one table set to lines of ours, or without the table if lines is nil. Everything else stays byte for byte: the
// table is found by its header, and what comes out is read again to see that nothing else has changed.
func setTable(path string, data []byte, name []string, lines []string) ([]byte, error) {
	before, err := parseTOML(path, data)
	if err != nil {
		return nil, err
	}
	begin, end := findTable(data, "["+strings.Join(name, ".")+"]")
	if begin < 0 && lookup(before, name) != nil {
		return nil, unusable(path, "write it as a table of its own, or remove it", "%s is there in a form that cannot be changed safely", strings.Join(name, "."))
	}
	var block []byte
	if lines != nil {
		block = []byte("[" + strings.Join(name, ".") + "]\n" + strings.Join(lines, "\n") + "\n")
	}
	var out []byte
	switch {
	case begin >= 0:
		out = append(append(bytes.Clone(data[:begin]), block...), data[end:]...)
		if lines == nil {
			out = append(bytes.TrimRight(out[:begin:begin], "\n"), after(data[:begin], data[end:])...)
		}
	case lines == nil:
		return data, nil
	default:
		out = bytes.Clone(data)
		if len(out) > 0 && !bytes.HasSuffix(out, []byte("\n")) {
			out = append(out, '\n')
		}
		if len(out) > 0 {
			out = append(out, '\n')
		}
		out = append(out, block...)
	}
	got, err := parseTOML(path, out)
	if err != nil {
		return nil, unusable(path, "change it by hand", "our table does not fit into it: %v", err)
	}
	forget(before, name)
	forget(got, name)
	if !reflect.DeepEqual(before, got) {
		return nil, unusable(path, "change it by hand", "our table cannot be told from the rest of it")
	}
	return out, nil
}

// after joins what stood before and behind a table that was removed.
func after(before, behind []byte) []byte {
	if len(bytes.TrimSpace(before)) == 0 {
		return behind
	}
	if len(bytes.TrimSpace(behind)) == 0 {
		return []byte("\n")
	}
	return append([]byte("\n\n"), behind...)
}

// findTable gives the bytes of a table from its header to the next header, without the comments and empty lines before that one.
func findTable(data []byte, header string) (begin, end int) {
	begin = -1
	at := 0
	for line := range bytes.Lines(data) {
		text, _, _ := strings.Cut(string(line), "#")
		text = strings.TrimSpace(text)
		switch {
		case begin < 0 && text == header:
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
