package editdistance

import (
	"strings"
	"testing"
)

func TestDistance(t *testing.T) {
	long := strings.Repeat("x", 60)
	for _, test := range []struct {
		a, b  string
		limit int
		want  int
	}{
		{"", "", 3, 0},
		{"onion", "onion", 3, 0},
		{"onion", "onions", 3, 1},
		{"onion", "union", 3, 1},
		{"onoin", "onion", 3, 1},
		{"größe", "grösse", 3, 2},
		{"onion", "carrot", 3, 3},
		{"", "onion", 3, 3},
		{long, long + "y", 3, 1},
		{long, long, 1, 0},
	} {
		if got := Distance(test.a, test.b, test.limit); got != test.want {
			t.Errorf("from %q to %q: %d, want %d", test.a, test.b, got, test.want)
		}
		if got := Distance(test.b, test.a, test.limit); got != test.want {
			t.Errorf("from %q to %q: %d, want %d", test.b, test.a, got, test.want)
		}
	}
}
