package mcpclients

import (
	"strings"
	"testing"
)

// The text contains the displayed values of a cell and how the cell ended, because many agents pass on only the text.
func TestTheTextHasWhatIsShownAndATimeOut(t *testing.T) {
	s := serve(t).connectStdio(t, nil, "")
	for _, tt := range []struct {
		name, code string
		has        []string
		fails      bool
	}{
		{"HTML", "from IPython.display import HTML\ndisplay(HTML('<b>bold</b>'))", []string{"<b>bold</b>"}, false},
		{"a value with a text and a table", "class Frame:\n    def __repr__(self): return 'a  b\\n1  2'\n    def _repr_html_(self): return '<table></table>'\ndisplay(Frame())", []string{"a  b\n1  2"}, false},
		{"several values, and a last one", "display('one'); display({'two': 2})\n'three'", []string{"one", "two", "three"}, false},
		{"a time-out", "print('begun')\nimport time\ntime.sleep(60)", []string{"begun", "ended by timeout"}, true},
	} {
		args := map[string]any{"code": tt.code}
		if tt.fails {
			args["timeout_seconds"] = 1
		}
		res, said := call(t, s, "run_code", args)
		if res.IsError != tt.fails || strings.Contains(said, "without output") {
			t.Errorf("%s: %s", tt.name, said)
		}
		for _, part := range tt.has {
			if !strings.Contains(said, part) {
				t.Errorf("%s: no %q in %s", tt.name, part, said)
			}
		}
	}
}
