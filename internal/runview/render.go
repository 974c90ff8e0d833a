package runview

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
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

const (
	maxChildren = 4  // child runs of one cell that are shown, of which there may be thousands
	saidLines   = 2  // last lines of what the model says
	printed     = 3  // last lines of what code prints
	narrow      = 60 // columns below which a turn has only its time beside the code
	maxIndent   = 24 // columns; deeper child runs are not indented further
)

var spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

// frame draws a run once.
type frame struct {
	*run
	width  int
	now    time.Time
	detail int // last turns of each node that are drawn with what was said and printed
}

// render returns the lines of the tree, cut to width. If there are more lines than height, texts of the first turns and
// then the first turns themselves are left out. note is shown below a run that has not ended; it may be empty.
func (r *run) render(width, height int, now time.Time, note string) []string {
	f := &frame{run: r, width: max(width, 1), now: now}
	head := []string{bold + oneLine(r.query) + reset}
	for _, c := range r.contexts {
		head = append(head, dim+contextLine(c)+reset)
	}
	if most := max(1, height/4); len(head) > most {
		head = head[:most]
	}
	foot := f.footer(note, height)
	room := height - len(head) - len(foot) - 1
	var body []string
	for f.detail = max(0, room/2); ; f.detail-- {
		if body = f.drawNode(r.root, ""); len(body) <= room || f.detail == 0 {
			break
		}
	}
	if len(body) > room && room > 0 {
		hidden := len(body) - room + 1
		above := dim + fmt.Sprintf("… %s above", count(int64(hidden), "line", "lines")) + reset
		body = append([]string{above}, body[hidden:]...)
	}
	lines := slices.Concat(head, body, foot)
	for i, l := range lines {
		lines[i] = ansi.Truncate(l, f.width, "…")
	}
	return lines
}

// footer returns the lines below the tree. On a low screen there are fewer.
func (f *frame) footer(note string, height int) []string {
	parts := append([]string{"run " + f.id}, usageParts(f.usage, f.worked(f.now))...)
	if n := len(f.open); n > 0 && f.ended == nil {
		parts = append(parts, count(int64(n), "call", "calls")+" in progress")
	}
	lines := flow("", parts, f.width)
	if f.ended == nil {
		if left := f.budgetParts(f.now); len(left) > 0 {
			lines = append(lines, flow("left: ", left, f.width)...)
		}
		if f.bytes > 0 && f.read > 0 {
			lines = append(lines, f.coverage(f.read, f.bytes))
		}
	} else if c := f.ended.Coverage; c != nil && c.Bytes > 0 {
		lines = append(lines, f.coverage(c.Read, c.Bytes))
	}
	if most := max(1, height/3); len(lines) > most {
		lines = lines[:most]
	}
	for i, l := range lines {
		lines[i] = dim + l + reset
	}
	switch e := f.ended; {
	case e != nil && e.Reason == v1.ReasonAnswered:
		lines = append(lines, green+"✓"+reset+" answered")
	case e != nil:
		lines = append(lines, red+"✗"+reset+" "+endText(e.Reason, e.Message))
	case note != "":
		lines = append(lines, note)
	case f.note != "":
		lines = append(lines, dim+f.note+reset)
	}
	return lines
}

// coverage returns how much of the context models have read, in words that fit the screen.
func (f *frame) coverage(read, total int64) string {
	if text := coverageText(read, total); ansi.StringWidth(text) <= f.width {
		return text
	}
	return coverageShort(read, total)
}

// flow joins parts with dots, in lines of at most width columns.
func flow(title string, parts []string, width int) []string {
	lines := []string{title}
	for i, p := range parts {
		last := &lines[len(lines)-1]
		switch {
		case i == 0:
			*last += p
		case ansi.StringWidth(*last)+3+ansi.StringWidth(p) <= width:
			*last += " · " + p
		default:
			lines = append(lines, p)
		}
	}
	return lines
}

// drawNode returns the lines for the turns of a node.
func (f *frame) drawNode(n *node, indent string) []string {
	var lines []string
	over := f.ended != nil || n.done
	for _, c := range n.calls {
		if c.kind == v1.CallPlain {
			mark := statusMark(!c.done && !over, c.err == "", f.now)
			lines = append(lines, indent+mark+" plain call of "+oneLine(c.model)+", because the context is small")
			lines = append(lines, f.callDetail(n, c, indent+"  ", over)...)
		}
	}
	for _, s := range n.samples {
		lines = append(lines, f.drawChild(s, indent, "candidate")...)
	}
	if len(lines) == 0 && len(n.turns) == 0 && !over {
		return []string{indent + statusMark(true, true, f.now) + " preparing the sandbox"}
	}
	for i, u := range n.turns {
		branch, below := "├ ", "│ "
		if i == len(n.turns)-1 {
			branch, below = "└ ", "  "
		}
		mark, what, figures := f.turnParts(n, u)
		lines = append(lines, f.fit(dim+indent+branch+reset+mark, what, figures))
		if len(n.turns)-i <= f.detail {
			lines = append(lines, f.turnDetail(n, u, indent+below)...)
		}
		for _, c := range u.cells {
			lines = append(lines, f.drawChildren(c, indent+below)...)
		}
	}
	for _, c := range n.calls {
		if c.kind == v1.CallLast {
			mark := statusMark(!c.done && !over, c.err == "", f.now)
			lines = append(lines, indent+mark+" last call, for the best answer so far")
		}
	}
	return lines
}

// turnParts returns the parts of the line of a turn: the mark with the number, the code, and the figures.
func (f *frame) turnParts(n *node, u *turn) (mark, what string, figures []string) {
	over := f.ended != nil || n.done
	running := u.ended.IsZero() && !over
	c := u.last()
	switch {
	case u.waiting() && !over && n.replySoFar() == "":
		what = "thinking"
	case u.waiting() && !over:
		what = "replying"
	case c == nil && u.call != nil && u.call.err != "":
		what = red + "the model call failed: " + oneLine(u.call.err) + reset
	case c == nil:
		what = "no code"
	case c.code == "":
		what = "calls without code"
	default:
		line, more := codeLine(c.code)
		what = cyan + oneLine(line) + reset + dim + moreLines(more) + reset
		if !c.ok && !c.running {
			what = red + failureText(c) + reset + " · " + what
		}
	}
	var started, ended, failed, tools int
	var tokens int64
	for _, c := range u.cells {
		started, ended, failed, tools = started+len(c.calls), ended+c.finished, failed+c.failed, tools+len(c.tools)
		tokens += c.tokens
	}
	if started > 0 {
		calls := fmt.Sprintf("%s of %s", thousands(int64(ended)), count(int64(started), "call", "calls"))
		if ended == started {
			calls = count(int64(started), "call", "calls")
		}
		figures = append(figures, calls, count(tokens, "token", "tokens"))
	}
	if failed > 0 {
		figures = append(figures, red+thousands(int64(failed))+" failed"+reset)
	}
	if tools > 0 {
		figures = append(figures, count(int64(tools), "tool call", "tool calls"))
	}
	until := u.ended
	if until.IsZero() {
		until = f.now
		if over {
			until = f.last
		}
	}
	figures = append(figures, dim+elapsed(until.Sub(u.started))+reset)
	return fmt.Sprintf("%s turn %d  ", statusMark(running, u.ok(), f.now), u.n), what, figures
}

// fit returns a line in which the text is shortened so that the figures are visible. On a narrow screen only the last
// figure is shown.
func (f *frame) fit(start, what string, figures []string) string {
	if f.width < narrow {
		figures = figures[max(0, len(figures)-1):]
	}
	end := ""
	if len(figures) > 0 {
		end = " · " + strings.Join(figures, " · ")
	}
	room := f.width - ansi.StringWidth(start) - ansi.StringWidth(end)
	return start + ansi.Truncate(what, max(room, 8), "…") + reset + end
}

// turnDetail returns what the model said in a turn, and what the code printed.
func (f *frame) turnDetail(n *node, u *turn, indent string) []string {
	over := f.ended != nil || n.done
	var lines []string
	switch {
	case u.waiting() && !over:
		lines = f.quote(indent, "", lastLines(n.replySoFar(), saidLines))
	case u.call != nil:
		lines = f.quote(indent, "", lastLines(rlm.Prose(u.call.text), saidLines))
	}
	c := u.last()
	if c == nil {
		return lines
	}
	out := c.stdout + c.stderr
	if c.result != "" {
		out = strings.TrimRight(out, "\n") + "\n" + c.result
	}
	if c.running {
		out = n.live.Output
	}
	return append(lines, f.quote(indent, "> ", lastLines(out, printed))...)
}

// callDetail returns the end of the reply to a plain call.
func (f *frame) callDetail(n *node, c *call, indent string, over bool) []string {
	text := rlm.Prose(c.text)
	if !c.done && !over && n.live.Call == c.id {
		text = n.live.Text
	}
	return f.quote(indent, "", lastLines(text, saidLines))
}

// quote returns lines with an indent and a mark.
func (f *frame) quote(indent, mark string, lines []string) []string {
	for i, l := range lines {
		lines[i] = dim + indent + "  " + mark + l + reset
	}
	return lines
}

// lastLines returns the last n lines of a text that are not empty, each without control characters.
func lastLines(text string, n int) []string {
	var out []string
	for text != "" && len(out) < n {
		i := strings.LastIndexByte(text, '\n')
		if line := oneLine(text[i+1:]); line != "" {
			out = append([]string{line}, out...)
		}
		text = text[:max(i, 0)]
	}
	return out
}

// drawChildren returns the lines for the child runs of a cell.
func (f *frame) drawChildren(c *cell, indent string) []string {
	shown := c.children
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
	for _, n := range shown {
		lines = append(lines, f.drawChild(n, indent, "child run")...)
	}
	if hidden := len(c.children) - len(shown); hidden > 0 {
		lines = append(lines, dim+indent+fmt.Sprintf("… and %s", count(int64(hidden), "child run", "child runs"))+reset)
	}
	return lines
}

// drawChild returns the line of a child run, with its turns while it runs, and with the reason if it failed.
func (f *frame) drawChild(n *node, indent, what string) []string {
	running := !n.done && f.ended == nil
	mark := statusMark(running, n.reason == v1.ReasonAnswered, f.now) + " " + what + "  "
	title, end := oneLine(n.title), ""
	switch {
	case n.done && n.reason == v1.ReasonAnswered:
		end = " → " + oneLine(n.answer)
	case n.done:
		end = " · " + red + endText(n.reason, n.err) + reset
	}
	room := f.width - ansi.StringWidth(indent+mark)
	title = ansi.Truncate(title, max(8, room-min(ansi.StringWidth(end), room*2/3)), "…")
	lines := []string{dim + indent + reset + mark + title + end}
	if running {
		if ansi.StringWidth(indent) < maxIndent {
			indent += "  "
		}
		lines = append(lines, f.drawNode(n, indent)...)
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
