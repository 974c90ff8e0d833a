package server_test

import (
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

func TestTheCallerIsToldThatTheStateWentBack(t *testing.T) {
	k := servertest.New(t, server.Options{})
	s := open(t, k, "default", "work")
	run := func(code string) (v sandbox.Verdict) {
		ask(t, k, "", "POST", "/v1/sessions/work/cells", `{"code":"`+code+`"}`).decode(t, &v)
		return v
	}
	run("x = 1")
	snap, err := s.Save(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	run("x = 2")
	k.Murder(s)
	v := run("x")
	from, err := time.Parse(time.RFC3339Nano, v.Metadata[session.MetaStateFrom])
	if v.Result.Text() != "1" || err != nil || !from.Equal(snap.Created) {
		t.Errorf("x is %q, told that it is from %q: %v", v.Result.Text(), v.Metadata[session.MetaStateFrom], err)
	}
	if v := run("x"); v.Metadata[session.MetaStateFrom] != "" {
		t.Error("told twice")
	}
}
