package llm

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Rule is a condition and the answer of a scripted model. The first rule of a script that matches a call answers it.
type Rule struct {
	// Match is a regular expression for the last message. Conversation is one for all messages, each written as
	// "role: content", with an empty line between them. An empty expression matches everything.
	Match        string `yaml:"match"`
	Conversation string `yaml:"conversation"`
	// Tags must all be set on the request, with these values.
	Tags map[string]string `yaml:"tags"`
	// Nth selects one of the calls that the rule matches, counted from 1; 0: all.
	Nth int `yaml:"nth"`
	// Times is how often the rule may answer; 0: always.
	Times int `yaml:"times"`

	// Reply is the answer. {{1}} and {{name}} are replaced by a group that Match, or else Conversation, has captured,
	// {{0}} by the whole match, and {{tag:x}} by a tag. {{name|json}} is quoted as JSON, which is also valid Python.
	Reply string `yaml:"reply"`
	// Respond, if set, returns the answer instead of Reply.
	Respond func(ctx context.Context, req Request) (string, error) `yaml:"-"`
	// Error is the error of the call. If Reply is set, the call returns both, as after a broken connection.
	Error error `yaml:"-"`

	Delay time.Duration `yaml:"-"` // before the first piece
	// Chunk is the size of a streamed piece in bytes; 0: one piece. A piece does not end within a character.
	Chunk      int           `yaml:"chunk"`
	ChunkDelay time.Duration `yaml:"-"` // before each further piece

	Finish Finish `yaml:"finish"` // empty: FinishStop
	Usage  *Usage `yaml:"-"`      // nil: by Count
}

// rule is a compiled Rule.
type rule struct {
	Rule
	match        *regexp.Regexp
	conversation *regexp.Regexp
	matched      int // guarded by Scripted.mu; matching calls, before Nth and Times
	used         int // guarded by Scripted.mu; answered calls
}

// Scripted is a model that answers by rules. It needs no network, and answers after the delays of the rules. Its usage
// is exact, because its tokens are by definition those of Count.
type Scripted struct {
	info Info

	mu    sync.Mutex
	rules []*rule // the slice is fixed; its counters are guarded by mu
	calls int64   // guarded by mu
}

// NewScripted returns a model with these rules. A name without a provider gets the prefix "scripted/". NewScripted
// panics if a regular expression is invalid, as regexp.MustCompile does; use ReadScript for rules from outside the
// program.
func NewScripted(name string, rules ...Rule) *Scripted {
	s, err := newScripted(Info{Name: name}, rules)
	if err != nil {
		panic(err)
	}
	return s
}

func newScripted(info Info, rules []Rule) (*Scripted, error) {
	if !strings.Contains(info.Name, "/") {
		info.Name = "scripted/" + info.Name
	}
	if info.Window <= 0 {
		info.Window = defaultWindow
	}
	if info.Output <= 0 {
		info.Output = defaultOutput
	}
	info.Local = info.Price == nil
	s := &Scripted{info: info}
	for i, r := range rules {
		made, err := makeRule(r)
		if err != nil {
			return nil, &v1.Error{
				Code:    v1.CodeModelScript,
				Op:      "read script " + info.Name,
				Message: fmt.Sprintf("rule %d", i+1),
				Err:     err,
			}
		}
		s.rules = append(s.rules, made)
	}
	return s, nil
}

func makeRule(r Rule) (*rule, error) {
	made := &rule{Rule: r}
	var err error
	if r.Match != "" {
		if made.match, err = regexp.Compile(r.Match); err != nil {
			return nil, err
		}
	}
	if r.Conversation != "" {
		if made.conversation, err = regexp.Compile(r.Conversation); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// WithInfo sets the window, reply length and price of the model, but not its name. Call it before the first Complete.
func (s *Scripted) WithInfo(info Info) *Scripted {
	if info.Window > 0 {
		s.info.Window = info.Window
	}
	if info.Output > 0 {
		s.info.Output = info.Output
	}
	s.info.Price, s.info.Local = info.Price, info.Price == nil
	return s
}

// Info implements Model.
func (s *Scripted) Info() Info { return s.info }

// Count implements Model.
func (s *Scripted) Count(text string) int64 { return Count(text) }

// Calls returns the number of calls.
func (s *Scripted) Calls() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Complete implements Model.
func (s *Scripted) Complete(ctx context.Context, req Request) (*Reply, error) {
	start := time.Now()
	if err := check(s.info.Name, req); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, cancelled(ctx, s.info.Name)
	}
	input := CountMessages(s, req.Messages)
	if input > s.info.Window {
		return nil, tooLong(s.info, input)
	}
	r, fill := s.choose(req)
	if r == nil {
		last := req.Messages[len(req.Messages)-1]
		return nil, &v1.Error{
			Code:    v1.CodeModelScript,
			Op:      "ask " + s.info.Name,
			Message: fmt.Sprintf("no rule matches; the last message is %q", oneLine(last.Content, 200)),
			Remedy:  "add a rule to the script; a rule without conditions matches everything",
		}
	}
	if !wait(ctx, r.Delay) {
		return nil, cancelled(ctx, s.info.Name)
	}
	text, err := r.answer(ctx, req, fill)
	if ctx.Err() != nil {
		return nil, cancelled(ctx, s.info.Name)
	}
	if err != nil && text == "" {
		return nil, err
	}
	reply := s.stream(ctx, req, r, text)
	reply.Usage = s.usage(r, input, reply)
	reply.Wall = time.Since(start)
	if err == nil && ctx.Err() != nil && reply.Finish == "" {
		reply.Finish, err = FinishCut, cancelled(ctx, s.info.Name)
	}
	return reply, err
}

// choose returns the rule for a call, and a function that returns the values of placeholders in its reply.
func (s *Scripted) choose(req Request) (*rule, func(string) (string, bool)) {
	last := req.Messages[len(req.Messages)-1].Content
	whole := sync.OnceValue(func() string { return transcript(req.Messages) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	var chosen *rule
	var fill func(string) (string, bool)
	for _, r := range s.rules {
		// A rule with Nth counts every call, also those that another rule answers.
		if chosen != nil && r.Nth == 0 {
			continue
		}
		captures, ok := r.matches(req, last, whole)
		if !ok {
			continue
		}
		r.matched++
		if chosen != nil || (r.Nth > 0 && r.matched != r.Nth) || (r.Times > 0 && r.used >= r.Times) {
			continue
		}
		r.used++
		chosen, fill = r, captures
	}
	return chosen, fill
}

// matches reports whether the rule matches a request, and returns a function for the values of captures and tags.
func (r *rule) matches(req Request, last string, whole func() string) (func(string) (string, bool), bool) {
	for k, v := range r.Tags {
		if req.Tags[k] != v {
			return nil, false
		}
	}
	values := map[string]string{}
	if r.conversation != nil && !capture(r.conversation, whole(), values) {
		return nil, false
	}
	if r.match != nil && !capture(r.match, last, values) {
		return nil, false
	}
	return func(name string) (string, bool) {
		if tag, ok := strings.CutPrefix(name, "tag:"); ok {
			return req.Tags[tag], true
		}
		v, ok := values[name]
		return v, ok
	}, true
}

// capture puts the groups of a match into values, by number and by name.
func capture(re *regexp.Regexp, text string, values map[string]string) bool {
	m := re.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	for i, name := range re.SubexpNames() {
		values[fmt.Sprint(i)] = m[i]
		if name != "" {
			values[name] = m[i]
		}
	}
	return true
}

// answer returns the text and the error of the rule.
func (r *rule) answer(ctx context.Context, req Request, fill func(string) (string, bool)) (string, error) {
	if r.Respond != nil {
		return r.Respond(ctx, req)
	}
	return expand(r.Reply, fill), r.Error
}

// stream returns a reply with the text, limited and streamed as the request requires. Finish is empty if ctx ended.
func (s *Scripted) stream(ctx context.Context, req Request, r *rule, text string) *Reply {
	reply := &Reply{Model: s.info.Name}
	limit := s.info.Output
	if req.MaxTokens > 0 {
		limit = min(limit, req.MaxTokens)
	}
	natural := r.Finish
	if natural == "" {
		natural = FinishStop
	}
	if at := firstStop(text, req.Stop); at >= 0 {
		text = text[:at]
	}
	// A byte is at most two tokens, so a text of up to limit/2 bytes need not be counted.
	if int64(len(text)) > limit/2 && Count(text) > limit {
		text, natural = cutTokens(text, limit), FinishLength
	}
	if req.Delta == nil {
		reply.Text, reply.Finish = text, natural
		return reply
	}
	out := newSink(Request{Delta: req.Delta}, 0)
	for first, rest := true, text; rest != ""; first = false {
		if !first && !wait(ctx, r.ChunkDelay) {
			reply.Text = out.text.String()
			return reply
		}
		piece := rest
		if r.Chunk > 0 && r.Chunk < len(rest) {
			if piece = cutRunes(rest, r.Chunk); piece == "" {
				piece = string([]rune(rest)[:1])
			}
		}
		rest = rest[len(piece):]
		if !out.write(piece) {
			natural = out.finish
			break
		}
	}
	reply.Text, reply.Finish = out.text.String(), natural
	return reply
}

// usage returns the usage of a call. A real provider does not report the usage of a reply that was cut, so it is marked
// as estimated.
func (s *Scripted) usage(r *rule, input int64, reply *Reply) Usage {
	u := Usage{Input: input, Output: Count(reply.Text), Estimated: reply.Finish == FinishCut || reply.Finish == ""}
	if r.Usage != nil {
		u = *r.Usage
	}
	u.Calls = 1
	return withCost(u, s.info)
}

// transcript returns a conversation as one text.
func transcript(messages []Message) string {
	var b strings.Builder
	for i, m := range messages {
		if i > 0 {
			b.WriteString("\n\n")
		}
		b.WriteString(string(m.Role))
		b.WriteString(": ")
		b.WriteString(m.Content)
	}
	return b.String()
}

// wait waits for d. It returns false if ctx ended before.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// tooLong returns the error of a prompt that is larger than the window.
func tooLong(info Info, input int64) error {
	return &v1.Error{
		Code:    v1.CodeModelContextExceeded,
		Op:      "ask " + info.Name,
		Message: fmt.Sprintf("the prompt has about %d tokens and the model's window is %d", input, info.Window),
		Remedy:  "ask about a smaller piece, or configure the model's window if it is larger",
	}
}
