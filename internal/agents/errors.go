package agents

import (
	"fmt"

	"github.com/recluse-dev/recluse/sandbox"
)

// The codes of this package.
const (
	CodeUnknown    sandbox.Code = "agent_unknown"
	CodeConfigFile sandbox.Code = "agent_config_unusable"
)

// unusable is the error of a file of an agent's that we cannot change without harm.
func unusable(path, remedy, format string, args ...any) error {
	return &sandbox.Error{Code: CodeConfigFile, Op: "change " + path, Message: fmt.Sprintf(format, args...) + "; nothing was changed", Remedy: remedy}
}
