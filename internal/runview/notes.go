package runview

import (
	"fmt"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
)

// toolNote describes a tool call in one line.
func toolNote(d v1.ToolUsed) string {
	if d.Error != "" {
		return clip(oneLine(fmt.Sprintf("tool %s failed: %s", d.Name, d.Error)), lineWidth)
	}
	return clip(oneLine(fmt.Sprintf("tool %s: %s", d.Name, d.Value)), lineWidth)
}

// gateNote describes the decision of the gate in one line, with its first finding. The first line of the reason is left
// out, because it only says whether the code was run.
func gateNote(d v1.Judged, forModel bool) string {
	if d.ApprovedBy != "" {
		return "the gate: " + oneLine(d.ApprovedBy) + " approved this code"
	}
	what := ""
	for line := range strings.Lines(d.Reason) {
		if found, ok := strings.CutPrefix(line, "- "); ok {
			what = ": " + clip(oneLine(found), lineWidth)
			break
		}
	}
	switch {
	case d.Approval == "":
	case forModel:
		what += " (approval " + d.Approval + ")"
	default:
		what += " (" + v1.GrantCommand + d.Approval + ")"
	}
	return "the gate: " + string(d.Action) + what
}

// resumedNote describes in one line how a run was resumed.
func resumedNote(d v1.Resumed) string {
	what := map[string]string{
		rlm.HowAttached: "its sandbox still ran",
		rlm.HowRestored: "its sandbox was restored from a snapshot",
		rlm.HowRebuilt:  "it has a new sandbox",
	}[d.How]
	s := fmt.Sprintf("resumed after turn %d: %s", d.Turn, what)
	if d.Rerun > 0 {
		s += fmt.Sprintf(", and %s run again", count(int64(d.Rerun), "turn was", "turns were"))
	}
	if d.Model != "" {
		s += "; now with " + d.Model
	}
	return s
}

// codeLine returns the first line of code that is not a comment or an import, and the number of other lines that are
// not empty.
func codeLine(code string) (line string, more int) {
	for l := range strings.Lines(code) {
		l = strings.TrimSpace(l)
		switch {
		case l == "":
		case line == "" && !strings.HasPrefix(l, "#") && !strings.HasPrefix(l, "import ") && !strings.HasPrefix(l, "from "):
			line = l
		default:
			more++
		}
	}
	if line == "" {
		line, more = strings.TrimSpace(code), 0
	}
	return line, more
}
