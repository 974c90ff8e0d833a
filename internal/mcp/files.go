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
	defaultRead = 64 << 10 // bytes
	maxRead     = 4 << 20
	maxEntries  = 1000 // per listing
	maxWrite    = 16 << 20
)

type filesArgs struct {
	sessionArg
	Action    string `json:"action" enum:"read,write,list,stat,remove,mkdir,move" doc:"action to perform"`
	Path      string `json:"path,omitempty" doc:"file or directory in the sandbox; relative to the working directory, by default the home directory; left out: list lists the working directory"`
	Content   string `json:"content,omitempty" doc:"content to write"`
	Encoding  string `json:"encoding,omitempty" enum:"text,base64" doc:"encoding of the content to write; left out: text"`
	Append    bool   `json:"append,omitempty" doc:"write: append to the file instead of replacing it"`
	Exclusive bool   `json:"exclusive,omitempty" doc:"write, move: fail if the target exists"`
	Offset    int64  `json:"offset,omitempty" doc:"read: bytes to skip"`
	Limit     int64  `json:"limit,omitempty" doc:"read: maximum number of bytes, up to 4 MiB; left out: 64 KiB"`
	Recursive bool   `json:"recursive,omitempty" doc:"list, remove: include everything below the directory"`
	To        string `json:"to,omitempty" doc:"move: new path"`
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
	Encoding   string       `json:"encoding,omitempty" doc:"encoding of content: text, or base64 if it is not valid UTF-8"`
	Next       int64        `json:"next_offset,omitempty" doc:"offset of the next read; left out: the end of the file was read"`
	File       *fileInfo    `json:"file,omitempty"`
	Entries    []fileInfo   `json:"entries,omitempty"`
	More       bool         `json:"more,omitempty" doc:"the directory has more entries than are listed"`
	Written    *v1.Uploaded `json:"written,omitempty" doc:"the written file: name as given, path, size and SHA-256"`
	Unreadable int64        `json:"unreadable,omitempty" doc:"number of entries and directories that could not be read and are missing from the list"`
}

func (srv *mcpServer) addFiles() {
	add(srv, tool{
		name:        "files",
		title:       "Files of the session",
		destructive: true,
		description: "Read, write, list, describe, remove and move files, and make directories " +
			"in the session's sandbox. The files of the user's own machine cannot be reached.",
		shape: func(in *jsonschema.Schema) {
			setRange(in, "offset", 0, 1<<53)
			setRange(in, "limit", 0, maxRead)
			setMaxLength(in, "content", maxWrite)
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
	return out, fmt.Errorf("invalid action %q", in.Action) // unreachable: the schema allows no other
}

// describe sets the file and its path in the result; nil: no file.
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
	// The part of a character at the end is left for the next read.
	if whole := data[:len(data)-v1.Incomplete(data)]; more && len(whole) > 0 && utf8.Valid(whole) {
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

// render returns the text of a file that was read.
func (r filesResult) render() *sdk.CallToolResult {
	if r.Action != "read" || r.Encoding != "text" {
		return nil
	}
	text := r.Content
	if r.Next > 0 {
		text += fmt.Sprintf("\n[%d of %d bytes; continue with offset %d]", r.Next, r.File.Size, r.Next)
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
	i, err := fs.Write(
		c,
		out.Path,
		bytes.NewReader(data),
		sandbox.WriteOptions{Parents: true, Append: in.Append, Exclusive: in.Exclusive},
	)
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
		Path:     strings.ToValidUTF8(i.Path, "\uFFFD"),
		Kind:     i.Kind,
		Size:     i.Size,
		Mode:     i.Mode.String(),
		Modified: i.ModTime,
		Link:     strings.ToValidUTF8(i.Link, "\uFFFD"),
	}
}
