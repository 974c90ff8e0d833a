package api

import (
	"io/fs"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// FileInfo is sandbox.FileInfo on the way: names are bytes.
type FileInfo struct {
	Path    Text        `json:"path"`
	Size    int64       `json:"size"`
	Mode    fs.FileMode `json:"mode"`
	ModTime time.Time   `json:"mod_time"`
	UID     int         `json:"uid"`
	GID     int         `json:"gid"`
	Link    Text        `json:"link,omitempty"`
	Kind    string      `json:"kind"`
}

// FileInfoOf writes what is known of a file for the way.
func FileInfoOf(i *sandbox.FileInfo) FileInfo {
	return FileInfo{Path: Text(i.Path), Size: i.Size, Mode: i.Mode, ModTime: i.ModTime, UID: i.UID, GID: i.GID, Link: Text(i.Link), Kind: i.Kind}
}

// Sandbox is the way back from FileInfoOf.
func (i FileInfo) Sandbox() *sandbox.FileInfo {
	return &sandbox.FileInfo{Path: string(i.Path), Size: i.Size, Mode: i.Mode, ModTime: i.ModTime, UID: i.UID, GID: i.GID, Link: string(i.Link), Kind: i.Kind}
}

// FileList is one page of a directory.
type FileList struct {
	Files      []FileInfo `json:"files"`
	Next       Text       `json:"next,omitempty" doc:"give it as after for the next page; left out: this is the last"`
	Unreadable int64      `json:"unreadable,omitempty" doc:"entries of this page that could not be looked at, and directories that could not be entered"`
}

// Mkdir asks for a directory.
type Mkdir struct {
	Path    Text `json:"path"`
	Parents bool `json:"parents,omitempty"`
}

// Move asks for another name.
type Move struct {
	From      Text `json:"from"`
	To        Text `json:"to"`
	Overwrite bool `json:"overwrite,omitempty" doc:"replace what is there"`
}

// Uploaded is one file of a batch. A file that could not be written has a problem and no sum.
type Uploaded struct {
	Name    Text     `json:"name" doc:"as it was sent"`
	Path    Text     `json:"path" doc:"where it is now"`
	Size    int64    `json:"size"`
	SHA256  string   `json:"sha256,omitempty"`
	Problem *Problem `json:"problem,omitempty"`
}

// Batch is the answer to an upload of several files.
type Batch struct {
	Files  []Uploaded `json:"files"`
	Failed int        `json:"failed"`
}

// TarStats is sandbox.TarStats on the way.
type TarStats struct {
	Entries      int64     `json:"entries"`
	Bytes        int64     `json:"bytes"`
	Skipped      []TarNote `json:"skipped,omitempty"`
	SkippedCount int64     `json:"skipped_count,omitempty"`
	Changed      []Text    `json:"changed,omitempty"`
	ChangedCount int64     `json:"changed_count,omitempty"`
}

// TarNote names an entry that was passed over.
type TarNote struct {
	Path   Text   `json:"path"`
	Reason string `json:"reason"`
}

// TarStatsOf writes what an archive did for the way.
func TarStatsOf(s *sandbox.TarStats) TarStats {
	out := TarStats{Entries: s.Entries, Bytes: s.Bytes, SkippedCount: s.SkippedCount, Changed: Texts(s.Changed), ChangedCount: s.ChangedCount}
	for _, n := range s.Skipped {
		out.Skipped = append(out.Skipped, TarNote{Text(n.Path), n.Reason})
	}
	return out
}

// Sandbox is the way back from TarStatsOf.
func (s TarStats) Sandbox() *sandbox.TarStats {
	out := &sandbox.TarStats{Entries: s.Entries, Bytes: s.Bytes, SkippedCount: s.SkippedCount, Changed: Strings(s.Changed), ChangedCount: s.ChangedCount}
	for _, n := range s.Skipped {
		out.Skipped = append(out.Skipped, sandbox.TarNote{Path: string(n.Path), Reason: n.Reason})
	}
	return out
}

// FileEvent is sandbox.FileEvent on the way.
type FileEvent struct {
	Op   string `json:"op"`
	Path Text   `json:"path"`
	From Text   `json:"from,omitempty"`
}
