package server_test

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
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
	k.KillSandbox(s)
	v := run("x")
	from, err := time.Parse(time.RFC3339Nano, v.Metadata[session.MetaStateFrom])
	if v.Result.Text() != "1" || err != nil || !from.Equal(snap.Created) {
		t.Errorf("x is %q, told that it is from %q: %v", v.Result.Text(), v.Metadata[session.MetaStateFrom], err)
	}
	if v := run("x"); v.Metadata[session.MetaStateFrom] != "" {
		t.Error("told twice")
	}
}

func TestTheCallerIsToldThatANameIsUsedAgain(t *testing.T) {
	k := servertest.New(t, server.Options{})
	open(t, k, "default", "work")
	for what, create := range map[string]func() *v1.PreviousSession{
		"PUT": func() *v1.PreviousSession {
			var s v1.Opened
			ask(t, k, "", "PUT", "/v1/sessions/put", `{}`).decode(t, &s)
			return s.Previous
		},
		"POST": func() *v1.PreviousSession {
			var s v1.Opened
			ask(t, k, "", "POST", "/v1/sessions", `{"name":"post"}`).decode(t, &s)
			return s.Previous
		},
		"forks": func() *v1.PreviousSession {
			var s v1.Forked
			ask(t, k, "", "POST", "/v1/sessions/work/forks", `{"names":["forks"]}`).decode(t, &s)
			return s.Sessions[0].Previous
		},
	} {
		if p := create(); p != nil {
			t.Errorf("%s: the first session of a name tells of another: %+v", what, p)
		}
		name := strings.ToLower(what)
		ask(t, k, "", "DELETE", "/v1/sessions/"+name, "")
		if p := create(); p == nil || p.State != v1.StateEnded || p.ID == "" {
			t.Errorf("%s: previous is %+v", what, p)
		}
		var v sandbox.Verdict
		ask(t, k, "", "POST", "/v1/sessions/"+name+"/cells", `{"code":"1"}`).decode(t, &v)
		if got := v.Metadata[session.MetaPrevious]; !strings.Contains(got, "ended at") {
			t.Errorf("%s: the first verdict tells %q", what, got)
		}
	}
}
