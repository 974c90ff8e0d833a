package session

import (
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// errClosing is the error of every call after the manager was detached or closed.
var errClosing = &v1.Error{
	Code:    v1.CodeClosing,
	Op:      "use session",
	Message: "the session manager is being closed",
	Remedy:  "retry after the restart",
	Retry:   true,
}

func notFound(key Key) error {
	return &v1.Error{
		Code:    v1.CodeSessionNotFound,
		Op:      "find session",
		Message: fmt.Sprintf("no session %q", key.Name),
		Remedy:  "list sessions, or open it",
	}
}

func expired(key Key, reason string) error {
	return &v1.Error{
		Code:    v1.CodeSessionExpired,
		Op:      "use session",
		Message: fmt.Sprintf("session %q has expired: %s", key.Name, reason),
		Remedy:  "open it again",
	}
}

func invalid(op, format string, args ...any) error {
	return &v1.Error{Code: v1.CodeInvalidRequest, Op: op, Message: fmt.Sprintf(format, args...)}
}

func cancelled(op string, err error) error {
	return &v1.Error{Code: v1.CodeCancelled, Op: op, Message: "cancelled", Err: err}
}
