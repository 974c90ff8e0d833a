package dockertest

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAnotherEngineIsUsedAndNotEnded(t *testing.T) {
	t.Setenv(Variable, "tcp://192.0.2.1:2375")
	e, err := Start(t.Context(), "")
	if err != nil || e.Host != "tcp://192.0.2.1:2375" {
		t.Fatalf("%+v, %v", e, err)
	}
	if err := e.Stop(); err != nil {
		t.Error(err)
	}
}

func TestTheScriptIsFoundFromBelow(t *testing.T) {
	if _, err := find(); err != nil {
		t.Error(err)
	}
	t.Chdir(t.TempDir())
	if s, err := find(); err == nil {
		t.Errorf("found %s", s)
	}
}
