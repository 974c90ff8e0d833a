package docker

import (
	"context"
	"fmt"

	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/sandbox"
)

// Codes of this backend.
const (
	// CodeEngineLost says that the engine no longer answers.
	CodeEngineLost sandbox.Code = "engine_lost"
	// CodeRuntimeMissing says that the engine has no runtime of that name.
	CodeRuntimeMissing = dockerengine.CodeRuntimeMissing
	// CodePaused says that somebody has paused the container.
	CodePaused sandbox.Code = "sandbox_paused"
	// CodeRenamed is the incident that somebody has given the container another name; AttrOldName and AttrNewName say
	// which.
	CodeRenamed sandbox.Code = "sandbox_renamed"
)

func failed(ctx context.Context, op, what string, err error) error {
	return dockerengine.Failed(ctx, op, what, err)
}

func notFound(op, what, id string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Op: op, Message: fmt.Sprintf("no %s %q of this instance", what, id)}
}

func lost(code sandbox.Code, remedy, format string, args ...any) error {
	return &sandbox.Error{Code: code, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}
