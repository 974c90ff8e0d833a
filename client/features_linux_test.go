package client_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
	"github.com/recluse-dev/recluse/session"
)

// machine is a session over HTTP, for the feature suite.
type machine struct {
	*client.Session
	c       *client.Client
	sandbox string
}

func (m machine) ID() string { return m.sandbox }

func (m machine) DialPort(ctx context.Context, port uint16) (sandbox.PortConn, error) {
	c, err := m.Session.DialPort(ctx, port)
	if err != nil {
		return nil, err // not a nil *client.PortConn
	}
	return c, nil
}

func (m machine) Close() error { return m.End(context.Background(), "") }

func (m machine) Ping(ctx context.Context) error {
	_, err := m.Guest(ctx)
	return err
}

// Save implements sandboxtest.Copier.
func (m machine) Save(ctx context.Context) (restore func(context.Context) (sandboxtest.Owned, error), forget func(context.Context) error, err error) {
	if _, err := m.Session.Save(ctx, "kept"); err != nil {
		return nil, nil, err
	}
	restore = func(ctx context.Context) (sandboxtest.Owned, error) {
		return openMachine(ctx, m.c, m.Name()+"-again", session.OpenOptions{Settings: session.Settings{From: m.Name() + "@kept"}})
	}
	return restore, func(ctx context.Context) error { return m.c.DeleteSnapshot(ctx, m.Name(), "kept") }, nil
}

// Copies implements sandboxtest.Copier.
func (m machine) Copies(ctx context.Context, n int) ([]sandboxtest.Owned, error) {
	made, err := m.Fork(ctx, n, nil)
	var out []sandboxtest.Owned
	for _, s := range made {
		out = append(out, machine{Session: s, c: m.c})
	}
	return out, err
}

func openMachine(ctx context.Context, c *client.Client, name string, o session.OpenOptions) (sandboxtest.Owned, error) {
	s, opened, err := c.Open(ctx, name, o)
	if err != nil {
		return nil, err
	}
	return machine{s, c, opened.Sandbox}, nil
}

// TestFeaturesOverHTTP runs the suite of the backends through client and server. In make test, the local backend is
// used where the backend does not matter.
func TestFeaturesOverHTTP(t *testing.T) {
	testneed.Alone(t) // the suite sets the environment, and runs its features in parallel
	onBackend := []string{"snapshots", "attachments", "life"}
	onGuest := []string{"commands", "endings", "output", "files", "cells", "limits"}
	t.Run("gvisor", func(t *testing.T) {
		k := servertest.New(t, server.Options{})
		if testneed.AllTests() {
			featuresOf(t, k, onGuest, false)
		}
		featuresOf(t, k, onBackend, true) // no other tests may use a server that is stopped and started
	})
	t.Run("local", func(t *testing.T) { featuresOf(t, servertest.NewLocal(t, server.Options{}), onGuest, false) })
}

func featuresOf(t *testing.T, k *servertest.Bench, groups []string, restarts bool) {
	t.Helper()
	c := k.Client(k.Key("features", "execute"))
	var n atomic.Int64
	o := sandboxtest.Options{
		Open: func(ctx context.Context, spec sandbox.Spec) (sandboxtest.Owned, error) {
			return openMachine(ctx, c, fmt.Sprintf("f%d", n.Add(1)), session.OpenOptions{Settings: session.Settings{Spec: &spec}})
		},
		Without: map[string]string{
			"cells of one context wait for each other, those of two do not": "they wait in the session, whose own tests are about that",
			"a flood of 50 MB leaves this program small":                    "client and server are one program here, and its memory is measured",
		},
		Only:   groups,
		Many:   8,
		Scope:  sandboxtest.HTTPFeatures,
		Serial: restarts,
	}
	if restarts {
		o.Restart = func(*testing.T) { k.Stop(); k.Start() }
	}
	sandboxtest.Run(t, func(*testing.T) sandbox.Backend { return k.Backend }, o)
}
