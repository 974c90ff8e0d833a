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
	maxManifest = 8 << 20 // manifests, indexes and configs; the largest seen in the wild are a few hundred KiB
	maxNesting  = 4       // indexes within indexes
	maxLayers   = 1024    // docker stops at 127
)

// source is a place where images lie: a registry, a layout directory or an archive.
type source interface {
	// manifest returns the bytes of the manifest or index that desc names.
	manifest(ctx context.Context, desc v1.Descriptor) ([]byte, error)
	// blob opens a config or layer. Its content is verified by the caller.
	blob(ctx context.Context, desc v1.Descriptor) (io.ReadCloser, error)
}

// found is one image in a source: its manifest, not yet its layers.
type found struct {
	src    source
	raw    []byte // the manifest's bytes, which make its digest
	digest v1.Hash

	// byDiffID says that layers are named by the digest of their uncompressed content only, as in docker-save archives.
	byDiffID bool
}

func hashOf(b []byte) v1.Hash {
	sum := sha256.Sum256(b)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

// choose follows indexes down to the manifest for arch. raw has been verified.
func choose(ctx context.Context, src source, raw []byte, mt types.MediaType, arch string) (found, error) {
	for range maxNesting {
		var head struct {
			MediaType types.MediaType `json:"mediaType"`
			Manifests []v1.Descriptor `json:"manifests"`
			Layers    []v1.Descriptor `json:"layers"`
			Config    *v1.Descriptor  `json:"config"`
		}
		if err := json.Unmarshal(raw, &head); err != nil {
			return found{}, errorf(Corrupt, remedyCorrupt, "its manifest is not readable: %w", err)
		}
		if head.MediaType == "" {
			head.MediaType = mt
		}
		switch {
		case head.Config != nil && len(head.Manifests) == 0:
			return found{src: src, raw: raw, digest: hashOf(raw)}, nil
		case len(head.Manifests) == 0:
			return found{}, errorf(Invalid, "name a container image", "it is not a container image (media type %q)", head.MediaType)
		}
		desc, err := pick(head.Manifests, arch)
		if err != nil {
			return found{}, err
		}
		if raw, err = src.manifest(ctx, desc); err != nil {
			return found{}, err
		}
		if got := hashOf(raw); got != desc.Digest {
			return found{}, errorf(Corrupt, remedyCorrupt, "its manifest has digest %s instead of %s", got, desc.Digest)
		}
		mt = desc.MediaType
	}
	return found{}, errorf(Corrupt, remedyCorrupt, "its indexes are nested more than %d deep", maxNesting)
}

// variants in the order in which they are taken: what runs on every machine of the architecture comes first.
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
			if len(all) == 1 { // a layout with one image need not say; its config is looked at later
				return d, nil
			}
		case d.Platform.OS == "linux" && d.Platform.Architecture == arch:
			fits = append(fits, d)
		case d.Platform.OS != "unknown": // attestations call themselves that
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
		return v1.Descriptor{}, errorf(Invalid, "name one of its images by digest", "its index has %d entries and none says for which platform it is", len(all))
	}
	slices.Sort(others)
	return v1.Descriptor{}, errorf(Arch, "use an image built for this machine", "it has no image for linux/%s, only for %s", arch, strings.Join(slices.Compact(others), ", "))
}

// details reads and checks manifest and config.
func (f found) details(ctx context.Context, arch string) (*v1.Manifest, *v1.ConfigFile, []byte, error) {
	m, err := v1.ParseManifest(bytes.NewReader(f.raw))
	if err != nil {
		return nil, nil, nil, errorf(Corrupt, remedyCorrupt, "its manifest is not readable: %w", err)
	}
	switch m.Config.MediaType {
	case types.DockerConfigJSON, types.OCIConfigJSON, "":
	default:
		return nil, nil, nil, errorf(Invalid, "name a container image", "it is not a container image but a %q", m.Config.MediaType)
	}
	if len(m.Layers) > maxLayers {
		return nil, nil, nil, errorf(TooLarge, remedyLarge, "it has %d layers, the limit is %d", len(m.Layers), maxLayers)
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
		return nil, nil, nil, errorf(Corrupt, remedyCorrupt, "its config has digest %s instead of %s", got, m.Config.Digest)
	}
	cfg, err := parseConfig(raw, arch)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(cfg.RootFS.DiffIDs) != len(m.Layers) {
		return nil, nil, nil, errorf(Corrupt, remedyCorrupt, "its manifest has %d layers and its config %d", len(m.Layers), len(cfg.RootFS.DiffIDs))
	}
	return m, cfg, raw, nil
}

// parseConfig reads a config and checks that it is for this machine. What it does not say is taken as fitting: images made
// from nothing often say nothing.
func parseConfig(raw []byte, arch string) (*v1.ConfigFile, error) {
	cfg, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, errorf(Corrupt, remedyCorrupt, "its config is not readable: %w", err)
	}
	if (cfg.OS != "" && cfg.OS != "linux") || (cfg.Architecture != "" && cfg.Architecture != arch) {
		return nil, errorf(Arch, "use an image built for this machine", "it is made for %s/%s, this machine needs linux/%s", cfg.OS, cfg.Architecture, arch)
	}
	return cfg, nil
}

// readSmall reads a document whose size somebody else chose.
func readSmall(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return nil, asError(Corrupt, remedyCorrupt, fmt.Errorf("reading a manifest or config: %w", err))
	}
	if len(b) > maxManifest {
		return nil, errorf(TooLarge, remedyCorrupt, "its manifest or config is larger than %d bytes", maxManifest)
	}
	return b, nil
}

// errMissing says that a layout or archive lacks a file.
var errMissing = errors.New("file is missing")
