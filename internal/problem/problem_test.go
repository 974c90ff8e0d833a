package problem

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestProblemGivesItsErrorBack(t *testing.T) {
	e := &v1.Error{Code: v1.CodeSpecConflict, Op: "open session", Message: "it differs", Remedy: "end it", Retry: true, Err: errors.New("memory")}
	p := Of(e)
	if p.Status != 409 {
		t.Errorf("status %d", p.Status)
	}
	if got := p.Err(); got.Error() != e.Error() || got.Code != e.Code || !got.Retry {
		t.Errorf("%v became %v", e, got)
	}
	if p := Of(errors.New("open /home/x/secret: no such file")); strings.Contains(p.Detail+p.Cause, "secret") || p.Code != v1.CodeInternal {
		t.Errorf("the text of an error that is not a v1.Error is in the problem: %+v", p)
	}
}
