package docker

import (
	"context"
	"io"
	"runtime"

	"github.com/moby/moby/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/recluse-dev/recluse/sandbox"
)

// ImportHost builds a small image out of this machine's own shell, tools and Python, where no registry can be reached, and
// gives it to the engine under a name.
func (b *Backend) ImportHost(ctx context.Context, name string) error {
	op := "build image " + name
	f, err := b.facts(ctx)
	if err != nil {
		return err
	}
	if f.arch != runtime.GOARCH {
		return &sandbox.Error{Code: sandbox.CodeImageArch, Op: op, Message: "this machine's programs are for " + runtime.GOARCH + ", and the engine's machine is " + f.arch}
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := WriteHostRoot(ctx, w)
		_ = w.CloseWithError(err) // never fails
		done <- err
	}()
	res, err := b.cli.ImageImport(ctx, client.ImageImportSource{Source: r, SourceName: "-"}, name, client.ImageImportOptions{
		Message: "recluse image from-host", Changes: []string{"ENV PATH=/usr/local/bin:/usr/bin:/bin", "LABEL dev.recluse.from-host=true"},
		Platform: ocispec.Platform{OS: "linux", Architecture: f.arch},
	})
	if err == nil {
		_, err = io.Copy(io.Discard, res)
		_ = res.Close() // it was read to its end
	}
	_ = r.Close() // an engine that did not read it all leaves the writer waiting
	if writeErr := <-done; writeErr != nil && ctx.Err() == nil && err == nil {
		return failed(ctx, op, "this machine's programs cannot be read", writeErr)
	}
	return failed(ctx, op, "the engine does not take it", err)
}
