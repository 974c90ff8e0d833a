package hostpath

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWhatAnOperatorAllows(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(parts ...string) string { return filepath.Join(append([]string{top}, parts...)...) }
	for _, d := range []string{at("admin", "project", "sub"), at("admin", "other"), at("admin", "project", "state"), at("admin", "project", "held"), at("admin", "project", ".ssh"), at("admin", "projectile")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(at("admin", "other"), at("admin", "project", "link")); err != nil {
		t.Fatal(err)
	}
	p := &Policy{Trees: []Rule{{Path: at("admin"), Reason: "the administrator's files"}, {Path: at("admin", "project", "held"), Reason: "what is held back"}}, Allow: []string{at("admin", "project"), "relative", "/"}}
	p.Refuse(at("admin", "project", "state"), "our own state")
	for path, allowed := range map[string]bool{
		at("admin"):                           false,
		at("admin", "other"):                  false,
		at("admin", "projectile"):             false,
		at("admin", "project"):                false, // it contains paths that stay refused
		at("admin", "project", "sub"):         true,
		at("admin", "project", "held"):        false,
		at("admin", "project", "state"):       false,
		at("admin", "project", ".ssh"):        false,
		at("admin", "project", "link"):        false, // leads out
		at("admin", "project", "..", "other"): false,
	} {
		if _, err := p.Judge(path); (err == nil) != allowed {
			t.Errorf("%s: %v", path, err)
		}
	}
	p.Allow = append(p.Allow, at("admin", "project", "state"), at("admin", "project", "held"))
	if _, err := p.Judge(at("admin", "project", "state")); err == nil {
		t.Error("our own state was opened")
	}
	if _, err := p.Judge(at("admin", "project", "held")); err != nil {
		t.Error(err)
	}
}
