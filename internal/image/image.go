// Package image turns an image reference into a directory that can be the read-only root file system of many sandboxes.
//
// A reference names an image in a registry (python:3.12-slim, ghcr.io/a/b@sha256:…), in an OCI layout (oci:/path[:tag]), or
// in an archive made by docker save, podman, skopeo or buildx (oci-archive:/path, tar:/path, or just /path/image.tar).
// [Store.Get] unpacks it once into a cache that is addressed by the manifest's digest:
//
//	<Dir>/images/<sha256>/rootfs/        the unpacked layers
//	                      config.json    the image's config, byte for byte
//	                      manifest.json  its manifest; its hash is the directory's name
//	<Dir>/refs/<sha256>.json             which digest a reference meant last
//	<Dir>/locks/<sha256>                 held while that image is unpacked
//	<Dir>/tmp/<sha256>-<random>/         an image in the making
//
// An image appears under images/ by one rename and is complete from then on. Who dies before leaves something in tmp/; whoever
// comes later and gets the lock of that digest knows by it that nobody is at work there any more, and clears it away.
//
// Layers are hostile until their digests say otherwise, and then still: see extract.go. All bytes are verified, compressed and
// uncompressed, before the image is shown to anyone. Symlinks in rootfs mean places inside of it.
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

// Caps on what an image may unpack to, when [Options] do not say otherwise.
const (
	DefaultMaxBytes   = 32 << 30
	DefaultMaxEntries = 2_000_000
)

// progressEvery is how often a progress callback hears of bytes.
const progressEvery = 100 * time.Millisecond

// zstdWindow is the largest window that a layer may ask us to keep in memory; zstd's own command line has the same limit.
const zstdWindow = 128 << 20

// Store is a cache of unpacked images. Any number of processes may use the same directory.
type Store struct {
	// Dir is the cache directory; it is made when missing, for this user alone.
	Dir string
	// NoSync leaves out the flush to disk before an image counts as complete. A power cut may then leave a damaged image.
	NoSync bool
}

// Options for [Store.Get]. The zero value is fine.
type Options struct {
	Arch       string // as in GOARCH; empty means this machine's
	MaxBytes   int64  // cap on the uncompressed layers and on the files in them, each together
	MaxEntries int64
	// Progress is called now and then, from the goroutine that called Get.
	Progress func(Progress)
}

// Phase is what Get is doing.
type Phase string

// The phases of Get, in order. An image from the cache has only the first and the last.
const (
	PhaseResolve Phase = "resolve" // finding out which image the reference means
	PhaseWait    Phase = "wait"    // another process is unpacking it
	PhaseUnpack  Phase = "unpack"  // reading and unpacking layers
	PhaseDone    Phase = "done"
)

// Progress tells how far Get has come.
type Progress struct {
	Phase Phase
	Bytes int64 // read so far, of all layers, compressed
	Total int64 // to be read
}

// Image is an unpacked image.
type Image struct {
	Digest string // sha256:… of the manifest
	RootFS string // to be mounted read-only
	Config Config
}

// Config is what an image says about running it.
type Config struct {
	Env        []string
	WorkingDir string
}

// Get returns the image that ref means, from the cache or by unpacking it. Errors are of type *[sandbox.Error], or the context's.
func (s *Store) Get(ctx context.Context, ref string, opts Options) (*Image, error) {
	img, err := s.get(ctx, ref, opts.withDefaults())
	if err == nil {
		opts.tell(Progress{Phase: PhaseDone})
		return img, nil
	}
	var e *api.Error
	known := errors.As(err, &e)
	// What a cancelled read looks like to those above it says nothing. A registry that used up the time is worth telling.
	if ctxErr := ctx.Err(); ctxErr != nil && !(known && e.Code == Unreachable && errors.Is(ctxErr, context.DeadlineExceeded)) {
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

func (o Options) tell(p Progress) {
	if o.Progress != nil {
		o.Progress(p)
	}
}

func (s *Store) get(ctx context.Context, ref string, opts Options) (*Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	opts.tell(Progress{Phase: PhaseResolve})
	parsed, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	var f found
	if parsed.registry == nil {
		// Reading an index or a list of tar headers costs next to nothing and is always right, unlike a remembered time.
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
	return img, s.remember(parsed.key(), opts.Arch, f.digest.Hex)
}

// cached returns what the cache knows about a registry reference, or nil.
func (s *Store) cached(ref reference, opts Options) (*Image, error) {
	hex, ok := s.recall(ref.key(), opts.Arch)
	if !ok {
		d, isDigest := ref.registry.(name.Digest)
		if !isDigest {
			return nil, nil
		}
		hex = d.DigestStr()[len("sha256:"):]
	}
	return s.open(hex, opts.Arch)
}

// unpackLocked unpacks f unless somebody else does so first.
func (s *Store) unpackLocked(ctx context.Context, f found, opts Options) (*Image, error) {
	file := s.lockFile(f.digest.Hex)
	lock, err := filelock.Try(file)
	if errors.Is(err, filelock.ErrHeld) {
		opts.tell(Progress{Phase: PhaseWait})
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
	// What open did not accept is damaged.
	if err := s.discard(f.digest.Hex); err != nil {
		return nil, err
	}
	if err := s.unpack(ctx, f, opts); err != nil {
		return nil, err
	}
	img, err := s.open(f.digest.Hex, opts.Arch)
	if err == nil && img == nil {
		err = errorf(Cache, "look at the disk", "the image vanished from the cache")
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
			os.RemoveAll(tmp) // what stays is swept the next time
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
			return inside(fmt.Sprintf("layer %d of %d", i+1, len(m.Layers)), err)
		}
	}
	u.x.finish()
	if err := root.Chmod(".", 0o755); err != nil { // whatever the layers say: everyone inside has to enter it
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
	x        *extractor
	opts     Options
	progress Progress
	told     time.Time
	stream   int64 // uncompressed bytes of all layers
}

func (u *unpacking) tell(force bool) {
	if now := time.Now(); force || now.Sub(u.told) >= progressEvery {
		u.told = now
		u.opts.tell(u.progress)
	}
}

// layer reads, verifies and unpacks one layer. Everything is read to its end, also what follows the tar archive: a digest
// covers it too.
func (u *unpacking) layer(ctx context.Context, f found, desc v1.Descriptor, diffID v1.Hash) error {
	if err := checkHash(desc.Digest); err != nil {
		return err
	}
	if err := checkHash(diffID); err != nil {
		return err
	}
	u.tell(true)
	body, err := f.src.blob(ctx, desc)
	if err != nil {
		return err
	}
	defer body.Close()
	raw := &verifier{r: body, hash: sha256.New(), max: desc.Size, code: Corrupt, remedy: remedyCorrupt, what: "it is larger than its manifest says"}
	raw.count = func(n int) {
		u.progress.Bytes += int64(n)
		u.tell(false)
	}
	plain, closePlain, err := decompress(raw)
	if err != nil {
		return err
	}
	defer closePlain()
	content := &verifier{r: plain, hash: sha256.New(), max: u.opts.MaxBytes - u.stream, code: TooLarge, remedy: remedyLarge, what: fmt.Sprintf("its layers unpack to more than %d bytes", u.opts.MaxBytes)}
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
			return errorf(Corrupt, remedyCorrupt, "it has %d bytes, its manifest says %d", raw.n, desc.Size)
		}
		if got := raw.sum(); got != desc.Digest {
			return errorf(Corrupt, remedyCorrupt, "it has digest %s instead of %s", got, desc.Digest)
		}
	}
	if got := content.sum(); got != diffID {
		return errorf(Corrupt, remedyCorrupt, "its content has digest %s instead of %s", got, diffID)
	}
	u.tell(true)
	return nil
}

func checkHash(h v1.Hash) error {
	if h.Algorithm != "sha256" || len(h.Hex) != sha256.Size*2 {
		return errorf(Corrupt, remedyCorrupt, "%q is no digest that is supported", h)
	}
	return nil
}

// verifier hashes and counts what is read through it, and stops at a limit.
type verifier struct {
	r      io.Reader
	hash   hash.Hash
	n, max int64
	count  func(int)
	code   api.Code
	remedy string
	what   string
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.n += int64(n)
	v.hash.Write(p[:n])
	if v.count != nil {
		v.count(n)
	}
	if v.n > v.max {
		return n, errorf(v.code, v.remedy, "%s", v.what)
	}
	return n, err
}

func (v *verifier) sum() v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(v.hash.Sum(nil))}
}

// decompress looks at the first bytes: media types are often wrong, and docker save has none.
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
