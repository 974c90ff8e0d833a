package wire

import (
	"fmt"
	"strings"
)

// Errorf returns an Error message with a stable code.
func Errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: strings.ToValidUTF8(fmt.Sprintf(format, args...), "?")}
}

// Clip cuts s to n bytes and replaces invalid UTF-8, which a message cannot hold.
func Clip(s string, n int) string {
	if len(s) > n {
		s = s[:n] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
