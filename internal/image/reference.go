package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// reference is a parsed image reference: a registry reference, or a path with an optional name inside it.
type reference struct {
	path     string // absolute path of a layout or archive; empty: a registry reference
	isDir    bool
	inside   string // tag or name inside the layout or archive
	registry name.Reference
}

// key returns the key of the reference in the cache. All ways to write a reference have the same key.
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

// pathSchemes are the prefixes of a path. All have the same effect, because the format is detected from the files.
var pathSchemes = []string{"oci:", "oci-archive:", "docker-archive:", "tar:"}

// parseReference parses an image reference. A plain word is a registry reference, as in docker. A path must begin with
// "/", "./" or "../", or end in ".tar" and exist. So a directory "python" in the working directory is not mistaken for
// the image python.
func parseReference(ref string) (reference, error) {
	if ref == "" || strings.ContainsAny(ref, "\x00\n") {
		return reference{}, errorf(Invalid,
			"use a registry reference such as python:3.12-slim, or the path of an image archive or OCI layout",
			"the reference is empty, or contains a line break or zero byte")
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
		return reference{}, asError(Invalid,
			"write it as registry/name:tag, name:tag or name@sha256:…, or as the path of an image archive or OCI layout",
			err)
	}
	if d, ok := parsed.(name.Digest); ok && !strings.HasPrefix(d.DigestStr(), "sha256:") {
		return reference{}, errorf(Invalid, "use a sha256 digest", "unsupported digest %q", d.DigestStr())
	}
	return reference{registry: parsed}, nil
}

// cutPath removes the scheme of a path. It reports whether ref is a path according to its syntax.
func cutPath(ref string) (string, bool) {
	for _, scheme := range pathSchemes {
		if rest, ok := strings.CutPrefix(ref, scheme); ok && (scheme != "oci:" || !strings.HasPrefix(rest, "//")) {
			return rest, true
		}
	}
	isPath := strings.HasPrefix(ref, "/") || strings.HasPrefix(ref, "./") || strings.HasPrefix(ref, "../") ||
		filepath.IsAbs(ref)
	return ref, isPath
}

// isArchive reports whether a reference without a scheme is the name of an existing archive.
func isArchive(ref string) bool {
	st, err := os.Stat(ref)
	return strings.HasSuffix(ref, ".tar") && err == nil && st.Mode().IsRegular()
}

// Absolute returns the reference with an absolute path, for a program that works in another directory. A registry
// reference is returned unchanged.
func Absolute(ref string) (string, error) {
	p, ok := cutPath(ref)
	if p == "" || !ok && !isArchive(ref) {
		return ref, nil
	}
	abs, err := filepath.Abs(p)
	return strings.TrimSuffix(ref, p) + abs, err
}

// IsPath reports whether a reference may name a file or directory of this machine. It only checks the syntax, so that
// the result does not reveal which files exist: "x.tar" is a path even if there is no such file.
func IsPath(ref string) bool {
	_, ok := cutPath(ref)
	return ok || strings.HasSuffix(ref, ".tar")
}

// parsePath splits path[:name]. File names may contain colons, so the longest existing prefix is the path.
func parsePath(s string) (reference, error) {
	if s == "" {
		return reference{}, errorf(Invalid, "write the path after the colon", "missing path")
	}
	p, inside := s, ""
	for {
		st, err := os.Stat(p)
		if err == nil {
			abs, err := filepath.Abs(p)
			if err != nil {
				return reference{}, cacheError(err)
			}
			if !st.IsDir() && !st.Mode().IsRegular() { // reading a pipe would block
				return reference{}, errorf(Invalid, "use an image archive or an OCI layout directory",
					"%s is neither a file nor a directory", p)
			}
			return reference{path: abs, isDir: st.IsDir(), inside: inside}, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			return reference{}, asError(NotFound, "allow this user to read it", err)
		}
		i := strings.LastIndexByte(p, ':')
		if i <= 0 {
			return reference{}, errorf(NotFound, "check the path", "file or directory %q not found", s)
		}
		p, inside = p[:i], s[i+1:]
	}
}
