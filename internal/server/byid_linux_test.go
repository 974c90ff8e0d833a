package server_test

import (
	"net/http"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
)

// A session's id works on every route where its name does.
func TestASessionIsFoundByItsID(t *testing.T) {
	k := servertest.New(t, server.Options{})
	id := open(t, k, "a", "work").Info().ID
	key := k.Key("a", "admin")
	for _, r := range k.Server.TestRoutes() {
		what := r.Method + " " + r.Path
		if !strings.Contains(r.Path, "{session}") || what == "DELETE /v1/sessions/{session}" {
			continue
		}
		a := try(t, k, key, r, id)
		if strings.Contains(a.body, string(v1.CodeSessionNotFound)) || strings.Contains(a.body, string(v1.CodeInvalidKey)) {
			t.Errorf("%s: %d %s", what, a.status, a.body)
		}
	}
	if a := ask(t, k, key, "PUT", "/v1/sessions/"+id, `{}`); a.status != http.StatusOK || !strings.Contains(a.body, `"name":"work"`) {
		t.Errorf("PUT by id: %d %s", a.status, a.body)
	}

	var token v1.Token
	ask(t, k, key, "POST", "/v1/sessions/"+id+"/tokens", `{}`).decode(t, &token)
	other := open(t, k, "a", "other").Info().ID
	if a := ask(t, k, token.Token, "GET", "/v1/sessions/"+id, ""); a.status != http.StatusOK {
		t.Errorf("a token by the id of its session: %d %s", a.status, a.body)
	}
	if a := ask(t, k, token.Token, "GET", "/v1/sessions/"+other, ""); a.status != http.StatusNotFound || strings.Contains(a.body, "other") {
		t.Errorf("a token by the id of another session: %d %s", a.status, a.body)
	}
	if a := ask(t, k, k.Key("b", "admin"), "GET", "/v1/sessions/"+id, ""); a.status != http.StatusNotFound || strings.Contains(a.body, "work") {
		t.Errorf("another tenant by the id: %d %s", a.status, a.body)
	}

	if a := ask(t, k, key, "DELETE", "/v1/sessions/"+id, ""); a.status != http.StatusNoContent {
		t.Fatalf("DELETE by id: %d %s", a.status, a.body)
	}
	if a := ask(t, k, key, "PUT", "/v1/sessions/"+id, `{}`); a.status != http.StatusNotFound {
		t.Errorf("PUT by the id of a session that has ended: %d %s", a.status, a.body)
	}
	open(t, k, "a", "work")
	for method, body := range map[string]string{"GET": "", "PUT": `{}`} {
		if a := ask(t, k, key, method, "/v1/sessions/"+id, body); a.status != http.StatusNotFound {
			t.Errorf("%s by the id of an earlier session of the name: %d %s", method, a.status, a.body)
		}
	}
}
