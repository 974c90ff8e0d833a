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

// maxArchiveEntries is the maximum number of entries of an image archive. Real archives have a few per layer.
const maxArchiveEntries = 100_000

// files gives access to the files of a directory or an archive by name.
type files interface {
	// open returns a file and its size. If the file does not exist, the error is errMissing.
	open(name string) (io.ReadCloser, int64, error)
	Close() error
}

// directory is an OCI layout on disk. The names of its files come from its own index and are not trusted, so it is an
// os.Root.
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

// archive is a tar file with a table of its entries. One pass over the headers makes the table; the reader seeks over
// the content. After that, each file is read in place. In contrast, the tarball package of go-containerregistry scans
// the archive again for each file, and compresses every layer twice to compute a digest that is not needed here.
type archive struct {
	f     *os.File
	table map[string]archiveEntry
}

type archiveEntry struct {
	offset, size int64
	link         string // name of the entry that has the content: docker save links equal layers; empty: this entry
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

// scan reads the headers of the archive and fills the table.
func (a *archive) scan() error {
	var magic [4]byte
	n, _ := a.f.ReadAt(magic[:], 0)
	if n >= 2 && (string(magic[:2]) == "\x1f\x8b" || string(magic[:]) == "\x28\xb5\x2f\xfd") {
		return errorf(Invalid, "decompress it first, with gunzip or unzstd", "the archive itself is compressed")
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
			return errorf(Corrupt, remedyCorrupt, "invalid tar archive: %w", err)
		}
		if n >= maxArchiveEntries {
			return errorf(Invalid, remedyFormat, "not an image archive: more than %d entries", maxArchiveEntries)
		}
		e := archiveEntry{size: hdr.Size}
		name := path.Clean(strings.TrimLeft(hdr.Name, "/"))
		switch hdr.Typeflag {
		case tar.TypeReg, tar.TypeRegA: //nolint:staticcheck // old archives have TypeRegA
			if e.offset, err = a.f.Seek(0, io.SeekCurrent); err != nil {
				return err
			}
			if e.size > size-e.offset {
				return errorf(Corrupt, remedyCorrupt, "the archive ends in the middle of %s", name)
			}
		case tar.TypeSymlink:
			e.link = path.Join(path.Dir(name), hdr.Linkname) //nolint:gosec // only a key of the table, never opened
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

// local is an image source in a layout or an archive.
type local struct {
	files
	// names has the file names of configs and layers in an archive of docker save. It is nil in an OCI layout, where
	// the digest is the name.
	names map[v1.Hash]string
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
		return "", errorf(Corrupt, remedyCorrupt, "unsupported digest %q", h)
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
		return nil, errorf(Corrupt, "export the image again, with all its layers", "incomplete image: %w", err)
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

// document reads a JSON file of the layout or archive.
func (l *local) document(name string) ([]byte, error) {
	r, _, err := l.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readSmall(r)
}

// openLocal opens a layout or archive and finds the image in it. The caller must close the returned Closer, and cannot
// use the image after that.
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

// find finds the image of ref in the layout or archive.
func (l *local) find(ctx context.Context, ref reference, arch string) (found, error) {
	// Since version 25, docker save writes both documents. manifest.json is preferred: it has the tags, and index.json
	// may list platforms that were not saved.
	raw, err := l.document("manifest.json")
	if err == nil && !ref.isDir {
		return l.findDocker(raw, ref.inside)
	}
	if err != nil && !errors.Is(err, errMissing) {
		return found{}, asError(Corrupt, remedyCorrupt, err)
	}
	raw, err = l.document("index.json")
	if errors.Is(err, errMissing) {
		return found{}, errorf(Invalid, remedyFormat, "%s contains neither manifest.json nor index.json", ref.path)
	}
	if err != nil {
		return found{}, asError(Corrupt, remedyCorrupt, err)
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(raw, &index); err != nil {
		return found{}, errorf(Corrupt, remedyCorrupt, "invalid index.json: %w", err)
	}
	if ref.inside != "" {
		if raw, err = selectTag(index, ref.inside); err != nil {
			return found{}, err
		}
	}
	return choose(ctx, l, raw, types.OCIImageIndex, arch)
}

// selectTag returns the index with only those images whose name or digest is tag.
func selectTag(index v1.IndexManifest, tag string) ([]byte, error) {
	var names []string
	kept := index.Manifests[:0:0]
	for _, d := range index.Manifests {
		tagged := d.Annotations["org.opencontainers.image.ref.name"]
		full := d.Annotations["io.containerd.image.name"]
		if tag == tagged || tag == full || tag == d.Digest.String() ||
			strings.HasSuffix(tagged, ":"+tag) || strings.HasSuffix(full, ":"+tag) {
			kept = append(kept, d)
		} else if tagged != "" {
			names = append(names, tagged)
		}
	}
	if len(kept) == 0 {
		if len(names) == 0 {
			return nil, errorf(NotFound, "leave the tag out", "image %q not found: the images have no names", tag)
		}
		return nil, errorf(NotFound, "use one of these", "image %q not found, only %s", tag, strings.Join(names, ", "))
	}
	index.Manifests = kept
	return json.Marshal(index)
}

// findDocker finds the image in an archive of docker save. Such an archive has no manifest with a digest. findDocker
// makes one from the config and from the digests of the uncompressed layers, which are in the config. It is as good as
// a manifest of a registry, and the layers need not be read for it.
func (l *local) findDocker(raw []byte, tag string) (found, error) {
	var images []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(raw, &images); err != nil {
		return found{}, errorf(Corrupt, remedyCorrupt, "invalid manifest.json: %w", err)
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
		return found{}, errorf(Invalid, "append a colon and the name of one of them",
			"the archive contains %d images: %s", len(images), strings.Join(tags, ", "))
	case tag == "":
		chosen = 0
	case chosen < 0:
		return found{}, errorf(NotFound, "use one of these",
			"image %q not found, only %s", tag, strings.Join(tags, ", "))
	}
	img := images[chosen]
	rawConfig, err := l.document(img.Config)
	if err != nil {
		return found{}, asError(Corrupt, remedyCorrupt, err)
	}
	var cfg v1.ConfigFile
	if err := json.Unmarshal(rawConfig, &cfg); err != nil {
		return found{}, errorf(Corrupt, remedyCorrupt, "invalid config: %w", err)
	}
	if len(cfg.RootFS.DiffIDs) != len(img.Layers) {
		return found{}, errorf(Corrupt, remedyCorrupt,
			"the manifest has %d layers, but the config has %d", len(img.Layers), len(cfg.RootFS.DiffIDs))
	}
	digest := hashOf(rawConfig)
	// docker save uses the digest of the config as its file name.
	if base := strings.TrimSuffix(path.Base(img.Config), ".json"); len(base) == 64 && base != digest.Hex {
		return found{}, errorf(Corrupt, remedyCorrupt, "the config has digest %s instead of sha256:%s", digest, base)
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
			return found{}, errorf(Corrupt, "export the image again, with all its layers", "incomplete image: %w", err)
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

// sameTag reports whether a tag of an archive is the requested one. Short and full forms of a tag are equal.
func sameTag(have, want string) bool {
	if have == want || strings.HasSuffix(have, ":"+want) {
		return true
	}
	a, err1 := name.NewTag(have)
	b, err2 := name.NewTag(want)
	return err1 == nil && err2 == nil && a.Name() == b.Name()
}
