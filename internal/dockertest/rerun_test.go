package dockertest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestATestThatIsNotLeftOutIsRun(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const here, other = "TestATestThatIsNotLeftOutIsRun", "TestTheScriptIsFoundFromBelow"
	for _, c := range []struct {
		name  string
		all   bool // in the largest tier
		suite Suite
		runs  []string
		not   []string
		fails string
	}{
		{name: "all but the caller", runs: []string{other}, not: []string{here}},
		{name: "all but one", suite: Suite{Left: map[string]string{other: "it is about a script"}}, not: []string{here, other}},
		{name: "the named ones", suite: Suite{Tests: []string{"TestA", "TestB"}}, runs: []string{"TestA", "TestB"}, not: []string{other}},
		{name: "the named ones but one", suite: Suite{Tests: []string{"TestA", "TestB"}, Left: map[string]string{"TestA": "slow"}}, runs: []string{"TestB"}, not: []string{"TestA"}},
		{name: "those that differ", suite: Suite{Tests: []string{"TestA", "TestB"}, Differ: []string{"TestA"}}, runs: []string{"TestA"}, not: []string{"TestB"}},
		{name: "all in the widest tier", all: true, suite: Suite{Tests: []string{"TestA", "TestB"}, Differ: []string{"TestA"}}, runs: []string{"TestA", "TestB"}},
		{name: "one that differs and is not there", suite: Suite{Tests: []string{"TestA"}, Differ: []string{"TestB"}}, fails: "TestB"},
		{name: "one without a reason", suite: Suite{Left: map[string]string{other: ""}}, fails: other},
		{name: "one that is not there", suite: Suite{Left: map[string]string{"TestNothing": "it was renamed"}}, fails: "TestNothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(testneed.AllVariable, map[bool]string{true: "true"}[c.all])
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
					t.Errorf("%s does not run", name)
				}
			}
			for _, name := range c.not {
				if slices.Contains(got, name) {
					t.Errorf("%s runs", name)
				}
			}
		})
	}
}

func TestWhatFailedIsPickedOut(t *testing.T) {
	const text = `=== RUN   TestGood
    a_test.go:1: all is well
--- - --- PASS: of no test
--- PASS: TestGood (1.05s)
=== RUN   TestNot
    a_test.go:2: not here
--- SKIP: TestNot (0.00s)
=== RUN   TestBad
=== RUN   TestBad/part
    b_test.go:2: this is wrong
=== NAME  TestBad
    b_test.go:3: and this
--- FAIL: TestBad (0.96s)
    --- FAIL: TestBad/part (0.90s)
=== RUN   TestNext
    c_test.go:4: all is well, too
--- PASS: TestNext (0.87s)
FAIL
`
	o := byTest(text)
	got := o.failed()
	for _, want := range []string{"TestBad:", "TestBad/part:", "this is wrong", "and this"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if strings.Contains(got, "well") {
		t.Errorf("the output of passed tests is included: %s", got)
	}
	if o.ends["TestGood"] != "PASS" || o.ends["TestBad/part"] != "FAIL" || o.ends["TestNot"] != "SKIP" || !strings.Contains(tail(o.lines["TestNot"]), "not here") {
		t.Errorf("%+v", o)
	}
	for _, beside := range []string{
		"PASS\ngoleak: errors on successful test run\n",
		text + "panic: test timed out after 25m\n" + strings.Repeat("goroutine\n", 1000),
		"nothing that is known\n",
	} {
		if got := byTest(beside).failed(); !strings.Contains(got, "goleak") && !strings.Contains(got, "timed out") && !strings.Contains(got, "nothing that") {
			t.Errorf("an end without a test: %q", got)
		}
	}
}
