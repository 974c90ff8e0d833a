package client_test

import (
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

func open(t *testing.T, c *client.Client, name string) *client.Session {
	t.Helper()
	s, opened, err := c.Open(t.Context(), name, session.OpenOptions{})
	if err != nil || !opened.New {
		t.Fatalf("open %s: %v, created %v", name, err, opened.New)
	}
	return s
}

func cell(t *testing.T, s *client.Session, code string) *sandbox.Verdict {
	t.Helper()
	v, err := s.Cell(t.Context(), sandbox.Cell{Code: code})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSessionOverASocket(t *testing.T) {
	k := servertest.New(t, server.Options{})
	s := open(t, k.Trusted, "work")
	cell(t, s, "x = 41")
	again, opened, err := k.Trusted.Open(t.Context(), "work", session.OpenOptions{})
	if err != nil || opened.New {
		t.Fatal(err, opened)
	}
	if v := cell(t, again, "x + 1"); v.Result.Text() != "42" {
		t.Errorf("got %q", v.Result.Text())
	}
	if err := s.End(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Cell(t.Context(), sandbox.Cell{Code: "x"})
	if v1.CodeOf(err) != v1.CodeSessionNotFound {
		t.Errorf("after the end: %v", err)
	}
}
