package main

import (
	"context"
	"io"
	"testing"

	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
)

// counted is a backend without sandboxes that counts calls of List.
type counted struct {
	sandbox.Backend
	looks int
}

// List implements sandbox.Backend.
func (c *counted) List(context.Context) ([]sandbox.Info, error) {
	c.looks++
	return nil, nil
}

func TestOneProgramLooksOnceForWhatOthersHaveLeft(t *testing.T) {
	b := &counted{}
	g := &engineParts{a: &app{stderr: io.Discard, cfg: &config.Config{}}, backend: b}
	o := rlm.Options{Dir: t.TempDir(), Models: func(int, string) (llm.Model, error) { return nil, rlm.NoModel() }}
	for range 3 {
		if _, err := g.engine(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if b.looks != 1 {
		t.Errorf("it looked %d times", b.looks)
	}
}
