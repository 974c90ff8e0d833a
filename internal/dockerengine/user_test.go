package dockerengine

import (
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestFindUser(t *testing.T) {
	const table = "root:x:0:0:root:/root:/bin/sh\n# a comment\nshort:x:7\nnobody:x:65534:65533:nobody:/:/bin/false\nnobody:x:1:1::/:\nodd:x:many:1::/:\nlast:x:8:9"
	for name, want := range map[string]v1.User{
		"root":   {Name: "root"},
		"nobody": {Name: "nobody", UID: 65534, GID: 65533}, // the first line with the name counts
		"last":   {Name: "last", UID: 8, GID: 9},
	} {
		if got, ok := findUser(table, name); !ok || got != want {
			t.Errorf("%s: %+v, %t", name, got, ok)
		}
	}
	for _, name := range []string{"martha", "short", "odd", "", "x"} {
		if got, ok := findUser(table, name); ok || got != (v1.User{}) {
			t.Errorf("%q: %+v, %t", name, got, ok)
		}
	}
}
