package dockersetup

import (
	"context"
	"errors"
	"io"
	"runtime"

	"github.com/moby/moby/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/recluse-dev/recluse/sandbox"
)

// ErrHost says that the programs of this machine could not be read.
var ErrHost = errors.New("this machine's programs cannot be read")

// ImportHost builds a small image out of this machine's own shell, tools and Python, where no registry can be
// reached, and hands it to an engine, whose machine has the architecture arch, under a name.
func ImportHost(ctx context.Context, cli *client.Client, arch, name string) error {
	if arch != runtime.GOARCH {
		return &sandbox.Error{
			Code: sandbox.CodeImageArch, Op: "build image " + name,
			Message: "this machine's programs are for " + runtime.GOARCH + ", and the engine's machine is " + arch,
		}
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := WriteHostRoot(ctx, w)
		_ = w.CloseWithError(err) // never fails
		done <- err
	}()
	res, err := cli.ImageImport(ctx, client.ImageImportSource{Source: r, SourceName: "-"}, name, client.ImageImportOptions{
		Message:  "recluse image from-host",
		Changes:  []string{"ENV PATH=/usr/local/bin:/usr/bin:/bin", "LABEL dev.recluse.from-host=true"},
		Platform: ocispec.Platform{OS: "linux", Architecture: arch},
	})
	if err == nil {
		_, err = io.Copy(io.Discard, res)
		_ = res.Close() // it was read to its end
	}
	_ = r.Close() // an engine that did not read it all leaves the writer waiting
	if writeErr := <-done; writeErr != nil && ctx.Err() == nil && err == nil {
		return errors.Join(ErrHost, writeErr)
	}
	return err
}
