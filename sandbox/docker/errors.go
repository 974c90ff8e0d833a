package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
)

// Codes of this backend.
const (
	// CodeEngineLost says that the engine no longer answers.
	CodeEngineLost sandbox.Code = "engine_lost"
	// CodeRuntimeMissing says that the engine has no runtime of that name.
	CodeRuntimeMissing sandbox.Code = "runtime_missing"
	// CodePaused says that somebody has paused the container.
	CodePaused sandbox.Code = "sandbox_paused"
	// CodeRenamed is the incident that somebody has given the container another name; AttrOldName and AttrNewName say which.
	CodeRenamed sandbox.Code = "sandbox_renamed"
)

// failed says what could not be done, with a code that tells an engine that is not there from one that refuses.
func failed(ctx context.Context, op, what string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e
	}
	out := &sandbox.Error{Code: sandbox.CodeStartFailed, Op: op, Message: what, Err: err}
	switch {
	case ctx.Err() != nil:
		out.Code, out.Message, out.Err = sandbox.CodeCancelled, "given up", ctx.Err()
	case client.IsErrConnectionFailed(err):
		out.Code, out.Message, out.Retry = sandbox.CodeBackendMissing, "the Docker engine does not answer", true
		out.Remedy = "start it, or set DOCKER_HOST to the one to use"
	case errdefs.IsPermissionDenied(err) || strings.Contains(err.Error(), "permission denied"):
		out.Code, out.Remedy = sandbox.CodeBackendMissing, "use an engine that this user may use"
	}
	return out
}

func notFound(op, what, id string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Op: op, Message: fmt.Sprintf("no %s %q of this instance", what, id)}
}

func lost(code sandbox.Code, remedy, format string, args ...any) error {
	return &sandbox.Error{Code: code, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}
