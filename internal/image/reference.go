package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// reference is an understood image reference: either a path with an optional name inside it, or a registry reference.
type reference struct {
	path     string // absolute, of a layout or archive; empty for a registry
	isDir    bool
	inside   string // tag or name inside the layout or archive
	registry name.Reference
}

// key names the reference in the index: the same for each way of writing it.
func (r reference) key() string {
	if r.registry != nil {
		return r.registry.Name()
	}
	key := r.path
	if r.inside != "" {
		key += ":" + r.inside
	}
	return "file:" + key
}

// schemes in front of a path. Which of them is given does not matter: what lies there says itself what it is.
var pathSchemes = []string{"oci:", "oci-archive:", "docker-archive:", "tar:"}

// parseReference understands what a caller writes. A plain word is a registry reference, as in docker; a path must look like
// one (begin with "/", "./" or "../", or end in ".tar" and exist), so that a directory in the working directory that happens
// to be called "python" cannot take the place of the image of that name.
func parseReference(ref string) (reference, error) {
	if ref == "" || strings.ContainsAny(ref, "\x00\n") {
		return reference{}, errorf(Invalid, "give a registry reference such as python:3.12-slim, or the path of an image archive or OCI layout", "it is empty or contains a line break or zero byte")
	}
	if rest, ok := cutPath(ref); ok {
		return parsePath(rest)
	}
	if isArchive(ref) {
		return parsePath(ref)
	}
	ref = strings.TrimPrefix(ref, "docker://")
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return reference{}, asError(Invalid, "write it as registry/name:tag, name:tag or name@sha256:…, or as the path of an image archive or OCI layout", err)
	}
	if d, ok := parsed.(name.Digest); ok && !strings.HasPrefix(d.DigestStr(), "sha256:") {
		return reference{}, errorf(Invalid, "use a sha256 digest", "its digest %q is of a kind that is not supported", d.DigestStr())
	}
	return reference{registry: parsed}, nil
}

// cutPath gives the path of a reference that is one by how it is written.
func cutPath(ref string) (string, bool) {
	for _, scheme := range pathSchemes {
		if rest, ok := strings.CutPrefix(ref, scheme); ok && (scheme != "oci:" || !strings.HasPrefix(rest, "//")) {
			return rest, true
		}
	}
	return ref, strings.HasPrefix(ref, "/") || strings.HasPrefix(ref, "./") || strings.HasPrefix(ref, "../") || filepath.IsAbs(ref)
}

// isArchive reports whether a reference without a scheme is the name of an archive.
func isArchive(ref string) bool {
	st, err := os.Stat(ref)
	return strings.HasSuffix(ref, ".tar") && err == nil && st.Mode().IsRegular()
}

// Absolute returns a reference whose path, if it is one, is absolute, for a program that works in another directory.
func Absolute(ref string) (string, error) {
	p, ok := cutPath(ref)
	if p == "" || !ok && !isArchive(ref) {
		return ref, nil
	}
	abs, err := filepath.Abs(p)
	return strings.TrimSuffix(ref, p) + abs, err
}

// IsPath reports whether a reference may name a file or directory of this machine. It looks at the words alone, so that the answer tells
// nobody what is there: "x.tar" is a path to it also when there is no such file.
func IsPath(ref string) bool {
	_, ok := cutPath(ref)
	return ok || strings.HasSuffix(ref, ".tar")
}

// parsePath splits path[:name]. Colons are legal in file names, so the longest prefix that exists is the path.
func parsePath(s string) (reference, error) {
	if s == "" {
		return reference{}, errorf(Invalid, "write the path after the colon", "it names no path")
	}
	p, inside := s, ""
	for {
		st, err := os.Stat(p)
		if err == nil {
			abs, err := filepath.Abs(p)
			if err != nil {
				return reference{}, cacheError(err)
			}
			if !st.IsDir() && !st.Mode().IsRegular() { // a pipe would block us
				return reference{}, errorf(Invalid, "give an image archive or an OCI layout directory", "%s is neither a file nor a directory", p)
			}
			return reference{path: abs, isDir: st.IsDir(), inside: inside}, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			return reference{}, asError(NotFound, "give this user access to it", err)
		}
		i := strings.LastIndexByte(p, ':')
		if i <= 0 {
			return reference{}, errorf(NotFound, "check the path", "there is no file or directory %q", s)
		}
		p, inside = p[:i], s[i+1:]
	}
}
