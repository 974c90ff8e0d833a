package agents

import (
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The error codes of this package.
const (
	CodeUnknown    v1.Code = "agent_unknown"
	CodeConfigFile v1.Code = "agent_config_unusable"
)

// repairRemedy is the remedy for a configuration file that cannot be parsed.
const repairRemedy = "repair the file, or move it away"

// unusable returns the error for a configuration file that cannot be changed safely.
func unusable(path, remedy, format string, args ...any) error {
	return &v1.Error{
		Code:    CodeConfigFile,
		Op:      "change " + path,
		Message: fmt.Sprintf(format, args...) + "; nothing was changed",
		Remedy:  remedy,
	}
}
