// Package image unpacks images to directories that can be the read-only root file system of many sandboxes.
//
// A reference names an image in a registry (python:3.12-slim, ghcr.io/a/b@sha256:…), in an OCI layout
// (oci:/path[:tag]), or in an archive made by docker save, podman, skopeo or buildx (oci-archive:/path, tar:/path, or
// only /path/image.tar). [Store.Get] unpacks an image once, into a cache that is addressed by the manifest's digest:
//
//	<Dir>/images/<sha256>/rootfs/        the unpacked layers
//	                      config.json    the image's config, byte for byte
//	                      manifest.json  its manifest; its hash is the directory's name
//	<Dir>/refs/<sha256>.json             the last known digest of a reference
//	<Dir>/locks/<sha256>                 locked while that image is unpacked
//	<Dir>/tmp/<sha256>-<random>/         an image that is being unpacked
//
// An image appears in images/ by one rename and is complete from then on. A process that dies before the rename leaves
// a directory in tmp/. A later process that gets the lock of that digest knows that no other process unpacks the image,
// and removes the directory.
//
// Layers are not trusted, even if their digests are correct: see extract.go. All bytes are verified, compressed and
// uncompressed, before Get returns the image. Symlinks in rootfs are relative to rootfs.
package image

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	api "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/filelock"
)

// The default limits for the size of an unpacked image.
const (
	DefaultMaxBytes   = 32 << 30
	DefaultMaxEntries = 2_000_000
)

// progressEvery is the time between two calls of the progress callback.
const progressEvery = 100 * time.Millisecond

// zstdWindow is the maximum size of the decompression window, which is kept in memory. The zstd command has the same
// limit.
const zstdWindow = 128 << 20

// Store is a cache of unpacked images. Any number of processes may use the same directory.
type Store struct {
	// Dir is the cache directory. It is made if it is missing, accessible only to this user.
	Dir string
	// NoSync skips the flush to disk before an image counts as complete. A power failure may then leave a corrupt
	// image.
	NoSync bool
}

// Options are the options of [Store.Get]. Zero fields take their defaults.
type Options struct {
	Arch       string // as in GOARCH; empty: the architecture of this machine
	MaxBytes   int64  // limit for the uncompressed layers together, and for the files in them together
	MaxEntries int64  // limit for files and directories in all layers
	// Progress is called from time to time, in the goroutine that called Get.
	Progress func(Progress)
}

// Phase is what Get is doing.
type Phase string

// The phases of Get, in order. For an image in the cache, Get has only the first and the last.
const (
	PhaseResolve Phase = "resolve" // determining the digest of the reference
	PhaseWait    Phase = "wait"    // another process is unpacking it
	PhaseUnpack  Phase = "unpack"  // reading and unpacking layers
	PhaseDone    Phase = "done"
)

// Progress is the progress of Get.
type Progress struct {
	Phase Phase
	Bytes int64 // compressed bytes of all layers read so far
	Total int64 // compressed bytes of all layers
}

// Image is an unpacked image.
type Image struct {
	Digest string // sha256:… of the manifest
	RootFS string // directory; must be mounted read-only
	Config Config
}

// Config has the settings of an image for its processes.
type Config struct {
	Env        []string
	WorkingDir string
	User       string // as in a Dockerfile: a name or number, with or without a group
}

// Get returns the image of a reference. If the image is not in the cache, Get unpacks it. Errors are of type
// *[api.Error], or the error of ctx.
func (s *Store) Get(ctx context.Context, ref string, opts Options) (*Image, error) {
	img, err := s.get(ctx, ref, opts.withDefaults())
	if err == nil {
		opts.report(Progress{Phase: PhaseDone})
		return img, nil
	}
	var e *api.Error
	known := errors.As(err, &e)
	// After a cancellation, the error of the interrupted step is meaningless. An exception is a registry that did not
	// answer before the deadline.
	unreachable := known && e.Code == Unreachable
	if ctxErr := ctx.Err(); ctxErr != nil && !(unreachable && errors.Is(ctxErr, context.DeadlineExceeded)) {
		return nil, fmt.Errorf("image %q: %w", ref, ctxErr)
	}
	if !known {
		errors.As(cacheError(err), &e)
	}
	out := *e
	out.Op = opOf(ref)
	return nil, &out
}

func (o Options) withDefaults() Options {
	if o.Arch == "" {
		o.Arch = runtime.GOARCH
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = DefaultMaxEntries
	}
	return o
}

// report calls the progress callback, if there is one.
func (o Options) report(p Progress) {
	if o.Progress != nil {
		o.Progress(p)
	}
}

func (s *Store) get(ctx context.Context, ref string, opts Options) (*Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	opts.report(Progress{Phase: PhaseResolve})
	parsed, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	var f found
	if parsed.registry == nil {
		// Local files are always read, although the cache may know their digest. Reading an index or the headers of a
		// tar archive is cheap and always right, while comparing modification times is not.
		fnd, files, err := openLocal(ctx, parsed, opts.Arch)
		if err != nil {
			return nil, err
		}
		defer files.Close()
		f = fnd
	} else {
		if img, err := s.cached(parsed, opts); img != nil || err != nil {
			return img, err
		}
		reg, closeIdle, err := openRegistry(parsed.registry)
		if err != nil {
			return nil, err
		}
		defer closeIdle()
		if f, err = reg.find(ctx, parsed.registry, opts.Arch); err != nil {
			return nil, err
		}
	}
	img, err := s.open(f.digest.Hex, opts.Arch)
	if err != nil {
		return nil, err
	}
	if img == nil {
		if img, err = s.unpackLocked(ctx, f, opts); err != nil {
			return nil, err
		}
	}
	return img, s.saveRef(parsed.key(), opts.Arch, f.digest.Hex)
}

// cached returns the image of a registry reference if it is in the cache, or nil.
func (s *Store) cached(ref reference, opts Options) (*Image, error) {
	hex, ok := s.loadRef(ref.key(), opts.Arch)
	if !ok {
		d, isDigest := ref.registry.(name.Digest)
		if !isDigest {
			return nil, nil
		}
		hex = d.DigestStr()[len("sha256:"):]
	}
	return s.open(hex, opts.Arch)
}

// unpackLocked unpacks f while it holds the digest's lock, unless another process unpacks it first.
func (s *Store) unpackLocked(ctx context.Context, f found, opts Options) (*Image, error) {
	file := s.lockFile(f.digest.Hex)
	lock, err := filelock.Try(file)
	if errors.Is(err, filelock.ErrHeld) {
		opts.report(Progress{Phase: PhaseWait})
		lock, err = filelock.Acquire(ctx, file)
	}
	if err != nil {
		return nil, cacheError(err)
	}
	defer lock.Release()
	if img, err := s.open(f.digest.Hex, opts.Arch); img != nil || err != nil {
		return img, err
	}
	s.sweep(f.digest.Hex)
	s.sweepAll()
	// An image that open did not return is corrupt, if it exists.
	if err := s.discard(f.digest.Hex); err != nil {
		return nil, err
	}
	if err := s.unpack(ctx, f, opts); err != nil {
		return nil, err
	}
	img, err := s.open(f.digest.Hex, opts.Arch)
	if err == nil && img == nil {
		err = errorf(Cache, "check the disk for errors", "the image disappeared from the cache")
	}
	return img, err
}

// unpack makes images/<digest>.
//
// Preconditions: the digest's lock is held, and images/<digest> does not exist.
func (s *Store) unpack(ctx context.Context, f found, opts Options) (err error) {
	m, cfg, rawConfig, err := f.details(ctx, opts.Arch)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(s.path("tmp"), f.digest.Hex+"-")
	if err != nil {
		return cacheError(err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp) // after an error, the next sweep removes the rest
		}
	}()
	rootfs := filepath.Join(tmp, "rootfs")
	if err := os.Mkdir(rootfs, 0o755); err != nil {
		return cacheError(err)
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return cacheError(err)
	}
	defer root.Close()

	u := &unpacking{x: newExtractor(root, opts.MaxBytes, opts.MaxEntries), opts: opts}
	u.progress = Progress{Phase: PhaseUnpack}
	for _, l := range m.Layers {
		u.progress.Total += l.Size
	}
	for i, desc := range m.Layers {
		if err := u.layer(ctx, f, desc, cfg.RootFS.DiffIDs[i]); err != nil {
			return withLocation(fmt.Sprintf("layer %d of %d", i+1, len(m.Layers)), err)
		}
	}
	u.x.finish()
	// Every user inside must be able to enter the root directory, whatever mode the layers have for it.
	if err := root.Chmod(".", 0o755); err != nil {
		return cacheError(err)
	}

	for file, content := range map[string][]byte{"config.json": rawConfig, "manifest.json": f.raw} {
		if err := os.WriteFile(filepath.Join(tmp, file), content, 0o600); err != nil {
			return cacheError(err)
		}
	}
	if !s.NoSync {
		if err := syncTree(tmp); err != nil {
			return cacheError(err)
		}
	}
	return cacheError(os.Rename(tmp, s.imageDir(f.digest.Hex)))
}

// unpacking is the state of one unpack.
type unpacking struct {
	x          *extractor
	opts       Options
	progress   Progress
	reportedAt time.Time // last call of the progress callback
	stream     int64     // uncompressed bytes of all layers
}

// report reports the progress. Unless force is set, it does so at most every progressEvery.
func (u *unpacking) report(force bool) {
	if now := time.Now(); force || now.Sub(u.reportedAt) >= progressEvery {
		u.reportedAt = now
		u.opts.report(u.progress)
	}
}

// layer reads, verifies and unpacks one layer. It also reads the bytes after the tar archive, because the digests cover
// them.
func (u *unpacking) layer(ctx context.Context, f found, desc v1.Descriptor, diffID v1.Hash) error {
	if err := checkHash(desc.Digest); err != nil {
		return err
	}
	if err := checkHash(diffID); err != nil {
		return err
	}
	u.report(true)
	body, err := f.src.blob(ctx, desc)
	if err != nil {
		return err
	}
	defer body.Close()
	raw := &verifier{
		r:       body,
		hash:    sha256.New(),
		max:     desc.Size,
		code:    Corrupt,
		remedy:  remedyCorrupt,
		message: "larger than the manifest says",
	}
	raw.count = func(n int) {
		u.progress.Bytes += int64(n)
		u.report(false)
	}
	plain, closePlain, err := decompress(raw)
	if err != nil {
		return err
	}
	defer closePlain()
	content := &verifier{
		r:       plain,
		hash:    sha256.New(),
		max:     u.opts.MaxBytes - u.stream,
		code:    TooLarge,
		remedy:  remedyLarge,
		message: fmt.Sprintf("the layers unpack to more than %d bytes", u.opts.MaxBytes),
	}
	if err := u.x.apply(ctx, content); err != nil {
		return err
	}
	for _, v := range []*verifier{content, raw} {
		if _, err := copyAll(ctx, io.Discard, v, u.x.buf); err != nil {
			return asError(Corrupt, remedyCorrupt, err)
		}
	}
	u.stream += content.n
	if !f.byDiffID {
		if raw.n != desc.Size {
			return errorf(Corrupt, remedyCorrupt, "it has %d bytes, but the manifest says %d", raw.n, desc.Size)
		}
		if got := raw.sum(); got != desc.Digest {
			return errorf(Corrupt, remedyCorrupt, "it has digest %s instead of %s", got, desc.Digest)
		}
	}
	if got := content.sum(); got != diffID {
		return errorf(Corrupt, remedyCorrupt, "the content has digest %s instead of %s", got, diffID)
	}
	u.report(true)
	return nil
}

// checkHash returns an error if h is not a sha256 digest.
func checkHash(h v1.Hash) error {
	if h.Algorithm != "sha256" || len(h.Hex) != sha256.Size*2 {
		return errorf(Corrupt, remedyCorrupt, "unsupported digest %q", h)
	}
	return nil
}

// verifier is a reader that hashes and counts the bytes read through it. Above max bytes it returns an error.
type verifier struct {
	r      io.Reader
	hash   hash.Hash
	n, max int64
	count  func(int) // called with the number of bytes of each Read; may be nil
	// code, remedy and message are those of the error above max bytes.
	code    api.Code
	remedy  string
	message string
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.n += int64(n)
	v.hash.Write(p[:n])
	if v.count != nil {
		v.count(n)
	}
	if v.n > v.max {
		return n, errorf(v.code, v.remedy, "%s", v.message)
	}
	return n, err
}

func (v *verifier) sum() v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(v.hash.Sum(nil))}
}

// decompress returns a reader of the decompressed content. It detects the compression by the first bytes, because media
// types are often wrong, and docker save writes none.
func decompress(r io.Reader) (io.Reader, func(), error) {
	br := bufio.NewReaderSize(r, 64<<10)
	magic, err := br.Peek(4)
	if err != nil && err != io.EOF {
		return nil, nil, asError(Corrupt, remedyCorrupt, err)
	}
	switch {
	case len(magic) >= 2 && string(magic[:2]) == "\x1f\x8b":
		zr, err := gzip.NewReader(br)
		if err != nil {
			return nil, nil, asError(Corrupt, remedyCorrupt, err)
		}
		return zr, func() { zr.Close() }, nil
	case string(magic) == "\x28\xb5\x2f\xfd":
		zr, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			return nil, nil, asError(Corrupt, remedyCorrupt, err)
		}
		return zr, zr.Close, nil
	}
	return br, func() {}, nil
}
