package v1

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
)

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		err  Error
		want string
	}{
		{Error{Code: CodeBusy}, "busy"},
		{Error{Code: CodeBusy, Op: "attach"}, "attach: busy"},
		{Error{Op: "attach", Message: "process 7 has it"}, "attach: process 7 has it"},
		{Error{Op: "read", Err: io.EOF}, "read: EOF"},
		{Error{Op: "read", Message: "the image", Err: io.EOF}, "read: the image: EOF"},
		{Error{Op: "read", Message: "the image", Err: io.EOF, Remedy: "pull it again"}, "read: the image: EOF (pull it again)"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestErrorsMatchByCode(t *testing.T) {
	err := fmt.Errorf("around it: %w", &Error{Code: CodeGuestLost, Op: "run", Err: io.EOF})
	switch {
	case !errors.Is(err, &Error{Code: CodeGuestLost}):
		t.Error("the error does not match the sentinel of its code")
	case errors.Is(err, &Error{Code: CodeSandboxLost}):
		t.Error("the error matches the sentinel of another code")
	case !errors.Is(err, io.EOF):
		t.Error("errors.Is does not find the cause")
	}
}

func TestFileErrorsMatchThoseOfPackageFS(t *testing.T) {
	sentinels := []error{fs.ErrNotExist, fs.ErrExist, fs.ErrPermission}
	for want, code := range []Code{CodeFileNotFound, CodeFileExists, CodeFilePermission} {
		err := fmt.Errorf("wrapped: %w", &Error{Code: code})
		for i, sentinel := range sentinels {
			if got := errors.Is(err, sentinel); got != (i == want) {
				t.Errorf("%s matches %v: %t", code, sentinel, got)
			}
		}
	}
}

func TestCodeOf(t *testing.T) {
	inner := &Error{Code: CodeDiskFull}
	for _, c := range []struct {
		err  error
		want Code
	}{
		{nil, ""},
		{io.EOF, CodeInternal},
		{inner, CodeDiskFull},
		{fmt.Errorf("x: %w", inner), CodeDiskFull},
		{&Error{Code: CodeStartFailed, Err: inner}, CodeStartFailed},
		{errors.Join(io.EOF, inner), CodeDiskFull},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

func TestAModelIsNotToldHowToGrant(t *testing.T) {
	refused := &Error{Code: CodeGateRefused, Op: "judge code", Message: "no", Remedy: GrantCommand + "a1, or refuse"}
	for _, err := range []error{refused, fmt.Errorf("run: %w", refused), &Error{Code: CodeInternal, Err: refused}} {
		got := ForModel(err)
		if strings.Contains(got.Error(), GrantCommand) || !strings.Contains(got.Error(), "ask the user") || !errors.Is(got, refused) {
			t.Errorf("%v becomes %v", err, got)
		}
	}
	if !strings.Contains(refused.Remedy, GrantCommand) {
		t.Error("ForModel changed its argument")
	}
	for _, err := range []error{nil, fs.ErrNotExist, &Error{Code: CodeGateRefused, Remedy: "change the code"}} {
		if got := ForModel(err); got != err { //nolint:errorlint // the very same one
			t.Errorf("%v becomes %v", err, got)
		}
	}
}
