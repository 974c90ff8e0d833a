package client_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
	"github.com/recluse-dev/recluse/session"
)

// machine is a session over HTTP, as the feature suite sees it.
type machine struct{ *client.Session }

func (m machine) Ping(ctx context.Context) error {
	_, err := m.Guest(ctx)
	return err
}

func (m machine) FilesBelow(root string) sandboxtest.Files {
	if root == "" {
		return m.Files()
	}
	return m.Files().Below(root)
}

// TestFeaturesOverHTTP runs the suite of the backends through client and server.
func TestFeaturesOverHTTP(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: the whole suite takes a minute")
	}
	k := servertest.New(t, server.Options{})
	c := k.Client(k.Key("features", "execute"))
	var n atomic.Int64
	open := func(t *testing.T, spec sandbox.Spec) sandboxtest.Machine {
		t.Helper()
		s, _, err := c.Open(t.Context(), fmt.Sprintf("f%d", n.Add(1)), session.OpenOptions{Spec: &spec})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.End(context.Background(), ""); err != nil {
				t.Error(err)
			}
		})
		return machine{s}
	}
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return k.Backend }, sandboxtest.Options{
		Open: open, Without: map[string]string{
			"cells of one context wait for each other, those of two do not": "they wait in the session, whose own tests are about that",
		},
		Only: []string{"commands", "endings", "output", "files", "cells", "limits"},
	})
}
