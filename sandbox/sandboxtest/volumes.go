package sandboxtest

import (
	"archive/tar"
	"bytes"
	"context"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// volume makes a volume, which is deleted at the end of the test. It returns the name for specs, and a function that
// opens a sandbox with the volume on /data.
func (s *suite) volume(t *testing.T, v sandbox.NewVolume) (info sandbox.VolumeInfo, use func(writable bool) (*sandbox.Sandbox, error)) {
	t.Helper()
	s.needLibrary(t)
	b := s.backend(t)
	keeper, ok := b.(backend.VolumeKeeper)
	if !ok {
		t.Skip("the backend keeps no volumes")
	}
	if s.caps.Isolation == sandbox.IsolationNone {
		t.Skip("the backend shows volumes below the home directory, and always writable")
	}
	v.Name = "suite-" + strings.ToLower(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return '-'
	}, t.Name()[strings.LastIndex(t.Name(), "/")+1:]))
	info, err := keeper.CreateVolume(t.Context(), sandbox.VolumeOwner{}, v, nil)
	if v1.CodeOf(err) == v1.CodeConsentMissing {
		t.Skip("the size of a volume cannot be limited here")
	}
	noError(t, err)
	ref := info.Tenant + "/" + info.Name
	t.Cleanup(func() { noError(t, keeper.DeleteVolume(context.WithoutCancel(t.Context()), ref)) })
	return info, func(writable bool) (*sandbox.Sandbox, error) {
		spec := s.opts.Spec
		spec.Volumes = []sandbox.Volume{{Name: ref, Path: "/data", Writable: writable}}
		sb, err := sandbox.Open(t.Context(), b, spec)
		if err == nil {
			t.Cleanup(func() { _ = sb.Close() })
		}
		return sb, err
	}
}

var volumes = []feature{
	{"two sandboxes share a volume, one of them writes", onBackend, func(t *testing.T, s *suite) {
		_, use := s.volume(t, sandbox.NewVolume{Size: 32 << 20})
		writer, err := use(true)
		noError(t, err)
		reader, err := use(false)
		noError(t, err)
		same(t, "written", script(t, writer, "mkdir /data/d; echo one > /data/d/f; cat /data/d/f"), "one\n")
		same(t, "read", script(t, reader, "cat /data/d/f; touch /data/x 2>/dev/null || echo read-only"), "one\nread-only\n")
		script(t, writer, "echo two >> /data/d/f; ln -s /etc/passwd /data/link")
		same(t, "read later", script(t, reader, "cat /data/d/f"), "one\ntwo\n")
		_, err = use(true)
		fails(t, "a second writer", err, v1.CodeVolumeBusy)
		noError(t, writer.Close())
		next, err := use(true)
		noError(t, err)
		same(t, "the next writer", script(t, next, "cat /data/d/f; rm -r /data/d; ls /data"), "one\ntwo\nlink\n")
		same(t, "a set-uid program", script(t, next, "cp /usr/bin/id /data/id; chmod 4755 /data/id; /data/id -u"), "1000\n")
	}},
	{"several write to a shared volume", onBackend, func(t *testing.T, s *suite) {
		_, use := s.volume(t, sandbox.NewVolume{Size: 32 << 20, Shared: true})
		for range 2 {
			sb, err := use(true)
			noError(t, err)
			script(t, sb, "echo line >> /data/f")
		}
		sb, err := use(false)
		noError(t, err)
		same(t, "lines", script(t, sb, "cat /data/f"), "line\nline\n")
	}},
	{"a full volume costs the writer", onBackend, func(t *testing.T, s *suite) {
		info, use := s.volume(t, sandbox.NewVolume{Size: 16 << 20, Files: 64})
		if !info.DiskLimit {
			t.Skip("the backend does not limit volumes")
		}
		sb, err := use(true)
		noError(t, err)
		script(t, sb, "echo before > /data/f")
		v, err := sb.Run(t.Context(), sandbox.Command{Shell: "head -c 40000000 /dev/zero > /data/big"})
		noError(t, err)
		contains(t, "beyond the size", strings.ToLower(v.Stderr.String()), "no space")
		v, err = sb.Run(t.Context(), sandbox.Command{Shell: "rm /data/big; for i in $(seq 300); do mkdir /data/d$i || exit 1; done"})
		noError(t, err)
		contains(t, "too many files", strings.ToLower(v.Stderr.String()), "no space")
		same(t, "after it", script(t, sb, "rmdir /data/d*; cat /data/f; echo fine > ~/f; cat ~/f"), "before\nfine\n")
	}},
	{"a hostile archive stays in a volume", onBackend, func(t *testing.T, s *suite) {
		_, use := s.volume(t, sandbox.NewVolume{Size: 32 << 20})
		sb, err := use(true)
		noError(t, err)
		script(t, sb, "mkdir /data/into; echo s > /data/secret; echo s > ~/secret")
		f := sb.Files().Below("/data/into")
		for _, entries := range [][]tar.Header{
			{{Name: "../out", Size: 1}},
			{{Name: "/out", Size: 1}},
			{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/out", Size: 1}},
			{{Name: "m", Typeflag: tar.TypeSymlink, Linkname: "/home/user"}, {Name: "m/out", Size: 1}},
			{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../secret"}},
			{{Name: "dev", Typeflag: tar.TypeBlock, Devmajor: 7}},
			{{Name: "suid", Size: 1, Mode: 0o4755}},
		} {
			var archive bytes.Buffer
			w := tar.NewWriter(&archive)
			for _, h := range entries {
				h.Mode |= 0o644
				noError(t, w.WriteHeader(&h))
				_, err := w.Write(make([]byte, h.Size))
				noError(t, err)
			}
			noError(t, w.Close())
			_, err := f.Upload(t.Context(), ".", &archive, sandbox.TarOptions{})
			if err != nil && v1.CodeOf(err) == v1.CodeInternal {
				t.Errorf("%s: the error has no specific code: %v", entries[0].Name, err)
			}
		}
		same(t, "outside", script(t, sb, "ls /data; ls ~; ls /out 2>/dev/null; stat -c %h /data/secret"), "into\nsecret\nsecret\n1\n")
		same(t, "devices", script(t, sb, "find /data -type b -o -type c -o -perm -4000"), "")
	}},
}
