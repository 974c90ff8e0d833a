package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	maxManifest = 8 << 20 // size of a manifest, index or config; the largest known ones have a few hundred KiB
	maxNesting  = 4       // depth of indexes in indexes
	maxLayers   = 1024    // the limit of docker is 127
)

// source contains images: a registry, a layout directory or an archive.
type source interface {
	// manifest returns the bytes of the manifest or index of desc.
	manifest(ctx context.Context, desc v1.Descriptor) ([]byte, error)
	// blob opens a config or layer. The caller verifies its content.
	blob(ctx context.Context, desc v1.Descriptor) (io.ReadCloser, error)
}

// found is an image in a source. Its manifest has been read, and its layers have not.
type found struct {
	src    source
	raw    []byte // the bytes of the manifest
	digest v1.Hash

	// byDiffID is set if only the digests of the uncompressed layers are known, as in docker-save archives.
	byDiffID bool
}

func hashOf(b []byte) v1.Hash {
	sum := sha256.Sum256(b)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

// choose returns the image for arch. raw is a verified manifest, or an index whose entries choose follows to a
// manifest.
func choose(ctx context.Context, src source, raw []byte, mt types.MediaType, arch string) (found, error) {
	for range maxNesting {
		var head struct {
			MediaType types.MediaType `json:"mediaType"`
			Manifests []v1.Descriptor `json:"manifests"`
			Layers    []v1.Descriptor `json:"layers"`
			Config    *v1.Descriptor  `json:"config"`
		}
		if err := json.Unmarshal(raw, &head); err != nil {
			return found{}, errorf(Corrupt, remedyCorrupt, "invalid manifest: %w", err)
		}
		if head.MediaType == "" {
			head.MediaType = mt
		}
		switch {
		case head.Config != nil && len(head.Manifests) == 0:
			return found{src: src, raw: raw, digest: hashOf(raw)}, nil
		case len(head.Manifests) == 0:
			return found{}, errorf(Invalid, "use a container image",
				"not a container image: media type %q", head.MediaType)
		}
		desc, err := pick(head.Manifests, arch)
		if err != nil {
			return found{}, err
		}
		if raw, err = src.manifest(ctx, desc); err != nil {
			return found{}, err
		}
		if got := hashOf(raw); got != desc.Digest {
			return found{}, errorf(Corrupt, remedyCorrupt, "the manifest has digest %s instead of %s", got, desc.Digest)
		}
		mt = desc.MediaType
	}
	return found{}, errorf(Corrupt, remedyCorrupt, "the indexes are nested more than %d deep", maxNesting)
}

// variants are the preferred variants of architectures. The variant that runs on every machine of the architecture is
// first.
var variants = map[string][]string{
	"amd64": {"", "v1"},
	"arm64": {"", "v8"},
	"arm":   {"v7", "v6", "v5", ""},
}

// pick selects the descriptor for linux on arch.
func pick(all []v1.Descriptor, arch string) (v1.Descriptor, error) {
	var fits []v1.Descriptor
	var others []string
	for _, d := range all {
		switch {
		case d.Platform == nil || (d.Platform.OS == "" && d.Platform.Architecture == ""):
			if len(all) == 1 { // a layout with one image may omit the platform; parseConfig checks it
				return d, nil
			}
		case d.Platform.OS == "linux" && d.Platform.Architecture == arch:
			fits = append(fits, d)
		case d.Platform.OS != "unknown": // attestations have this platform
			others = append(others, d.Platform.String())
		}
	}
	order, ok := variants[arch]
	if !ok {
		order = []string{""}
	}
	for _, v := range order {
		if i := slices.IndexFunc(fits, func(d v1.Descriptor) bool { return d.Platform.Variant == v }); i >= 0 {
			return fits[i], nil
		}
	}
	if len(fits) > 0 {
		return fits[0], nil
	}
	if len(others) == 0 {
		return v1.Descriptor{}, errorf(Invalid, "use the digest of one of its images",
			"the index has %d entries, all without a platform", len(all))
	}
	slices.Sort(others)
	return v1.Descriptor{}, errorf(Arch, "use an image built for this machine",
		"no image for linux/%s, only for %s", arch, strings.Join(slices.Compact(others), ", "))
}

// details reads and checks the manifest and the config. It returns both, and the bytes of the config.
func (f found) details(ctx context.Context, arch string) (*v1.Manifest, *v1.ConfigFile, []byte, error) {
	m, err := v1.ParseManifest(bytes.NewReader(f.raw))
	if err != nil {
		return nil, nil, nil, errorf(Corrupt, remedyCorrupt, "invalid manifest: %w", err)
	}
	switch m.Config.MediaType {
	case types.DockerConfigJSON, types.OCIConfigJSON, "":
	default:
		return nil, nil, nil, errorf(Invalid, "use a container image", "not a container image: %q", m.Config.MediaType)
	}
	if len(m.Layers) > maxLayers {
		return nil, nil, nil, errorf(TooLarge, remedyLarge,
			"%d layers exceed the limit of %d", len(m.Layers), maxLayers)
	}
	r, err := f.src.blob(ctx, m.Config)
	if err != nil {
		return nil, nil, nil, err
	}
	raw, err := readSmall(r)
	r.Close()
	if err != nil {
		return nil, nil, nil, err
	}
	if got := hashOf(raw); got != m.Config.Digest {
		return nil, nil, nil, errorf(Corrupt, remedyCorrupt,
			"the config has digest %s instead of %s", got, m.Config.Digest)
	}
	cfg, err := parseConfig(raw, arch)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(cfg.RootFS.DiffIDs) != len(m.Layers) {
		return nil, nil, nil, errorf(Corrupt, remedyCorrupt,
			"the manifest has %d layers, but the config has %d", len(m.Layers), len(cfg.RootFS.DiffIDs))
	}
	return m, cfg, raw, nil
}

// parseConfig parses a config and checks that the image is for linux on arch. Missing values are accepted, because
// images built from scratch often lack them.
func parseConfig(raw []byte, arch string) (*v1.ConfigFile, error) {
	cfg, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, errorf(Corrupt, remedyCorrupt, "invalid config: %w", err)
	}
	if (cfg.OS != "" && cfg.OS != "linux") || (cfg.Architecture != "" && cfg.Architecture != arch) {
		return nil, errorf(Arch, "use an image built for this machine",
			"made for %s/%s, but this machine needs linux/%s", cfg.OS, cfg.Architecture, arch)
	}
	return cfg, nil
}

// readSmall reads a manifest or config of an untrusted source. It limits the size to maxManifest.
func readSmall(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return nil, asError(Corrupt, remedyCorrupt, fmt.Errorf("read manifest or config: %w", err))
	}
	if len(b) > maxManifest {
		return nil, errorf(TooLarge, remedyCorrupt, "the manifest or config is larger than %d bytes", maxManifest)
	}
	return b, nil
}

// errMissing is the error for a file that a layout or archive does not have.
var errMissing = errors.New("missing file")
