package mcp

import (
	"bytes"
	"cmp"
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
	Action    string `json:"action" enum:"read,write,list,stat,remove,mkdir,move" doc:"what to do"`
	Path      string `json:"path,omitempty" doc:"file or directory in the sandbox; relative ones begin in the working directory, which is the home directory by default and also what list lists if it is left out"`
	Content   string `json:"content,omitempty" doc:"what to write"`
	Encoding  string `json:"encoding,omitempty" enum:"text,base64" doc:"of content to write; left out: text"`
	Append    bool   `json:"append,omitempty" doc:"write: add to the end instead of replacing"`
	Exclusive bool   `json:"exclusive,omitempty" doc:"write, move: never replace what is there"`
	Offset    int64  `json:"offset,omitempty" doc:"read: bytes to pass over"`
	Limit     int64  `json:"limit,omitempty" doc:"read: bytes to give, at most 4 MiB; left out: 64 KiB"`
	Recursive bool   `json:"recursive,omitempty" doc:"list, remove: also what is below"`
	To        string `json:"to,omitempty" doc:"move: the new name"`
}

type fileInfo struct {
	Path     string    `json:"path"`
	Kind     string    `json:"kind" doc:"file, dir, symlink, fifo, socket or device"`
	Size     int64     `json:"size_bytes"`
	Mode     string    `json:"mode"`
	Modified time.Time `json:"modified"`
	Link     string    `json:"link,omitempty"`
}

type filesResult struct {
	Session    string       `json:"session"`
	Action     string       `json:"action"`
	Path       string       `json:"path"`
	Content    string       `json:"content,omitempty"`
	Encoding   string       `json:"encoding,omitempty" doc:"of content: text, or base64 if it is no text"`
	Next       int64        `json:"next_offset,omitempty" doc:"where to go on reading; left out: all was read"`
	File       *fileInfo    `json:"file,omitempty"`
	Entries    []fileInfo   `json:"entries,omitempty"`
	More       bool         `json:"more,omitempty" doc:"the directory has more entries than are listed"`
	Written    *v1.Uploaded `json:"written,omitempty" doc:"the file that was written: its name as given, path, size and SHA-256"`
	Unreadable int64        `json:"unreadable,omitempty" doc:"entries that could not be looked at, and directories that could not be entered: the list lacks them"`
}

func (f *face) addFiles() {
	add(f, tool{
		name: "files", title: "Files of the session", destructive: true,
		description: "Read, write, list, describe, remove, move files and make directories in the session's sandbox. Nothing of the user's own machine can be reached.",
		shape: func(in *jsonschema.Schema) {
			between(in, "offset", 0, 1<<53)
			between(in, "limit", 0, maxRead)
			longest(in, "content", maxWrite)
		},
	}, (*call).files)
}

func (c *call) files(in filesArgs) (filesResult, error) {
	out := filesResult{Action: in.Action, Path: cmp.Or(in.Path, ".")}
	if in.Path == "" && in.Action != "list" {
		return out, invalid("%s needs a path", in.Action)
	}
	s, _, err := c.open(in.Session)
	if err != nil {
		return out, err
	}
	out.Session = s.Name()
	fs := s.Files()
	switch in.Action {
	case "read":
		return c.read(fs, in, out)
	case "write":
		return c.write(fs, in, out)
	case "list":
		return c.list(fs, in.Recursive, out)
	case "stat":
		i, err := fs.Stat(c, out.Path)
		out.describe(i)
		return out, err
	case "remove":
		return out, fs.Remove(c, out.Path, sandbox.RemoveOptions{Recursive: in.Recursive})
	case "mkdir":
		return out, fs.Mkdir(c, out.Path, sandbox.MkdirOptions{Parents: true})
	case "move":
		if in.To == "" {
			return out, invalid("move needs to")
		}
		return out, fs.Move(c, out.Path, in.To, sandbox.MoveOptions{Exclusive: in.Exclusive})
	}
	return out, fmt.Errorf("action %q has no meaning", in.Action) // the schema does not let it through
}

// describe adds what is known about the file; nil: nothing.
func (r *filesResult) describe(i *sandbox.FileInfo) {
	if r.File = infoOf(i); r.File != nil {
		r.Path = r.File.Path
	}
}

func (c *call) read(fs sandbox.FileSystem, in filesArgs, out filesResult) (filesResult, error) {
	var b bytes.Buffer
	i, err := fs.ReadRange(c, out.Path, in.Offset, cmp.Or(in.Limit, defaultRead), &b)
	if err != nil {
		return out, err
	}
	out.describe(i)
	data := b.Bytes()
	more := in.Offset+int64(len(data)) < i.Size
	if whole := data[:len(data)-v1.Incomplete(data)]; more && len(whole) > 0 && utf8.Valid(whole) { // a character is not cut in two
		data = whole
	}
	if more {
		out.Next = in.Offset + int64(len(data))
	}
	if out.Content, out.Encoding = string(data), "text"; !utf8.Valid(data) {
		out.Content, out.Encoding = base64.StdEncoding.EncodeToString(data), "base64"
	}
	return out, nil
}

// shown is the text of a file that was read.
func (r filesResult) shown() *sdk.CallToolResult {
	if r.Action != "read" || r.Encoding != "text" {
		return nil
	}
	text := r.Content
	if r.Next > 0 {
		text += fmt.Sprintf("\n[%d of %d bytes; go on with offset %d]", r.Next, r.File.Size, r.Next)
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}

func (c *call) write(fs sandbox.FileSystem, in filesArgs, out filesResult) (filesResult, error) {
	data := []byte(in.Content)
	if in.Encoding == "base64" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return out, invalid("content is not base64: %v", err)
		}
	}
	i, err := fs.Write(c, out.Path, bytes.NewReader(data), sandbox.WriteOptions{Parents: true, Append: in.Append, Exclusive: in.Exclusive})
	if out.describe(i); i != nil {
		w := i.Uploaded(in.Path)
		out.Written = &w
	}
	return out, err
}

func (c *call) list(fs sandbox.FileSystem, recursive bool, out filesResult) (filesResult, error) {
	for i, err := range fs.List(c, out.Path, sandbox.ListOptions{Recursive: recursive, Unreadable: &out.Unreadable}) {
		if err != nil {
			return out, err
		}
		if out.More = len(out.Entries) == maxEntries; out.More {
			break
		}
		out.Entries = append(out.Entries, *infoOf(i))
	}
	return out, nil
}

func infoOf(i *sandbox.FileInfo) *fileInfo {
	if i == nil {
		return nil
	}
	return &fileInfo{
		Path: strings.ToValidUTF8(i.Path, "\uFFFD"), Kind: i.Kind, Size: i.Size, Mode: i.Mode.String(), Modified: i.ModTime, Link: strings.ToValidUTF8(i.Link, "\uFFFD"),
	}
}
