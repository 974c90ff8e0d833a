package dockertest

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestATestThatIsNotLeftOutIsRun(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const here, other = "TestATestThatIsNotLeftOutIsRun", "TestTheScriptIsFoundFromBelow"
	for _, c := range []struct {
		name  string
		suite Suite
		runs  []string
		not   []string
		fails string
	}{
		{name: "all but the caller", runs: []string{other}, not: []string{here}},
		{name: "all but one", suite: Suite{Left: map[string]string{other: "it is about a script"}}, not: []string{here, other}},
		{name: "the named ones", suite: Suite{Tests: []string{"TestA", "TestB"}}, runs: []string{"TestA", "TestB"}, not: []string{other}},
		{name: "the named ones but one", suite: Suite{Tests: []string{"TestA", "TestB"}, Left: map[string]string{"TestA": "slow"}}, runs: []string{"TestB"}, not: []string{"TestA"}},
		{name: "one without a reason", suite: Suite{Left: map[string]string{other: ""}}, fails: other},
		{name: "one that is not there", suite: Suite{Left: map[string]string{"TestNothing": "it was renamed"}}, fails: "TestNothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.suite.names(t.Context(), self, here)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range c.runs {
				if !slices.Contains(got, name) {
					t.Errorf("%s is not run", name)
				}
			}
			for _, name := range c.not {
				if slices.Contains(got, name) {
					t.Errorf("%s is run", name)
				}
			}
		})
	}
}
