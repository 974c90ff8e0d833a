package agents

import (
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The codes of this package.
const (
	CodeUnknown    v1.Code = "agent_unknown"
	CodeConfigFile v1.Code = "agent_config_unusable"
)

// unusable is the error of a file of an agent's that we cannot change without harm.
func unusable(path, remedy, format string, args ...any) error {
	return &v1.Error{Code: CodeConfigFile, Op: "change " + path, Message: fmt.Sprintf(format, args...) + "; nothing was changed", Remedy: remedy}
}
