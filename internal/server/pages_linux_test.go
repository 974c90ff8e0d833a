package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// whole lists the routes whose list is always one page, with the reason.
var whole = map[string]string{
	"/v1/models": "it is as OpenAI's clients expect it, and as long as the configuration",
}

func TestEveryListHasPages(t *testing.T) {
	k := servertest.New(t, server.Options{})
	var doc struct {
		Paths map[string]map[string]struct {
			Summary    string
			Parameters []struct{ Name string }
			Responses  map[string]struct {
				Content map[string]struct {
					Schema struct {
						Ref string `json:"$ref"`
					}
				}
			}
		}
		Components struct {
			Schemas map[string]struct {
				Properties map[string]json.RawMessage
			}
		}
	}
	ask(t, k, "", "GET", "/v1/openapi.json", "").decode(t, &doc)
	lists := 0
	for path, methods := range doc.Paths {
		get := methods["get"]
		if !strings.HasPrefix(get.Summary, "List ") || whole[path] != "" {
			continue
		}
		lists++
		for _, name := range []string{"limit", "after"} {
			if !slices.ContainsFunc(get.Parameters, func(p struct{ Name string }) bool { return p.Name == name }) {
				t.Errorf("%s takes no %s", path, name)
			}
		}
		ref := get.Responses["200"].Content["application/json"].Schema.Ref
		schema := doc.Components.Schemas[ref[strings.LastIndex(ref, "/")+1:]]
		if schema.Properties["next"] == nil {
			t.Errorf("%s does not tell where the next page begins: %s", path, ref)
		}
	}
	if lists < 8 {
		t.Errorf("only %d lists were found", lists)
	}
}

func TestQuestionsVariablesAndContextsComeInPages(t *testing.T) {
	g, questions := askingGate(t, gate.Options{RulesMode: gate.ModeBlock, EscalateAfter: 1})
	k := servertest.New(t, server.Options{Approvals: questions})
	key := k.Key("a", "admin")
	s := open(t, k, "a", "work")
	var asked, names []string
	for i := range 5 {
		d, err := g.Judge(t.Context(), gate.Request{Language: gate.Bash, Code: fmt.Sprintf("rm -rf / # %d", i), Session: "work", Tenant: "a"})
		if err != nil || d.Approval == "" {
			t.Fatalf("%+v %v", d, err)
		}
		asked = append(asked, d.Approval)
		name := fmt.Sprintf("v%d", i)
		names = append(names, name)
		if err := s.SetVar(t.Context(), name, "of "+name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names[:3] {
		if _, err := s.Cell(t.Context(), sandbox.Cell{Code: "1", Context: name}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, got, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	ids := func(p v1.ApprovalPage) ([]string, string) {
		return named(p.Approvals, func(q gate.Approval) string { return q.ID }), p.Next
	}
	check("questions", collect(t, k, key, "/v1/approvals?", 2, ids), asked)
	check("questions that wait", collect(t, k, key, "/v1/approvals?state=pending", 2, ids), asked)
	check("variables", collect(t, k, key, "/v1/sessions/work/vars?", 2, func(p v1.VarPage) ([]string, string) {
		var page []string
		for name, value := range p.Vars {
			if value != "of "+name {
				t.Errorf("%s is %q", name, value)
			}
			page = append(page, name)
		}
		slices.Sort(page)
		return page, p.Next
	}), names)
	check("contexts", collect(t, k, key, "/v1/sessions/work/contexts?", 2, func(p v1.ContextPage) ([]string, string) {
		return named(p.Contexts, func(c sandbox.Context) string { return c.Name }), p.Next
	}), append([]string{"default"}, names[:3]...)) // the default context exists from the start
	if a := ask(t, k, key, "GET", "/v1/approvals?limit=0", ""); a.status != http.StatusBadRequest {
		t.Errorf("a page of nothing: %d %s", a.status, a.body)
	}

	// The Go client hides the pages.
	c := k.Client(key)
	if all, err := c.Approvals(t.Context(), v1.ApprovalPending); err != nil || len(all) != len(asked) {
		t.Errorf("%+v %v", all, err)
	}
	work, _, err := c.Get(t.Context(), "work")
	if err != nil {
		t.Fatal(err)
	}
	if vars, err := work.Vars(t.Context()); err != nil || len(vars) != len(names) {
		t.Errorf("%v %v", vars, err)
	}
}

func TestAPageOfVariablesIsNoLargerThanCanBeTaken(t *testing.T) {
	k := servertest.New(t, server.Options{})
	vars := map[string]string{}
	for i := range 10 {
		vars[fmt.Sprintf("v%d", i)] = strings.Repeat("x", 1<<20)
	}
	if _, _, err := k.Manager.Open(t.Context(), session.Key{Name: "work"}, session.OpenOptions{Settings: session.Settings{Vars: vars}}); err != nil {
		t.Fatal(err)
	}
	got, next := 0, ""
	for pages := 1; ; pages++ {
		var page v1.VarPage
		a := ask(t, k, "", "GET", "/v1/sessions/work/vars?after="+url.QueryEscape(next), "")
		a.decode(t, &page)
		if len(a.body) > 9<<20 {
			t.Errorf("a page of %d bytes", len(a.body))
		}
		got += len(page.Vars)
		if next = page.Next; next == "" {
			if pages != 2 || got != 10 {
				t.Errorf("%d variables in %d pages", got, pages)
			}
			return
		}
	}
}
