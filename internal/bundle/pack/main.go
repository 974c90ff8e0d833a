// Command pack compresses the engine and the guest, or several guests, into the directory from which package bundle
// embeds them, and writes a manifest with their hashes. It removes programs that were packed there before. The Makefile
// calls it:
//
//	pack DIR PROGRAM...
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"github.com/recluse-dev/recluse/internal/bundle"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: pack DIR PROGRAM...")
		os.Exit(2)
	}
	if err := pack(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(dir string, programs []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// Decoding is equally fast at every level. This is the best level that does not slow down the build.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.zst"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	var manifest []bundle.Embedded
	for _, path := range programs {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		arch, err := archOf(raw)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		sum := sha256.Sum256(raw)
		e := bundle.Embedded{
			Name: filepath.Base(path),
			Arch: arch,
			Hash: hex.EncodeToString(sum[:]),
			Size: int64(len(raw)),
		}
		compressed := enc.EncodeAll(raw, nil)
		if err := os.WriteFile(filepath.Join(dir, e.Name+"-"+arch+".zst"), compressed, 0o644); err != nil {
			return err
		}
		fmt.Printf("    %s for %s: %.1f MB, %.1f MB compressed\n",
			e.Name, arch, float64(len(raw))/1e6, float64(len(compressed))/1e6)
		manifest = append(manifest, e)
	}
	b, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), append(b, '\n'), 0o644)
}

// archOf returns the GOARCH value of a program.
func archOf(program []byte) (string, error) {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return "", err
	}
	switch f.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("unsupported architecture %s", f.Machine)
}
