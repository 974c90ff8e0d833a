//go:build linux

package operation

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// listedMetadata bounds the metadata of an operation in a list; an operation may have megabytes of it.
const listedMetadata = 1 << 10

// Describe returns the entry of the operation in a list. It omits large fields, because a list of many operations must
// fit into one frame. Follow returns the complete verdict.
func (o *Operation) Describe() *wire.Op {
	o.mu.Lock()
	defer o.mu.Unlock()
	return &wire.Op{
		Id:            o.ID,
		Kind:          o.Kind,
		Command:       o.Command,
		Context:       o.Context,
		Running:       o.verdict == nil,
		Pid:           int32(o.pid),
		Stdout:        o.out[0].Size(),
		Stderr:        o.out[1].Size(),
		StartedUnixNs: o.began.UnixNano(),
		Verdict:       brief(o.verdict),
		Input:         o.input != nil && o.verdict == nil,
		Pty:           o.PTY,
	}
}

// brief returns a shallow copy of v without large fields.
func brief(v *wire.Verdict) *wire.Verdict {
	if v == nil {
		return nil
	}
	b := &wire.Verdict{}
	v.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		b.ProtoReflect().Set(f, value)
		return true
	})
	kept := func(k *wire.Kept) *wire.Kept {
		return &wire.Kept{Produced: k.GetProduced(), File: k.GetFile(), FileBytes: k.GetFileBytes()}
	}
	b.Stdout, b.Stderr = kept(v.Stdout), kept(v.Stderr)
	b.Displays, b.HasResult = nil, false
	b.Metadata = short(v.Metadata)
	b.Survivors = nil
	for _, p := range v.Survivors {
		q := &wire.Process{Pid: p.Pid, Command: wire.Clip(p.Command, 200), Killed: p.Killed}
		b.Survivors = append(b.Survivors, q)
	}
	if e := v.CellError; e != nil {
		b.CellError = &wire.CellError{Name: e.Name, Value: wire.Clip(e.Value, 1<<10), Line: e.Line}
	}
	return b
}

// short returns m without entries that exceed listedMetadata in total.
func short(m map[string]string) map[string]string {
	room, out := listedMetadata, map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if n := len(k) + len(m[k]); n <= room {
			room -= n
			out[k] = m[k]
		}
	}
	return out
}
