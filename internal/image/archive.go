package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// maxArchiveEntries is how many entries an image archive may have; real ones have a few per layer.
const maxArchiveEntries = 100_000

// files is a directory or an archive, seen as named files.
type files interface {
	open(name string) (io.ReadCloser, int64, error) // fails with errMissing
	Close() error
}

// directory is an OCI layout on disk. Names come from its own index, so they are kept inside.
type directory struct{ *os.Root }

func (d directory) open(name string) (io.ReadCloser, int64, error) {
	info, err := d.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("%s: %w", name, errMissing)
	}
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() { // a pipe would block
		return nil, 0, fmt.Errorf("%s is not a file", name)
	}
	f, err := d.Open(name)
	if err != nil {
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// archive is a tar file with a table of what lies where. One pass over the headers makes the table (the reader seeks over
// the content), after which each file is read in place. go-containerregistry's tarball package scans the archive anew for
// each file and compresses every layer twice to learn a digest that nobody asked for.
type archive struct {
	f     *os.File
	table map[string]archiveEntry
}

type archiveEntry struct {
	offset, size int64
	link         string // name of the entry that has the content; docker save links equal layers
}

func openArchive(file string) (*archive, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	a := &archive{f: f, table: map[string]archiveEntry{}}
	if err := a.scan(); err != nil {
		f.Close()
		return nil, err
	}
	return a, nil
}

func (a *archive) scan() error {
	var magic [4]byte
	if n, _ := a.f.ReadAt(magic[:], 0); n >= 2 && (string(magic[:2]) == "\x1f\x8b" || string(magic[:]) == "\x28\xb5\x2f\xfd") {
		return errorf(Invalid, "decompress it first, with gunzip or unzstd", "the archive is compressed as a whole")
	}
	size, err := a.f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := a.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	tr := tar.NewReader(a.f)
	for n := 0; ; n++ {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return errorf(Corrupt, remedyCorrupt, "it is not a readable tar archive: %w", err)
		}
		if n >= maxArchiveEntries {
			return errorf(Invalid, "pass a docker-save or OCI archive; a bare root file system has to become an image first, for instance with docker import", "the archive has more than %d entries, so it is no image archive", maxArchiveEntries)
		}
		e := archiveEntry{size: hdr.Size}
		name := path.Clean(strings.TrimLeft(hdr.Name, "/"))
		switch hdr.Typeflag {
		case tar.TypeReg, tar.TypeRegA: //nolint:staticcheck // TypeRegA is what old archives have
			if e.offset, err = a.f.Seek(0, io.SeekCurrent); err != nil {
				return err
			}
			if e.size > size-e.offset {
				return errorf(Corrupt, remedyCorrupt, "the archive ends in the middle of %s", name)
			}
		case tar.TypeSymlink:
			e.link = path.Join(path.Dir(name), hdr.Linkname) //nolint:gosec // only compared with names of the archive, never opened
		case tar.TypeLink:
			e.link = path.Clean(hdr.Linkname)
		default:
			continue
		}
		a.table[name] = e
	}
}

func (a *archive) open(name string) (io.ReadCloser, int64, error) {
	e, ok := a.table[path.Clean(name)]
	for n := 0; ok && e.link != ""; n++ {
		if n > maxLinks {
			return nil, 0, fmt.Errorf("%s: too many links", name)
		}
		e, ok = a.table[e.link]
	}
	if !ok {
		return nil, 0, fmt.Errorf("%s: %w", name, errMissing)
	}
	return io.NopCloser(io.NewSectionReader(a.f, e.offset, e.size)), e.size, nil
}

func (a *archive) Close() error { return a.f.Close() }

// local is an image source in files.
type local struct {
	files
	names map[v1.Hash]string // docker save: where each config and layer lies; nil in OCI layouts, where the digest says it
}

func (l *local) blobName(h v1.Hash) (string, error) {
	if l.names != nil {
		name, ok := l.names[h]
		if !ok {
			return "", errMissing
		}
		return name, nil
	}
	if h.Algorithm != "sha256" || len(h.Hex) != 64 || strings.Trim(h.Hex, "0123456789abcdef") != "" {
		return "", errorf(Corrupt, remedyCorrupt, "%q is no digest that is supported", h)
	}
	return "blobs/sha256/" + h.Hex, nil
}

func (l *local) blob(_ context.Context, desc v1.Descriptor) (io.ReadCloser, error) {
	name, err := l.blobName(desc.Digest)
	if err != nil {
		return nil, asError(Corrupt, remedyCorrupt, err)
	}
	r, _, err := l.open(name)
	if errors.Is(err, errMissing) {
		return nil, errorf(Corrupt, "export the image again, with all its layers", "it is incomplete: %w", err)
	}
	if err != nil {
		return nil, asError(Corrupt, remedyCorrupt, err)
	}
	return r, nil
}

func (l *local) manifest(ctx context.Context, desc v1.Descriptor) ([]byte, error) {
	r, err := l.blob(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readSmall(r)
}

func (l *local) document(name string) ([]byte, error) {
	r, _, err := l.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readSmall(r)
}

// openLocal opens a layout or archive and finds the image in it. The caller closes the returned files, also when src is of
// no more interest.
func openLocal(ctx context.Context, ref reference, arch string) (found, io.Closer, error) {
	var fls files
	if ref.isDir {
		root, err := os.OpenRoot(ref.path)
		if err != nil {
			return found{}, nil, asError(NotFound, "check the path", err)
		}
		fls = directory{root}
	} else {
		a, err := openArchive(ref.path)
		if err != nil {
			return found{}, nil, asError(NotFound, "check the path", err)
		}
		fls = a
	}
	l := &local{files: fls}
	f, err := l.find(ctx, ref, arch)
	if err != nil {
		fls.Close()
		return found{}, nil, err
	}
	return f, fls, nil
}

func (l *local) find(ctx context.Context, ref reference, arch string) (found, error) {
	// docker save writes both documents since version 25; its index may name platforms that it has not saved, and its
	// manifest.json knows the tags.
	raw, err := l.document("manifest.json")
	if err == nil && !ref.isDir {
		return l.findDocker(raw, ref.inside)
	}
	if err != nil && !errors.Is(err, errMissing) {
		return found{}, asError(Corrupt, remedyCorrupt, err)
	}
	raw, err = l.document("index.json")
	if errors.Is(err, errMissing) {
		return found{}, errorf(Invalid, "pass a docker-save archive, an OCI archive or an OCI layout; a bare root file system has to become an image first, for instance with docker import",
			"%s holds neither manifest.json nor index.json", ref.path)
	}
	if err != nil {
		return found{}, asError(Corrupt, remedyCorrupt, err)
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(raw, &index); err != nil {
		return found{}, errorf(Corrupt, remedyCorrupt, "index.json is not readable: %w", err)
	}
	if ref.inside != "" {
		if raw, err = selectTag(index, ref.inside); err != nil {
			return found{}, err
		}
	}
	return choose(ctx, l, raw, types.OCIImageIndex, arch)
}

// selectTag leaves of an index only what bears a name, or has a digest.
func selectTag(index v1.IndexManifest, tag string) ([]byte, error) {
	var names []string
	kept := index.Manifests[:0:0]
	for _, d := range index.Manifests {
		tagged := d.Annotations["org.opencontainers.image.ref.name"]
		full := d.Annotations["io.containerd.image.name"]
		if tag == tagged || tag == full || tag == d.Digest.String() || strings.HasSuffix(tagged, ":"+tag) || strings.HasSuffix(full, ":"+tag) {
			kept = append(kept, d)
		} else if tagged != "" {
			names = append(names, tagged)
		}
	}
	if len(kept) == 0 {
		if len(names) == 0 {
			return nil, errorf(NotFound, "leave the tag out", "there is no image %q, and none has a name", tag)
		}
		return nil, errorf(NotFound, "use one of these", "there is no image %q, only %s", tag, strings.Join(names, ", "))
	}
	index.Manifests = kept
	return json.Marshal(index)
}

// findDocker reads docker save's own format. It has no manifest with a digest, so one is made: of the config and of the
// uncompressed layers that the config names by digest. It says as much as a registry's, and costs no look at the layers.
func (l *local) findDocker(raw []byte, tag string) (found, error) {
	var images []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(raw, &images); err != nil {
		return found{}, errorf(Corrupt, remedyCorrupt, "manifest.json is not readable: %w", err)
	}
	chosen, tags := -1, []string{}
	for i, img := range images {
		tags = append(tags, img.RepoTags...)
		for _, t := range img.RepoTags {
			if tag != "" && sameTag(t, tag) {
				chosen = i
			}
		}
	}
	switch {
	case len(images) == 0:
		return found{}, errorf(Corrupt, remedyCorrupt, "manifest.json lists no image")
	case tag == "" && len(images) > 1:
		return found{}, errorf(Invalid, "add the one you mean after a colon", "the archive holds %d images: %s", len(images), strings.Join(tags, ", "))
	case tag == "":
		chosen = 0
	case chosen < 0:
		return found{}, errorf(NotFound, "use one of these", "there is no image %q, only %s", tag, strings.Join(tags, ", "))
	}
	img := images[chosen]
	rawConfig, err := l.document(img.Config)
	if err != nil {
		return found{}, asError(Corrupt, remedyCorrupt, err)
	}
	var cfg v1.ConfigFile
	if err := json.Unmarshal(rawConfig, &cfg); err != nil {
		return found{}, errorf(Corrupt, remedyCorrupt, "its config is not readable: %w", err)
	}
	if len(cfg.RootFS.DiffIDs) != len(img.Layers) {
		return found{}, errorf(Corrupt, remedyCorrupt, "its manifest has %d layers and its config %d", len(img.Layers), len(cfg.RootFS.DiffIDs))
	}
	digest := hashOf(rawConfig)
	// docker save calls the config by its digest.
	if base := strings.TrimSuffix(path.Base(img.Config), ".json"); len(base) == 64 && base != digest.Hex {
		return found{}, errorf(Corrupt, remedyCorrupt, "its config has digest %s instead of sha256:%s", digest, base)
	}
	l.names = map[v1.Hash]string{digest: img.Config}
	m := v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.DockerManifestSchema2,
		Config:        v1.Descriptor{MediaType: types.DockerConfigJSON, Size: int64(len(rawConfig)), Digest: digest},
		Layers:        []v1.Descriptor{},
	}
	for i, id := range cfg.RootFS.DiffIDs {
		r, size, err := l.open(img.Layers[i])
		if err != nil {
			return found{}, errorf(Corrupt, "export the image again, with all its layers", "it is incomplete: %w", err)
		}
		r.Close()
		l.names[id] = img.Layers[i]
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: types.DockerUncompressedLayer, Size: size, Digest: id})
	}
	if raw, err = json.Marshal(m); err != nil {
		return found{}, asError(Corrupt, remedyCorrupt, err)
	}
	return found{src: l, raw: raw, digest: hashOf(raw), byDiffID: true}, nil
}

// sameTag compares what an archive says with what a caller wrote, in any of the ways to write it.
func sameTag(have, want string) bool {
	if have == want || strings.HasSuffix(have, ":"+want) {
		return true
	}
	a, err1 := name.NewTag(have)
	b, err2 := name.NewTag(want)
	return err1 == nil && err2 == nil && a.Name() == b.Name()
}
