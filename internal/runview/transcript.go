package runview

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// Bounds of a transcript that is not full.
const (
	firstLines = 16  // of a text
	finalLines = 4   // of a text
	maxColumns = 400 // characters of a line
	maxCalls   = 8   // calls of a cell
	maxNodes   = 8   // child runs of a cell
	maxPrompt  = 200 // characters of a prompt
)

// TranscriptOptions are the options of a Transcript's views.
type TranscriptOptions struct {
	Full   bool                     // show all of every text
	Colour bool                     // WriteText uses control sequences for bold and dim text
	State  string                   // state of a run that has not ended
	Redact func(text string) string // WriteHTML replaces secrets with it; may be nil
}

// Transcript collects the events of a run, to write all of it.
type Transcript struct {
	run     *run
	prompts *v1.RunPrompts
}

// NewTranscript returns an empty Transcript.
func NewTranscript() *Transcript {
	r := newRun()
	r.texts = true
	return &Transcript{run: r}
}

// Event adds an event.
func (t *Transcript) Event(e v1.RunEvent) { t.run.apply(&e) }

// SetPrompts sets the stored prompts of the run. Without them, only the beginnings of prompts are shown.
func (t *Transcript) SetPrompts(p *v1.RunPrompts) { t.prompts = p }

// prompt returns the messages of a stored prompt, or nil.
func (t *Transcript) prompt(id string) []v1.StoredMessage {
	if t.prompts == nil || id == "" {
		return nil
	}
	return t.prompts.Messages(id)
}

// question returns the question of a node: its beginning, or all of it if it is stored.
func (t *Transcript) question(n *node) string {
	if m := t.prompt(n.prompt); len(m) > 0 && m[len(m)-1].LeftOut == 0 {
		return m[len(m)-1].Content
	}
	return n.title
}

// turnPrompts returns what each turn of a node added to the conversation. The replies of the model are left out,
// because the turns show them.
func (t *Transcript) turnPrompts(n *node) map[*turn][]v1.StoredMessage {
	out := map[*turn][]v1.StoredMessage{}
	var before []v1.StoredMessage
	for _, u := range n.turns {
		if u.call == nil {
			continue
		}
		all := t.prompt(u.call.prompt)
		same := 0
		for same < len(all) && same < len(before) && all[same] == before[same] {
			same++
		}
		for _, m := range all[same:] {
			if m.Role != llm.Assistant {
				out[u] = append(out[u], m)
			}
		}
		before = all
	}
	return out
}

// promptText returns the content of a stored message, or a note that it was not stored.
func promptText(m v1.StoredMessage) string {
	if m.LeftOut > 0 {
		return "[" + thousands(m.LeftOut) + " bytes that were not stored]"
	}
	return m.Content
}

// WriteText writes the transcript as text.
func (t *Transcript) WriteText(w io.Writer, o TranscriptOptions) error {
	x := &textWriter{w: w, o: o, Transcript: t}
	x.all()
	return x.err
}

// textWriter writes a transcript as text.
type textWriter struct {
	*Transcript

	w      io.Writer
	o      TranscriptOptions
	indent string
	cut    bool // a text was cut
	err    error
}

// line writes one line. Control characters of models must be removed before.
func (x *textWriter) line(format string, args ...any) {
	if x.err == nil {
		text := strings.TrimRight(x.indent+fmt.Sprintf(format, args...), " ")
		_, x.err = io.WriteString(x.w, text+"\n")
	}
}

// paint returns a text with a style.
func (x *textWriter) paint(style, text string) string {
	if !x.o.Colour || text == "" {
		return text
	}
	return style + text + reset
}

// nested calls f with a deeper indent.
func (x *textWriter) nested(f func()) {
	outer := x.indent
	x.indent += "  "
	f()
	x.indent = outer
}

func (x *textWriter) all() {
	r := x.run
	x.line("%s", x.paint(bold, "Run "+r.id))
	x.line("")
	x.field("Question", r.query)
	x.field("Model", r.model)
	for _, c := range r.contexts {
		x.field("Context", contextLine(c))
	}
	if r.forked != "" {
		x.field("Fork of", r.forked)
	}
	x.field("Started", r.started.UTC().Format("2006-01-02 15:04:05")+" UTC")
	x.node(r.root)
	x.end()
	if x.cut {
		x.line("")
		x.line("%s", x.paint(dim, "Long texts are cut; --full shows all."))
	}
}

func (x *textWriter) field(name, value string) {
	x.text(fmt.Sprintf("%-9s ", name), strings.TrimSpace(value))
}

// short returns a text on one line, cut unless the transcript is full.
func (x *textWriter) short(s string) string {
	s = oneLine(s)
	if x.o.Full {
		return s
	}
	x.cut = x.cut || len([]rune(s)) > maxColumns
	return clip(s, maxColumns)
}

// node writes what a node did.
func (x *textWriter) node(n *node) {
	for _, note := range n.notes {
		x.line("")
		x.line("[%s]", note)
	}
	for _, c := range n.calls {
		if c.kind == v1.CallPlain {
			x.modelCall("Plain call", c)
		}
	}
	for _, s := range n.samples {
		x.child(s, "Candidate")
	}
	prompts := map[*turn][]v1.StoredMessage{}
	if x.o.Full {
		prompts = x.turnPrompts(n)
	}
	for _, u := range n.turns {
		x.turn(u, prompts[u])
	}
	for _, c := range n.calls {
		if c.kind == v1.CallLast {
			x.modelCall("Last call", c)
		}
	}
}

// modelCall writes a call that is not made by code.
func (x *textWriter) modelCall(title string, c *call) {
	x.line("")
	x.line("%s", x.paint(bold, title)+x.paint(dim, " · "+callFigures(c)))
	if x.o.Full {
		x.messages(x.Transcript.prompt(c.prompt))
	}
	if c.err != "" {
		x.line("failed: %s", x.short(c.err))
	}
	x.text("", rlm.Prose(c.text))
}

// callFigures returns the model of a call and what the call cost.
func callFigures(c *call) string {
	parts := []string{oneLine(c.model)}
	switch {
	case !c.done:
		parts = append(parts, "no reply")
	case c.cached:
		parts = append(parts, "from the cache")
	default:
		parts = append(parts, tokensText(c.usage), costText(c.usage), elapsed(c.wall))
	}
	if c.finish == llm.FinishLength {
		parts = append(parts, "cut at its maximum length")
	}
	return strings.Join(parts, " · ")
}

func (x *textWriter) turn(u *turn, prompt []v1.StoredMessage) {
	x.line("")
	head := ""
	if u.call != nil {
		head = " · " + callFigures(u.call)
	}
	x.line("%s", x.paint(bold, fmt.Sprintf("Turn %d", u.n))+x.paint(dim, head))
	if u.summary != nil {
		x.line("[the conversation was compacted before this turn: %s]", callFigures(u.summary))
	}
	if x.messages(prompt); len(prompt) > 0 {
		x.line("")
	}
	if u.call != nil && u.call.err != "" {
		x.line("failed: %s", x.short(u.call.err))
	}
	x.text("", said(u))
	for _, c := range u.cells {
		x.cell(c)
	}
	if len(u.cells) == 0 && u.observation != "" {
		x.text("  ", u.observation)
	}
}

// said returns the reply of a turn without the code that is shown as a cell.
func said(u *turn) string {
	reply := u.reply
	if reply == "" && u.call != nil {
		reply = u.call.text
	}
	if len(u.cells) == 0 {
		return reply
	}
	return rlm.Prose(reply)
}

func (x *textWriter) cell(c *cell) {
	if c.code != "" {
		x.line("")
		x.line("  %s", x.paint(dim, c.lang+":"))
		x.text("    ", c.code)
	}
	x.nested(func() {
		for _, note := range c.notes {
			x.line("[%s]", note)
		}
		if len(c.calls) > 0 {
			x.line("%s", x.paint(dim, callsTitle(c)+":"))
			x.calls(c.calls)
		}
		for _, d := range c.tools {
			x.line("%s", x.paint(dim, "tool ")+x.short(toolLine(d)))
		}
		for i, n := range c.children {
			if i >= maxNodes && !x.o.Full {
				x.more(len(c.children)-i, "child run", "child runs")
				break
			}
			x.child(n, "Child run")
		}
	})
	x.output(c)
}

// callsTitle returns the number and the cost of the calls of a cell.
func callsTitle(c *cell) string {
	var u v1.Usage
	for _, one := range c.calls {
		u = u.Add(one.usage)
	}
	s := count(int64(len(c.calls)), "call", "calls") + " · " + tokensText(u) + " · " + costText(u)
	if c.failed > 0 {
		s += " · " + thousands(int64(c.failed)) + " failed"
	}
	return s
}

func toolLine(d *v1.ToolUsed) string {
	s := oneLine(fmt.Sprintf("%s(%s)", d.Name, d.Args))
	if d.Error != "" {
		return s + " failed: " + oneLine(d.Error)
	}
	return s + " → " + oneLine(string(d.Value))
}

func (x *textWriter) calls(list []*call) {
	for i, c := range list {
		if i >= maxCalls && !x.o.Full {
			x.more(len(list)-i, "call", "calls")
			return
		}
		x.line("  %s %s", c.id, x.paint(dim, callFigures(c)))
		x.callPrompt(c)
		switch {
		case c.err != "":
			x.line("    failed %s", x.short(c.err))
		case c.done:
			x.text("    "+x.paint(dim, "reply  "), c.text)
		}
	}
}

// callPrompt writes the beginning of a prompt with its size, or all of it.
func (x *textWriter) callPrompt(c *call) {
	all := x.prompt(c.prompt)
	if x.o.Full && len(all) == 1 {
		x.text("    "+x.paint(dim, "prompt "), promptText(all[0]))
		return
	}
	if x.o.Full && len(all) > 1 {
		x.nested(func() { x.messages(all) })
		return
	}
	size := ""
	if c.chars > 0 {
		size = fmt.Sprintf("(%s characters) ", thousands(c.chars))
	}
	x.line("    %s %s%s", x.paint(dim, "prompt"), size, clip(oneLine(c.preview), maxPrompt))
}

// messages writes messages of a prompt.
func (x *textWriter) messages(list []v1.StoredMessage) {
	for _, m := range list {
		x.line("  %s", x.paint(dim, "prompt, "+string(m.Role)+":"))
		x.text("    ", promptText(m))
	}
}

// child writes a child run or a candidate.
func (x *textWriter) child(n *node, what string) {
	x.line("")
	x.line("%s", x.paint(bold, what+" "+n.id)+x.paint(dim, " · "+nodeFigures(n)))
	x.nested(func() {
		x.text("question: ", x.question(n))
		x.node(n)
		x.line("")
		switch {
		case !n.done:
			x.line("it has not ended")
		case n.reason == v1.ReasonAnswered:
			x.text("answer: ", n.answer)
		default:
			x.line("%s", x.short(endText(n.reason, n.err)))
			x.text("so far: ", n.answer)
		}
	})
	x.line("")
}

// nodeFigures returns the model of a node and what it cost without its children.
func nodeFigures(n *node) string {
	parts := []string{count(int64(len(n.turns)), "turn", "turns"), tokensText(n.usage), costText(n.usage)}
	if n.model != "" {
		parts = append([]string{oneLine(n.model)}, parts...)
	}
	if n.done {
		parts = append(parts, elapsed(n.ended.Sub(n.started)))
	}
	return strings.Join(parts, " · ")
}

// output writes how a cell ended and what it printed.
func (x *textWriter) output(c *cell) {
	if c.code == "" {
		return
	}
	title := "output (" + cellEnd(c) + "):"
	if cellOutput(c) == "" {
		title = "no output (" + cellEnd(c) + ")"
	}
	x.line("  %s", x.paint(dim, title))
	x.text("    ", cellOutput(c))
}

// cellEnd returns how a cell ended, in words.
func cellEnd(c *cell) string {
	switch {
	case c.running:
		return "it has not ended"
	case c.ok:
		return elapsed(c.wall)
	}
	return "failed after " + elapsed(c.wall) + ": " + failureText(c)
}

// cellOutput returns the output of a cell, as the model sees it.
func cellOutput(c *cell) string {
	var parts []string
	for _, s := range []string{c.stdout, c.stderr, c.result, c.err} {
		if s = strings.TrimRight(s, "\n"); s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, "\n")
}

// text writes lines with an indent, cut unless the transcript is full.
func (x *textWriter) text(indent, text string) {
	text = StripControl(strings.TrimRight(text, " \t\n"))
	if strings.TrimSpace(text) == "" {
		return
	}
	lines, cut := strings.Split(text, "\n"), false
	if !x.o.Full {
		lines, cut = cutLines(lines)
	}
	x.cut = x.cut || cut
	plain := strings.Repeat(" ", len([]rune(strings.NewReplacer(dim, "", reset, "").Replace(indent))))
	for i, l := range lines {
		if i > 0 {
			indent = plain
		}
		x.line("%s%s", indent, l)
	}
}

func (x *textWriter) more(n int, one, many string) {
	x.cut = true
	x.line("  … %s", count(int64(n), "more "+one, "more "+many))
}

// cutLines shortens long lines, and leaves out lines in the middle of a long text.
func cutLines(lines []string) (out []string, cut bool) {
	out = append(out, lines...)
	if hidden := len(lines) - firstLines - finalLines; hidden > 1 {
		note := fmt.Sprintf("… %s more lines …", thousands(int64(hidden)))
		out = append(append(out[:firstLines:firstLines], note), lines[len(lines)-finalLines:]...)
		cut = true
	}
	for i, l := range out {
		if r := []rune(l); len(r) > maxColumns {
			out[i] = fmt.Sprintf("%s… (%s more characters)", string(r[:maxColumns]), thousands(int64(len(r)-maxColumns)))
			cut = true
		}
	}
	return out, cut
}

// end writes the answer and the summary of the run.
func (x *textWriter) end() {
	r := x.run
	x.line("")
	if r.ended == nil {
		x.line("%s", x.paint(bold, cmp.Or(x.o.State, "not ended")))
		x.line("%s", usageLine(r.usage, r.worked(r.last)))
		return
	}
	x.line("%s", x.paint(bold, resultTitle(r.ended)))
	x.text("", r.ended.Answer)
	x.line("")
	if r.ended.Reason != v1.ReasonAnswered {
		x.line("%s", x.short(endText(r.ended.Reason, r.ended.Message)))
	}
	for _, s := range Summary(r.ended) {
		x.line("%s", s)
	}
	for _, s := range r.ended.By {
		x.line("  %s", spentLine(s))
	}
	if s := r.ended.Samples; s != nil {
		x.line("%s", samplesText(s))
	}
}

// resultTitle returns the title of a run's answer.
func resultTitle(r *rlm.Result) string {
	switch {
	case r.Reason == v1.ReasonAnswered && r.How != "":
		return "Answer (" + string(r.How) + ")"
	case r.Reason == v1.ReasonAnswered:
		return "Answer"
	case r.Answer == "":
		return "No answer"
	}
	return "No final answer; the best one so far"
}

// spentLine describes what one model used at one depth.
func spentLine(s v1.Spent) string {
	return fmt.Sprintf("depth %d: %s: %s · %s · %s",
		s.Depth, oneLine(s.Model), count(s.Calls, "call", "calls"), tokensText(s.Usage), costText(s.Usage))
}

func samplesText(s *v1.Samples) string {
	return fmt.Sprintf("agreement %d of %d candidates", s.Agreement, s.Count)
}

// duration returns how long a node or turn took, or "" if it has not ended.
func duration(from, to time.Time) string {
	if from.IsZero() || to.IsZero() {
		return ""
	}
	return elapsed(to.Sub(from))
}
