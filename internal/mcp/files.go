package mcp

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	defaultRead = 64 << 10 // bytes of one read
	maxRead     = 4 << 20
	maxEntries  = 1000 // of one listing
	maxWrite    = 16 << 20
)

type filesArgs struct {
	where
	Action    string `json:"action" jsonschema:"what to do"`
	Path      string `json:"path,omitempty" jsonschema:"file or directory in the sandbox; relative ones begin in the home directory, which is also what list lists if it is left out"`
	Content   string `json:"content,omitempty" jsonschema:"what to write"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"of content to write: text (the default) or base64"`
	Append    bool   `json:"append,omitempty" jsonschema:"write: add to the end instead of replacing"`
	Exclusive bool   `json:"exclusive,omitempty" jsonschema:"write, move: never replace what is there"`
	Offset    int64  `json:"offset,omitempty" jsonschema:"read: bytes to pass over"`
	Limit     int64  `json:"limit,omitempty" jsonschema:"read: bytes to give, at most 4 MiB; left out: 64 KiB"`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"list, remove: also what is below"`
	To        string `json:"to,omitempty" jsonschema:"move: the new name"`
}

type fileInfo struct {
	Path     string    `json:"path"`
	Kind     string    `json:"kind" jsonschema:"file, dir, symlink, fifo, socket or device"`
	Size     int64     `json:"size_bytes"`
	Mode     string    `json:"mode"`
	Modified time.Time `json:"modified"`
	Link     string    `json:"link,omitempty"`
}

type filesResult struct {
	Session  string     `json:"session"`
	Action   string     `json:"action"`
	Path     string     `json:"path"`
	Content  string     `json:"content,omitempty"`
	Encoding string     `json:"encoding,omitempty" jsonschema:"of content: text, or base64 if it is no text"`
	Next     int64      `json:"next_offset,omitempty" jsonschema:"where to go on reading; left out: all was read"`
	File     *fileInfo  `json:"file,omitempty"`
	Entries  []fileInfo `json:"entries,omitempty"`
	More     bool       `json:"more,omitempty" jsonschema:"the directory has more entries than are listed"`
}

func (f *face) addFiles() {
	add(f, tool{
		name: "files", title: "Files of the session", destructive: true,
		description: "Read, write, list, describe, remove, move files and make directories in the session's sandbox. Nothing of the user's own machine can be reached.",
		shape: func(in *jsonschema.Schema) {
			enum(in, "action", "read", "write", "list", "stat", "remove", "mkdir", "move")
			enum(in, "encoding", "text", "base64")
			between(in, "offset", 0, 1<<53)
			between(in, "limit", 0, maxRead)
			longest(in, "content", maxWrite)
		},
	}, func(c *call, in filesArgs) (*sdk.CallToolResult, filesResult, error) { return c.files(in) })
}

func (c *call) files(in filesArgs) (*sdk.CallToolResult, filesResult, error) {
	out := filesResult{Action: in.Action, Path: below(in.Path)}
	if in.Path == "" {
		if in.Action != "list" {
			return nil, out, invalid("%s needs a path", in.Action)
		}
		out.Path = v1.DefaultHome
	}
	s, _, err := c.open(in.Session)
	if err != nil {
		return nil, out, err
	}
	out.Session = s.Name()
	fs := s.Files()
	switch in.Action {
	case "read":
		return c.read(fs, in, out)
	case "write":
		return c.write(fs, in, out)
	case "list":
		out.Entries, out.More, err = c.list(fs, out.Path, in.Recursive, maxEntries)
		return nil, out, err
	case "stat":
		i, err := fs.Stat(c, out.Path)
		out.File = infoOf(i)
		return nil, out, err
	case "remove":
		return nil, out, fs.Remove(c, out.Path, sandbox.RemoveOptions{Recursive: in.Recursive})
	case "mkdir":
		return nil, out, fs.Mkdir(c, out.Path, sandbox.MkdirOptions{Parents: true})
	case "move":
		if in.To == "" {
			return nil, out, invalid("move needs to")
		}
		return nil, out, fs.Move(c, out.Path, below(in.To), sandbox.MoveOptions{Exclusive: in.Exclusive})
	}
	return nil, out, fmt.Errorf("action %q has no meaning", in.Action) // the schema does not let it through
}

func (c *call) read(fs sandbox.FileSystem, in filesArgs, out filesResult) (*sdk.CallToolResult, filesResult, error) {
	limit := in.Limit
	if limit == 0 {
		limit = defaultRead
	}
	var b bytes.Buffer
	i, err := fs.ReadRange(c, out.Path, in.Offset, limit, &b)
	if err != nil {
		return nil, out, err
	}
	out.File = infoOf(i)
	end := in.Offset + int64(b.Len())
	if i != nil && end < i.Size {
		out.Next = end
	}
	text := b.Bytes()
	if whole := wholeRunes(text); out.Next > 0 && len(whole) > 0 { // a character is not cut in two
		out.Next -= int64(len(text) - len(whole))
		text = whole
	}
	out.Content, out.Encoding = encoded(text)
	if out.Encoding != "text" {
		out.Next = 0
		if i != nil && end < i.Size {
			out.Next = end
		}
		out.Content = base64.StdEncoding.EncodeToString(b.Bytes())
		return nil, out, nil
	}
	shown := out.Content
	if out.Next > 0 {
		shown += fmt.Sprintf("\n[%d of %d bytes; go on with offset %d]", end, i.Size, out.Next)
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: shown}}}, out, nil
}

// wholeRunes drops the beginning of a character at the end.
func wholeRunes(b []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-n:]) {
				return b[:len(b)-n]
			}
			break
		}
	}
	return b
}

func encoded(b []byte) (text, encoding string) {
	if utf8.Valid(b) {
		return string(b), "text"
	}
	return base64.StdEncoding.EncodeToString(b), "base64"
}

func (c *call) write(fs sandbox.FileSystem, in filesArgs, out filesResult) (*sdk.CallToolResult, filesResult, error) {
	data := []byte(in.Content)
	if in.Encoding == "base64" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return nil, out, invalid("content is not base64: %v", err)
		}
	}
	i, err := fs.Write(c, out.Path, bytes.NewReader(data), sandbox.WriteOptions{Parents: true, Append: in.Append, Exclusive: in.Exclusive})
	out.File = infoOf(i)
	return nil, out, err
}

func (c *call) list(fs sandbox.FileSystem, dir string, recursive bool, most int) (list []fileInfo, more bool, err error) {
	for i, err := range fs.List(c, dir, sandbox.ListOptions{Recursive: recursive}) {
		if err != nil {
			return nil, false, err
		}
		if len(list) == most {
			return list, true, nil
		}
		list = append(list, *infoOf(i))
	}
	return list, false, nil
}

func infoOf(i *sandbox.FileInfo) *fileInfo {
	if i == nil {
		return nil
	}
	return &fileInfo{
		Path: strings.ToValidUTF8(i.Path, "\uFFFD"), Kind: i.Kind, Size: i.Size, Mode: i.Mode.String(), Modified: i.ModTime, Link: strings.ToValidUTF8(i.Link, "\uFFFD"),
	}
}
