package server_test

import (
	"net/http"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
)

// The quota of a tenant is set, shown and enforced over HTTP, and only an operator may set it.
func TestQuotasOverHTTP(t *testing.T) {
	k := servertest.New(t, server.Options{})
	key, boss := k.Key("a", "execute"), k.Key("*", "admin")
	if a := ask(t, k, key, "PUT", "/v1/tenants/a", `{}`); a.status != http.StatusForbidden {
		t.Errorf("a tenant bounds itself: %d %s", a.status, a.body)
	}
	if a := ask(t, k, boss, "PUT", "/v1/tenants/a", `{"memory":8589934592,"cpus":4,"processes":4096,"sessions":1}`); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	a := ask(t, k, key, "POST", "/v1/sessions", `{"spec":{"limits":{"memory":1125899906842624,"cpus":64,"processes":1000000}},"policy":{"on_idle":"keep"}}`)
	if a.status != http.StatusTooManyRequests || !strings.Contains(a.body, string(v1.CodeQuotaExceeded)) || !strings.Contains(a.body, "8g left") {
		t.Errorf("the whole machine: %d %s", a.status, a.body)
	}
	if a := ask(t, k, key, "PUT", "/v1/sessions/one", `{"labels":{"team":"web"}}`); a.status != http.StatusCreated {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a := ask(t, k, key, "PUT", "/v1/sessions/two", `{}`); a.status != http.StatusTooManyRequests {
		t.Errorf("a second session: %d %s", a.status, a.body)
	}
	if a := ask(t, k, key, "PUT", "/v1/sessions/one", `{"labels":{"team":"ops"}}`); a.status != http.StatusOK {
		t.Errorf("other labels: %d %s", a.status, a.body)
	}
	for label, n := range map[string]int{"team=web": 1, "team=ops": 0} {
		var page v1.SessionPage
		ask(t, k, key, "GET", "/v1/sessions?label="+label, "").decode(t, &page)
		if len(page.Sessions) != n {
			t.Errorf("%s: %d sessions", label, len(page.Sessions))
		}
	}
	var u v1.QuotaReport
	ask(t, k, key, "GET", "/v1/usage", "").decode(t, &u)
	if u.Tenant.Name != "a" || *u.Tenant.Used.Sessions != 1 || *u.Tenant.Bounds.Sessions != 1 || u.Key == nil || *u.Key.Used.Sessions != 1 || u.Server.Used != nil {
		t.Errorf("%+v", u)
	}
	if a := ask(t, k, boss, "DELETE", "/v1/tenants/a", ""); a.status != http.StatusNoContent {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := ask(t, k, boss, "GET", "/v1/tenants/a", ""); a.status != http.StatusOK || strings.Contains(a.body, `"memory"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
}
