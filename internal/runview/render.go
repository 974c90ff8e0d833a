package runview

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Control sequences for colours. bubbletea removes them if the terminal or the user does not want colours.
const (
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	green = "\x1b[32m"
	red   = "\x1b[31m"
	cyan  = "\x1b[36m"
	reset = "\x1b[m"
)

var spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

// render returns the lines of the tree, cut to width. If there are more lines than height, the first turns are left
// out.
func (t *tree) render(width, height int, now time.Time) []string {
	head := []string{bold + oneLine(t.query) + reset}
	for _, c := range t.contexts {
		head = append(head, dim+contextLine(c)+reset)
	}
	body := t.drawNode(t.node("0"), "", now)
	foot := t.footer(now)
	if room := height - len(head) - len(foot) - 1; len(body) > room && room > 0 {
		hidden := len(body) - room + 1
		above := dim + fmt.Sprintf("… %s above", count(int64(hidden), "line", "lines")) + reset
		body = append([]string{above}, body[hidden:]...)
	}
	lines := append(append(head, body...), foot...)
	for i, l := range lines {
		lines[i] = ansi.Truncate(l, max(width, 1), "…")
	}
	return lines
}

func (t *tree) footer(now time.Time) []string {
	at := now
	if t.ended != nil {
		at = t.last
	}
	line := usageLine(t.usage, at.Sub(t.started))
	if t.openCalls > 0 && t.ended == nil {
		line += " · " + count(int64(t.openCalls), "call", "calls") + " in progress"
	}
	lines := []string{dim + line + reset}
	switch {
	case t.ended != nil && t.ended.Reason == v1.ReasonAnswered:
		lines = append(lines, green+"✓"+reset+" answered")
	case t.ended != nil:
		lines = append(lines, red+"✗"+reset+" ended without an answer: "+string(t.ended.Reason))
	case t.note != "":
		lines = append(lines, dim+t.note+reset)
	}
	return lines
}

// drawNode returns the lines for the turns of a node.
func (t *tree) drawNode(n *node, indent string, now time.Time) []string {
	if n.plain != nil {
		mark := statusMark(!n.plain.done && t.ended == nil, true, now)
		return []string{indent + mark + " plain call of " + n.plain.model + ", because the context is small"}
	}
	if len(n.turns) == 0 && t.ended == nil && !n.done {
		return []string{indent + statusMark(true, true, now) + " preparing the sandbox"}
	}
	var lines []string
	for i, u := range n.turns {
		branch, below := "├ ", "│ "
		if i == len(n.turns)-1 {
			branch, below = "└ ", "  "
		}
		lines = append(lines, dim+indent+branch+reset+t.drawTurn(u, now))
		lines = append(lines, t.drawChildren(u, indent+below, now)...)
	}
	return lines
}

func (t *tree) drawTurn(u *turn, now time.Time) string {
	over := t.ended != nil
	running := u.ended.IsZero() && !over
	ok := u.cell == nil || u.cell.ok || u.cell.running
	parts := []string{}
	switch c := u.cell; {
	case u.waiting && !over:
		parts = append(parts, "waiting for the model")
	case c == nil:
		parts = append(parts, "no code")
	default:
		line, more := codeLine(c.code)
		parts = append(parts, cyan+clip(oneLine(line), 60)+reset+dim+moreLines(more)+reset)
		if !c.ok && !c.running {
			parts = append(parts, red+failureText(c)+reset)
		}
	}
	if u.callsStarted > 0 {
		calls := fmt.Sprintf("%s of %s", thousands(int64(u.callsEnded)), count(int64(u.callsStarted), "call", "calls"))
		if u.callsEnded == u.callsStarted {
			calls = count(int64(u.callsStarted), "call", "calls")
		}
		parts = append(parts, calls, count(u.tokens, "token", "tokens"))
	}
	if u.failed > 0 {
		parts = append(parts, red+thousands(int64(u.failed))+" failed"+reset)
	}
	if u.tools > 0 {
		parts = append(parts, count(int64(u.tools), "tool call", "tool calls"))
	}
	until := u.ended
	if until.IsZero() {
		until = now
		if over {
			until = t.last
		}
	}
	parts = append(parts, dim+elapsed(until.Sub(u.started))+reset)
	return fmt.Sprintf("%s turn %d  %s", statusMark(running, ok, now), u.n, strings.Join(parts, " · "))
}

func (t *tree) drawChildren(u *turn, indent string, now time.Time) []string {
	shown := u.children
	if len(shown) > maxChildren {
		// Show the children that still run. If there are none, show the latest.
		var busy []*node
		for _, c := range shown {
			if !c.done {
				busy = append(busy, c)
			}
		}
		shown = shown[len(shown)-maxChildren:]
		if len(busy) > 0 {
			shown = busy[:min(len(busy), maxChildren)]
		}
	}
	var lines []string
	for _, c := range shown {
		running := !c.done && t.ended == nil
		title := fmt.Sprintf("child run  %s", clip(oneLine(c.title), 60))
		lines = append(lines, dim+indent+reset+statusMark(running, c.reason == v1.ReasonAnswered, now)+" "+title)
		if running {
			lines = append(lines, t.drawNode(c, indent+"  ", now)...)
		}
	}
	if hidden := len(u.children) - len(shown); hidden > 0 {
		lines = append(lines, dim+indent+fmt.Sprintf("… and %s", count(int64(hidden), "child run", "child runs"))+reset)
	}
	return lines
}

// statusMark returns a spinner, a check mark or a cross.
func statusMark(running, ok bool, now time.Time) string {
	switch {
	case running:
		return cyan + string(spinner[int(now.UnixMilli()/100)%len(spinner)]) + reset
	case ok:
		return green + "✓" + reset
	}
	return red + "✗" + reset
}
