package backend

import (
	"fmt"
	"os"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Production reports whether RECLUSE_ENV is production. An unknown value is an error, so that a misspelt
// value does not silently disable the rules for production.
func Production() (bool, error) {
	switch v := os.Getenv("RECLUSE_ENV"); v {
	case "production":
		return true, nil
	case "", "development", "test":
		return false, nil
	default:
		return false, &v1.Error{
			Code:    v1.CodeInvalidSpec,
			Op:      "read RECLUSE_ENV",
			Message: fmt.Sprintf("invalid value %q", v),
			Remedy:  "set it to production, development or test, or unset it",
		}
	}
}
