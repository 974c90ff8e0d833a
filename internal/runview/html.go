package runview

import (
	_ "embed" // the template of the page
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"unicode"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Bounds of a page that is not full. A browser shows about 10 MB of text without delay.
const (
	pageText  = 20_000 // characters of a text
	pageCalls = 200    // calls of a cell
	pageNodes = 100    // child runs of a cell
	openTurns = 6      // last turns of a node that are open at first
)

//go:embed page.html
var pageSource string

// pageTemplate returns the template of the page. The page has no script and loads nothing, and its policy forbids both:
// its texts come from models and contexts.
func pageTemplate() *template.Template {
	return template.Must(template.New("page").Parse(pageSource))
}

// WriteHTML writes the transcript as one HTML page.
func (t *Transcript) WriteHTML(w io.Writer, o TranscriptOptions) error {
	b := &pageBuilder{Transcript: t, o: o, anchors: map[*node]string{}}
	return pageTemplate().Execute(w, b.page())
}

// The data of the template. All texts of models and users have been passed through pageBuilder.text.
type (
	page struct {
		ID, Title, Query, State, Answer string
		OK, Ended, Left                 bool
		Facts                           []pageFact
		Nodes                           []pageRow
		Spent                           []pageRow
		Root                            *pageNode
	}
	pageFact struct{ Name, Value string }
	// pageRow is a row of the table of nodes or of the table of models.
	pageRow struct {
		Anchor, Name, Model, End, Turns, Calls, Tokens, Cost, Time string
		Depth                                                      int
		Mark                                                       string
	}
	pageNode struct {
		Anchor, Kind, ID, Title, Figures, End, Answer string
		Mark                                          string
		Open                                          bool
		Notes                                         []string
		Plain, Last                                   []*pageCall
		Candidates                                    []*pageNode
		Turns                                         []*pageTurn
	}
	pageTurn struct {
		N                                          int
		Mark, Summary, Figures, Said, Error, Shown string
		Open                                       bool
		Prompt                                     []pageMessage
		Cells                                      []*pageCell
	}
	pageCell struct {
		Lang, Output, End, CallsTitle, MoreCalls, MoreNodes string
		Code                                                []token
		OK                                                  bool
		Notes, Tools                                        []string
		Calls                                               []*pageCall
		Children                                            []*pageNode
	}
	pageCall struct {
		ID, Model, Figures, Tokens, Cost, Time, Chars, Preview, Reply, Error string
		Prompt                                                               []pageMessage
	}
	pageMessage struct{ Role, Text string }
)

// pageBuilder makes the data of a page.
type pageBuilder struct {
	*Transcript

	o       TranscriptOptions
	anchors map[*node]string
	left    bool // something was left out
}

func (b *pageBuilder) page() *page {
	r := b.run
	for i, n := range r.order {
		b.anchors[n] = fmt.Sprintf("n%d", i)
	}
	p := &page{
		ID:    r.id,
		Title: b.name(r.query),
		Query: b.text(r.query),
		State: b.text(b.o.State),
	}
	p.fact("Model", b.name(r.model))
	for _, c := range r.contexts {
		p.fact("Context", b.text(contextLine(c)))
	}
	if r.forked != "" {
		p.fact("Fork of", b.text(r.forked))
	}
	p.fact("Started", r.started.UTC().Format("2006-01-02 15:04:05")+" UTC")
	if e := r.ended; e != nil {
		p.Ended, p.OK = true, e.Reason == v1.ReasonAnswered
		p.State, p.Answer = b.name(endText(e.Reason, e.Message)), b.text(e.Answer)
		for i, s := range Summary(e) {
			p.fact([]string{"Usage", "Coverage", ""}[min(i, 2)], b.text(s))
		}
		if e.Samples != nil {
			p.fact("Samples", samplesText(e.Samples))
		}
		for _, s := range e.By {
			p.Spent = append(p.Spent, b.figures(pageRow{Name: strconv.Itoa(s.Depth), Model: b.name(s.Model)}, s.Usage))
		}
	} else {
		p.fact("Usage", usageLine(r.usage, r.worked(r.last)))
	}
	p.Root = b.node(r.root, "Run")
	b.rows(p, r.root)
	p.Left = b.left
	return p
}

// fact adds a line to the head of the page. Without a name, it belongs to the line before.
func (p *page) fact(name, value string) { p.Facts = append(p.Facts, pageFact{name, value}) }

// figures sets the usage in a row.
func (b *pageBuilder) figures(r pageRow, u v1.Usage) pageRow {
	r.Calls, r.Tokens, r.Cost = thousands(u.Calls), tokensShort(u), costText(u)
	return r
}

// tokensShort returns the number of tokens of a usage for a table.
func tokensShort(u v1.Usage) string {
	if u.Estimated {
		return "≈" + thousands(u.Tokens())
	}
	return thousands(u.Tokens())
}

// rows adds the node and the nodes below it to the table of nodes.
func (b *pageBuilder) rows(p *page, n *node) {
	row := b.figures(pageRow{
		Anchor: b.anchors[n],
		Name:   b.name(n.title),
		Model:  b.name(n.model),
		Depth:  min(n.depth, 8),
		Turns:  thousands(int64(len(n.turns))),
		Time:   duration(n.started, n.ended),
		Mark:   markOf(n),
		End:    string(n.reason),
	}, n.usage)
	if n == b.run.root {
		row.Name, row.Time = "the run", elapsed(b.run.worked(b.run.last))
	}
	p.Nodes = append(p.Nodes, row)
	for _, s := range n.samples {
		b.rows(p, s)
	}
	for _, u := range n.turns {
		for _, c := range u.cells {
			for i, x := range c.children {
				if i >= pageNodes && !b.o.Full {
					break
				}
				b.rows(p, x)
			}
		}
	}
}

// markOf returns how a node ended, as the name of a style: ok, bad, or open.
func markOf(n *node) string {
	switch {
	case !n.done:
		return "open"
	case n.reason == v1.ReasonAnswered:
		return "ok"
	}
	return "bad"
}

func (b *pageBuilder) node(n *node, kind string) *pageNode {
	p := &pageNode{
		Anchor:  b.anchors[n],
		Kind:    kind,
		ID:      b.text(n.id),
		Title:   b.text(b.question(n)),
		Figures: b.name(nodeFigures(n)),
		Mark:    markOf(n),
		Open:    markOf(n) != "ok",
		Answer:  b.text(n.answer),
	}
	if n.done {
		p.End = b.text(endText(n.reason, n.err))
	}
	for _, note := range n.notes {
		p.Notes = append(p.Notes, b.text(note))
	}
	for _, c := range n.calls {
		if c.kind == v1.CallLast {
			p.Last = append(p.Last, b.call(c))
		} else {
			p.Plain = append(p.Plain, b.call(c))
		}
	}
	for _, s := range n.samples {
		p.Candidates = append(p.Candidates, b.node(s, "Candidate"))
	}
	prompts := b.turnPrompts(n)
	for i, u := range n.turns {
		t := b.turn(u)
		t.Prompt = b.messages(prompts[u])
		t.Open = t.Mark == "bad" || len(n.turns)-i <= openTurns
		p.Turns = append(p.Turns, t)
	}
	return p
}

func (b *pageBuilder) turn(u *turn) *pageTurn {
	p := &pageTurn{N: u.n, Mark: "ok", Said: b.text(strings.TrimSpace(said(u)))}
	switch {
	case u.ended.IsZero() && u.ok():
		p.Mark = "open"
	case !u.ok():
		p.Mark = "bad"
	}
	if u.call != nil {
		p.Figures = b.name(callFigures(u.call))
		p.Error = b.text(u.call.err)
	}
	for _, c := range u.cells {
		p.Cells = append(p.Cells, b.cell(c))
	}
	if len(u.cells) == 0 {
		p.Shown = b.text(u.observation)
	}
	if c := u.last(); c != nil {
		line, more := codeLine(c.code)
		p.Summary = b.text(clip(oneLine(line), lineWidth) + moreLines(more))
	}
	return p
}

func (b *pageBuilder) cell(c *cell) *pageCell {
	p := &pageCell{
		Lang:   b.text(c.lang),
		Output: b.text(cellOutput(c)),
		OK:     c.ok || c.running,
		Code:   highlight(c.lang, b.text(c.code)),
		End:    b.text(cellEnd(c)),
	}
	for _, note := range c.notes {
		p.Notes = append(p.Notes, b.text(note))
	}
	for _, d := range c.tools {
		p.Tools = append(p.Tools, b.text(toolLine(d)))
	}
	if len(c.calls) > 0 {
		p.CallsTitle = callsTitle(c)
	}
	for i, one := range c.calls {
		if i >= pageCalls && !b.o.Full {
			p.MoreCalls, b.left = count(int64(len(c.calls)-i), "more call", "more calls"), true
			break
		}
		p.Calls = append(p.Calls, b.call(one))
	}
	for i, n := range c.children {
		if i >= pageNodes && !b.o.Full {
			p.MoreNodes, b.left = count(int64(len(c.children)-i), "more child run", "more child runs"), true
			break
		}
		p.Children = append(p.Children, b.node(n, "Child run"))
	}
	return p
}

func (b *pageBuilder) call(c *call) *pageCall {
	p := &pageCall{
		ID:      b.name(c.id),
		Model:   b.name(c.model),
		Figures: b.name(callFigures(c)),
		Tokens:  tokensShort(c.usage),
		Cost:    costText(c.usage),
		Time:    elapsed(c.wall),
		Chars:   thousands(c.chars),
		Preview: b.text(clip(oneLine(c.preview), maxPrompt)),
		Reply:   b.text(c.text),
		Error:   b.text(c.err),
		Prompt:  b.messages(b.prompt(c.prompt)),
	}
	if c.cached {
		p.Tokens, p.Cost, p.Time = "cache", "", ""
	}
	return p
}

// name returns a short text on one line.
func (b *pageBuilder) name(s string) string { return clip(oneLine(b.text(s)), lineWidth) }

// messages returns messages of a prompt.
func (b *pageBuilder) messages(list []v1.StoredMessage) []pageMessage {
	var out []pageMessage
	for _, m := range list {
		out = append(out, pageMessage{Role: b.text(string(m.Role)), Text: b.text(promptText(m))})
	}
	return out
}

// text returns a text for the page: without secrets, with visible control characters, and cut.
func (b *pageBuilder) text(s string) string {
	if b.o.Redact != nil {
		s = b.o.Redact(s)
	}
	s = visible(strings.Trim(strings.ToValidUTF8(s, "\uFFFD"), "\n"))
	if len(s) <= pageText || b.o.Full {
		return s
	}
	r := []rune(s)
	if len(r) <= pageText {
		return s
	}
	b.left = true
	return string(r[:pageText]) + fmt.Sprintf("\n… %s more characters", thousands(int64(len(r)-pageText)))
}

// visible replaces control characters by their pictures, and characters that change the direction of text by the
// replacement character.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < 0x20:
			return 0x2400 + r
		case r == 0x7f:
			return 0x2421
		case unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r):
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(s, "\r\n", "\n"))
}
