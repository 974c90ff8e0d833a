package backend

import (
	"fmt"
	"os"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Production reports whether RECLUSE_ENV says production. It is parsed strictly: a misspelt value is
// an error, not a silent no.
func Production() (bool, error) {
	switch v := os.Getenv("RECLUSE_ENV"); v {
	case "production":
		return true, nil
	case "", "development", "test":
		return false, nil
	default:
		return false, &v1.Error{
			Code: v1.CodeInvalidSpec, Op: "read RECLUSE_ENV",
			Message: fmt.Sprintf("%q is none of production, development, test", v), Remedy: "correct or unset it",
		}
	}
}
