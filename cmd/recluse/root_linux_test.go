package main

import (
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestRootInside(t *testing.T) {
	t.Parallel()
	testneed.Sandboxes(t)
	w := newWorld(t)
	const look = "id -u; touch /usr/bin/x 2>/dev/null && echo written"
	for name, c := range map[string]struct {
		flags []string
		want  string
	}{
		"usual": {nil, "1000"},
		"sudo":  {[]string{"--sudo"}, "1000"},
		"root":  {[]string{"--user", "root"}, "0\nwritten"},
	} {
		args := append([]string{"exec", "--gate", "off"}, c.flags...)
		if got := strings.TrimSpace(w.must(append(args, "--", "sh", "-c", look+"; true")...)); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
