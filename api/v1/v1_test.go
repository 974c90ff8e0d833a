package v1_test

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDurationHasOneFormInBothDirections(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "1h30m": 90 * time.Minute, "2h": 2 * time.Hour, "7d": 7 * 24 * time.Hour, "500ms": 500 * time.Millisecond,
		"none": v1.NoLimit, "": 0, "0s": 0, "5": 5 * time.Second, "0.5": 500 * time.Millisecond,
	} {
		quoted := strconv.Quote(text)
		var d v1.Duration
		if err := json.Unmarshal([]byte(quoted), &d); err != nil || d.Std() != want {
			t.Errorf("%s: %v %v", quoted, d, err)
		}
		b, err := json.Marshal(d)
		var again v1.Duration
		if err != nil || json.Unmarshal(b, &again) != nil || again != d {
			t.Errorf("%s: %s %v", quoted, b, err)
		}
	}
	for _, bad := range []string{`"-1s"`, `30`, `"soon"`, `true`, `"5 s"`, `"d"`, `"-1d"`} {
		var d v1.Duration
		if json.Unmarshal([]byte(bad), &d) == nil {
			t.Errorf("%s was accepted as %s", bad, d)
		}
	}
	var d v1.Duration
	if err := json.Unmarshal([]byte(`"-5s"`), &d); !errors.Is(err, v1.ErrNegative) || !strings.Contains(err.Error(), "-5s") {
		t.Errorf("negative: %v", err)
	}
}

func TestDurationAsAFlag(t *testing.T) {
	for in, want := range map[string]string{"5s": "5s", "5": "5s", "90s": "1m30s", "60m": "1h", "48h": "2d", "none": "none"} {
		var d v1.Duration
		if err := d.Set(in); err != nil || d.String() != want {
			t.Errorf("%q: %s %v, want %s", in, d, err, want)
		}
	}
	for _, in := range []string{"", "0", "0s", "0d", "-1s", "soon"} {
		var d v1.Duration
		if err := d.Set(in); err == nil || !strings.Contains(err.Error(), "above zero") {
			t.Errorf("%q: %s %v", in, d, err)
		}
	}
}

// some sets a few limits.
func some() v1.RunLimits {
	return v1.RunLimits{Tokens: new(int64(500)), Cost: new(0.0), Time: new(v1.Duration(time.Minute)), Depth: new(0)}
}

func TestLimitsOver(t *testing.T) {
	base := v1.RunLimits{Tokens: new(int64(1)), Turns: new(30), Calls: new(int64(v1.NoLimit))}
	got := some().Over(base)
	if *got.Tokens != 500 || *got.Cost != 0 || *got.Depth != 0 || *got.Turns != 30 || *got.Calls != v1.NoLimit || got.Errors != nil {
		t.Errorf("%+v", got)
	}
	if *base.Tokens != 1 || base.Cost != nil {
		t.Errorf("the base was changed: %+v", base)
	}
}

func TestLimitsExceed(t *testing.T) {
	ceiling := v1.RunLimits{Tokens: new(int64(100)), Time: new(v1.Duration(time.Minute)), Depth: new(2), Cost: new(float64(v1.NoLimit)), Parallel: new(16)}
	for name, tt := range map[string]struct {
		limits v1.RunLimits
		want   []string
	}{
		"nothing set":       {v1.RunLimits{}, nil},
		"equal":             {v1.RunLimits{Tokens: new(int64(100)), Depth: new(2)}, nil},
		"above":             {v1.RunLimits{Tokens: new(int64(101)), Depth: new(3), Parallel: new(17)}, []string{"tokens", "depth", "parallel"}},
		"unlimited":         {v1.RunLimits{Tokens: new(int64(v1.NoLimit)), Time: new(v1.Duration(v1.NoLimit))}, []string{"tokens", "time"}},
		"no bound":          {v1.RunLimits{Cost: new(1e9), Calls: new(int64(1 << 40))}, nil},
		"unlimited on both": {v1.RunLimits{Cost: new(float64(v1.NoLimit))}, nil},
	} {
		if got := tt.limits.Exceeds(ceiling); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestLimitsValidate(t *testing.T) {
	if err := some().Validate(); err != nil {
		t.Error(err)
	}
	for want, l := range map[string]v1.RunLimits{
		"tokens: -2 is negative": {Tokens: new(int64(-2))},
		"cost_usd: -0.5":         {Cost: new(-0.5)},
		"time: -5s":              {Time: new(v1.Duration(-5 * time.Second))},
		"depth: -1 is below":     {Depth: new(-1)},
		"turns: 0 is below 1":    {Turns: new(0)},
	} {
		if err := l.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestLimitsHaveOneFormInJSON(t *testing.T) {
	in := some()
	in.CPU = new(v1.Duration(v1.NoLimit))
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"tokens":500,"cost_usd":0,"time":"1m","depth":0,"cell_cpu":"none"}`; string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	var back v1.RunLimits
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, in) {
		t.Errorf("%+v %v", back, err)
	}
	b, err = json.Marshal(struct {
		Limits v1.RunLimits `json:"limits,omitzero"`
	}{})
	if err != nil || string(b) != "{}" {
		t.Errorf("%s %v", b, err)
	}
}

func TestEachLimitIsAFlag(t *testing.T) {
	var l v1.RunLimits
	names := map[string]bool{}
	for _, f := range l.Fields() {
		if f.Name == "" || f.Flag == "" || f.Doc == "" || names[f.Name] || names["--"+f.Flag] {
			t.Errorf("%+v", f)
		}
		names[f.Name], names["--"+f.Flag] = true, true
		if f.IsSet() || f.String() != "" {
			t.Errorf("%s is set to %s", f.Name, f)
		}
		text := map[string]string{"duration": "1h30m", "amount": "1.5", "number": "7"}[f.Type()]
		if err := f.Set(text); err != nil || f.String() != text {
			t.Errorf("%s: %s %v", f.Flag, f, err)
		}
		zero, unlimited := f.Set("0"), f.Set("none")
		if (zero == nil) != (f.Min != nil && *f.Min == 0) || (unlimited == nil) != (f.Min == nil) {
			t.Errorf("%s: zero %v, none %v", f.Flag, zero, unlimited)
		}
		for _, bad := range []string{"", "x", "-5", "nan"} {
			if f.Set(bad) == nil {
				t.Errorf("%s: %q was accepted", f.Flag, bad)
			}
		}
	}
	if err := l.Validate(); err != nil || l.IsZero() || *l.Tokens != v1.NoLimit || *l.Depth != 0 {
		t.Errorf("%+v %v", l, err)
	}
}

func TestThePackageIsALeaf(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if strings.Contains(i.Path.Value, ".") {
				t.Errorf("%s imports %s", file, i.Path.Value)
			}
		}
	}
}
