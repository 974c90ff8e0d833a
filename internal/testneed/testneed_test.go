package testneed

import (
	"fmt"
	"testing"
)

// told stands in for a test, and keeps how it was ended first: it goes on where a test would not.
type told struct {
	testing.TB
	how string
}

func (*told) Helper() {}

func (f *told) Fatal(what ...any) { f.ended("failed: ", what) }

func (f *told) Skip(what ...any) { f.ended("skipped: ", what) }

func (f *told) ended(how string, what []any) {
	if f.how == "" {
		f.how = how + fmt.Sprintln(what...)
	}
}

func TestLacking(t *testing.T) {
	for ci, want := range map[string]string{"": "skipped: SKIPPED: a disk\n", "true": "failed: LACKING: a disk\n"} {
		t.Setenv("CI", ci)
		f := &told{TB: t}
		Lacking(f, "a disk")
		if f.how != want {
			t.Errorf("with CI=%q: %q, want %q", ci, f.how, want)
		}
	}
}
