package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

const (
	maxEmptyReplies = 3    // replies in a row with nothing to run, after which the run ends
	maxBlocks       = 32   // blocks of one reply that are run
	maxRepeats      = 2    // equal turns in a row, after which the model gets a warning
	compactAt       = 0.85 // part of the model's window that is used when the conversation is compacted
	promptMessages  = 2    // the messages before the first turn: the system prompt, and the question
	keepTurns       = 2    // the last turns, which compaction does not change
	schemaTries     = 3    // attempts at a plain text answer that must meet a schema
	lastPrompt      = 200  // tokens of the prompt of the last call, roughly
)

// work answers the node's question: with one plain call if its context is small, else turn by turn.
func (n *node) work(ctx context.Context) error {
	if n.sandbox == nil {
		if done, err := n.tryPlain(ctx); done || err != nil {
			return err
		}
	}
	defer n.close()
	open := n.open
	if n.sampling != nil {
		open = n.openCandidate
	}
	if err := open(ctx); err != nil {
		return err
	}
	if err := n.startConversation(); err != nil {
		return err
	}
	return n.loop(ctx)
}

// tryPlain sends a small context to the model in one call, which costs less and gives better answers. It returns false
// if the context is not small.
func (n *node) tryPlain(ctx context.Context) (bool, error) {
	messages, err := n.plainMessages()
	if messages == nil || err != nil {
		return false, err
	}
	n.plain = true
	return true, n.answerPlainly(ctx, v1.CallPlain, messages)
}

// plainMessages returns the messages of a plain call, or nil if the context is not small.
func (n *node) plainMessages() ([]llm.Message, error) {
	below := n.run.engine.o.PlainBelow
	if n.depth > 0 || len(n.run.tools) > 0 {
		below = -1 // a child run has an interpreter (llm_query is the plain call), and only code can call tools
	}
	if n.run.recording.strict() {
		below = -1
		if n.run.recording.has(n.id, 0, v1.CallPlain) {
			below = math.MaxInt64 / 6 // it was small enough in the recorded run, whatever the limit is now
		}
	}
	// A token is seldom more than six bytes: a larger context is above the limit, and need not be read and counted.
	if below < 0 || n.staged.bytes > 6*below {
		return nil, nil
	}
	text, err := n.staged.readAll()
	if err != nil || n.model.Count(text) > below {
		return nil, nil //nolint:nilerr // not plain text: the interpreter can read it
	}
	d := n.data()
	d.Text = text
	prompt, err := n.prompt("plain", d)
	if err != nil {
		return nil, err
	}
	return append(slices.Clone(n.run.q.History), llm.Message{Role: llm.User, Content: prompt}), nil
}

// answerPlainly uses the text of the model's reply as the answer. It asks again, up to schemaTries times in all, if the
// answer is empty or does not meet the schema.
func (n *node) answerPlainly(ctx context.Context, call string, messages []llm.Message) error {
	var why string
	for try := range schemaTries {
		reply, err := n.callModel(ctx, modelCall{
			kind:     call,
			turn:     n.turn,
			depth:    n.depth,
			model:    n.model,
			messages: messages,
			schema:   n.schema.text,
		})
		if err != nil {
			return err
		}
		text := strings.TrimSpace(reply.Text)
		r := parseReply(text, n.run.rules.commands())
		if r.final != nil && !r.final.variable {
			text = r.final.text
		}
		onlyCode := call == v1.CallLast && len(r.actions) > 0 && withoutCode(text) == ""
		if !onlyCode {
			n.mu.Lock()
			n.lastReply = text
			n.mu.Unlock()
		}
		n.full = append(n.full, messages[len(messages)-1], llm.Message{Role: llm.Assistant, Content: reply.Text})
		a := &v1.RunAnswer{Content: text, How: v1.HowPlain}
		if err := unfinished(n.model, reply); err != nil {
			_ = n.storePartial(a) // a part of an answer need not meet the schema
			return err
		}
		switch {
		case text == "":
			why = "the reply was empty"
		case onlyCode:
			why = "the reply is code, which does not run any more; write the answer as plain text"
		case call == v1.CallLast:
			why = n.storePartial(a) // only a partial answer: the model did not submit it
		default:
			why = n.accept(a)
		}
		if why == "" {
			return nil
		}
		if onlyCode && try > 0 {
			break // each try costs the whole conversation
		}
		messages = append(messages[:len(messages):len(messages)],
			llm.Message{Role: llm.Assistant, Content: reply.Text},
			llm.Message{Role: llm.User, Content: why + "\nAnswer again."})
	}
	return &v1.Error{
		Code:    v1.CodeAnswerRefused,
		Op:      "answer",
		Message: why,
		Err:     &limitError{v1.ReasonFormat, "no reply was a valid answer"},
	}
}

// unfinished returns an error if a reply is not a whole answer: it was cut at its maximum length, or refused.
func unfinished(m llm.Model, reply *llm.Reply) error {
	e := &v1.Error{Code: v1.CodeNoAnswer, Op: "ask " + or(reply.Model, m.Info().Name)}
	switch reply.Finish {
	case llm.FinishLength:
		e.Message, e.Remedy = "the reply was cut at its maximum length",
			"ask for a shorter answer, or raise the limit of a reply (--"+v1.LimitFlag(v1.ReasonLength)+")"
		e.Err = &limitError{v1.ReasonLength, "length"}
	case llm.FinishFilter:
		e.Message, e.Remedy = "the model or its provider refused to answer", "change the question, or use another model"
		e.Err = &limitError{v1.ReasonRefused, "refused"}
	default:
		return nil
	}
	return e
}

// startConversation adds the system prompt and the question to the conversation.
func (n *node) startConversation() error {
	d := n.data()
	system, err := n.prompt("system", d)
	if err != nil {
		return err
	}
	first, err := n.prompt("first", d)
	if err != nil {
		return err
	}
	n.addMessage(llm.System, system)
	n.addMessage(llm.User, first)
	return nil
}

// addMessage adds a message to the conversation. A reply or an output that would fill much of the model's window is
// shortened, because the conversation is sent in every turn.
func (n *node) addMessage(role llm.Role, text string) {
	if len(n.messages) >= promptMessages {
		text = n.fitWindow(text)
	}
	m := message{llm.Message{Role: role, Content: text}, n.model.Count(text) + perMessage}
	n.messages = append(n.messages, m)
	n.tokens += m.tokens
	if role != llm.System {
		n.full = append(n.full, m.Message)
	}
}

// conversation returns all messages, including the history of the question, for a follow-up question.
func (n *node) conversation() []llm.Message {
	out := append([]llm.Message(nil), n.run.q.History...)
	if n.depth > 0 {
		out = nil
	}
	return append(out, n.full...)
}

// requestMessages returns the messages to send to the model.
func (n *node) requestMessages() []llm.Message {
	out := make([]llm.Message, len(n.messages))
	for i, m := range n.messages {
		out[i] = m.Message
	}
	return out
}

// loop runs turns until there is an answer or a limit is reached. If tokens, cost, calls or time of the run are used
// up, the model may answer from what it has, with what was kept for this last call.
func (n *node) loop(ctx context.Context) error {
	defer n.budget.release(n)
	turns := ctx
	if limit := n.run.limits.Time.Std(); limit >= 0 {
		if n.deadline.IsZero() {
			n.deadline = n.budget.begun.Add(limit)
		}
		n.deadline = n.deadline.Add(-min(limit/lastTimePart, maxLastTime)) // children of this node end before
		var cancel context.CancelFunc
		turns, cancel = context.WithDeadlineCause(ctx, n.deadline, exhausted(v1.ReasonTime, "the limit is %s", limit))
		defer cancel()
	}
	err := n.runTurns(turns)
	if err == nil || n.accepted() != nil || ctx.Err() != nil {
		return err
	}
	err = cause(turns, err)
	switch reasonOf(err) { //nolint:exhaustive // after other ends the model has had its say, or cannot be asked
	case v1.ReasonTokens, v1.ReasonCost, v1.ReasonCalls, v1.ReasonTime:
		return n.lastCall(ctx, err)
	}
	if n.run.recording.strict() && n.run.recording.has(n.id, n.turn, v1.CallLast) {
		return n.lastCall(ctx, err)
	}
	return err
}

// runTurns runs turns until there is an answer or a limit is reached.
func (n *node) runTurns(ctx context.Context) error {
	limits := n.run.limits
	for n.accepted() == nil {
		n.budget.keep(n, n.tokens+lastPrompt, n.model.Info())
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if reached(n.turn, limits.Turns) && !n.run.recording.continuedAfter(n.id, n.turn) {
			return n.lastCall(ctx, exhausted(v1.ReasonTurns, "the limit is %d turns", *limits.Turns))
		}
		n.mu.Lock()
		n.turn++
		n.childPrompts = nil
		n.mu.Unlock()
		n.run.emit(n, n.turn, v1.KindTurnStarted, nil)
		if err := n.oneTurn(ctx); err != nil {
			return err
		}
		if n.run.recording.continuedAfter(n.id, n.turn) {
			continue
		}
		if most := *limits.Errors; most >= 0 && n.failedTurns > most && n.accepted() == nil {
			return exhausted(v1.ReasonErrors, "code failed in %d turns in a row", n.failedTurns)
		}
		if n.emptyReplies >= maxEmptyReplies {
			return &v1.Error{
				Code:    v1.CodeNoAnswer,
				Op:      "answer",
				Message: "the model does not reply with code or an answer",
				Remedy:  "use another model",
				Err: &limitError{
					v1.ReasonFormat,
					fmt.Sprintf("%d replies in a row had nothing to run", n.emptyReplies),
				},
			}
		}
	}
	return nil
}

// oneTurn sends the conversation to the model and runs the actions in its reply.
func (n *node) oneTurn(ctx context.Context) error {
	if err := n.compact(ctx); err != nil {
		return err
	}
	n.trimOutputs()
	wait := n.startSnapshot(ctx)
	begun := time.Now()
	reply, err := n.callModel(ctx, modelCall{
		kind:     v1.CallTurn,
		turn:     n.turn,
		depth:    n.depth,
		model:    n.model,
		messages: n.requestMessages(),
		input:    n.tokens,
		oneBlock: n.run.engine.o.Blocks == FirstBlock,
	})
	n.modelTime = time.Since(begun)
	wait()
	if err != nil {
		return err
	}
	n.turnUsage = reply.Usage
	if text := withoutCode(reply.Text); text != "" {
		n.mu.Lock()
		n.lastReply = text
		n.mu.Unlock()
	}
	if reply.Finish == llm.FinishFilter {
		return unfinished(n.model, reply)
	}
	seen, err := n.runActions(ctx, reply)
	if err != nil {
		return err
	}
	n.run.emit(n, n.turn, v1.KindTurnEnded, v1.TurnEnded{Reply: reply.Text, Finish: reply.Finish, Observation: seen})
	n.addMessage(llm.Assistant, or(reply.Text, "(empty)"))
	if n.accepted() == nil {
		n.addMessage(llm.User, seen)
	}
	return nil
}

// runActions runs the actions in a reply and returns the observation for the model.
func (n *node) runActions(ctx context.Context, reply *llm.Reply) (string, error) {
	r := parseReply(reply.Text, n.run.rules.commands())
	if r.final != nil && reply.Finish == llm.FinishLength {
		r.final.invalid = "your reply was cut at its maximum length; write a shorter one"
	}
	if code := n.untaggedCode(ctx, &r); code != nil {
		r.actions = []action{{kind: actCell, text: code.text, open: code.open}}
	}
	if len(r.actions) == 0 {
		return n.noAction(ctx, reply, r)
	}
	n.emptyReplies, n.lastProse, n.ranCells = 0, "", true
	last := &r.actions[len(r.actions)-1]
	if last.open && reply.Finish == llm.FinishLength {
		n.failedTurns++
		return "Your reply was cut off in the middle of a block, so the block was not run. " +
			"Write shorter code, in several turns if necessary.\n", nil
	}
	var b strings.Builder
	failed := false
	for i, a := range r.actions {
		if i >= maxBlocks {
			fmt.Fprintf(&b, "[%d more blocks of your reply were not run: the limit is %d]\n",
				len(r.actions)-i, maxBlocks)
			break
		}
		seen, ok, err := n.runAction(ctx, a)
		if err != nil {
			return "", err
		}
		if len(r.actions) > 1 {
			fmt.Fprintf(&b, "--- block %d ---\n", i+1)
		}
		b.WriteString(seen)
		failed = failed || !ok
		if n.accepted() != nil {
			return b.String(), nil
		}
		if !ok {
			if rest := len(r.actions) - i - 1; rest > 0 {
				fmt.Fprintf(&b, "[%d more blocks were not run, because this one failed]\n", rest)
			}
			break
		}
	}
	if failed {
		n.failedTurns++
	} else {
		n.failedTurns = 0
	}
	if f := r.final; f != nil {
		n.answerBesideCode(ctx, f, failed, &b)
		if n.accepted() != nil {
			return b.String(), nil
		}
	}
	n.warnOfRepeats(reply.Text, b.String(), &b)
	out := cut(b.String(), *n.run.limits.Output+2000)
	return fmt.Sprintf("%s[left: %s]%s", out, n.remaining(n.turn), n.lowNote()), nil
}

// untaggedCode returns the only block without a tag in a reply that has nothing else to run and no answer, if the block
// is Python code; else nil.
func (n *node) untaggedCode(ctx context.Context, r *parsedReply) *quotedBlock {
	b := r.untagged()
	if n.run.rules.Version == 0 || b == nil || len(r.actions) > 0 || r.final != nil ||
		n.schema.find("", r) != nil || !n.askBridge(ctx, "runnable", b.text) {
		return nil
	}
	return b
}

// answerBesideCode handles an answer in the text of a reply that also has code. The first one is refused, because the
// model wrote it before it saw the output of the code.
func (n *node) answerBesideCode(ctx context.Context, f *textAnswer, failed bool, b *strings.Builder) {
	if n.refusedText && !failed {
		if why := n.acceptText(ctx, f); why != "" {
			b.WriteString("[your answer was not accepted: " + why + "]\n")
		}
		return
	}
	n.refusedText = true
	b.WriteString("[the answer in your text was not accepted: you wrote it before you saw the output of your code. " +
		"Look at the output, then call FINAL in code]\n")
}

// noAction handles a reply with nothing to run. It accepts an answer in the text, or returns a prompt with the format
// of replies.
func (n *node) noAction(ctx context.Context, reply *llm.Reply, r parsedReply) (string, error) {
	why := "" // the answer in the reply was refused
	if r.final != nil {
		why = n.acceptText(ctx, r.final)
	} else if a := n.impliedAnswer(reply, &r); a != nil {
		why = n.accept(a)
	}
	if n.accepted() != nil {
		return "", nil
	}
	n.emptyReplies++
	if why != "" {
		return "Your answer was not accepted: " + why + "\n", nil
	}
	d := n.data()
	d.Untagged = r.hasUntagged()
	return n.prompt("nothing", d)
}

// impliedAnswer returns the answer of a reply that has nothing to run and submits nothing, or nil: JSON that meets the
// schema, or the same text as that of the previous reply, after code was run.
func (n *node) impliedAnswer(reply *llm.Reply, r *parsedReply) *v1.RunAnswer {
	if n.run.rules.Version == 0 || reply.Finish == llm.FinishLength {
		return nil
	}
	if a := n.schema.find(reply.Text, r); a != nil {
		return a
	}
	before := n.lastProse
	n.lastProse = strings.Join(strings.Fields(reply.Text), " ")
	if !n.ranCells || n.lastProse == "" || n.lastProse != before {
		return nil
	}
	return &v1.RunAnswer{Content: strings.TrimSpace(reply.Text), How: v1.HowProse}
}

// skipTurn updates the state of the node for a recorded turn whose effects are already in the sandbox.
func (n *node) skipTurn(t *v1.TurnEnded) {
	r := parseReply(t.Reply, n.run.rules.commands())
	if len(r.actions) > 0 || r.untagged() != nil {
		n.emptyReplies, n.lastProse, n.ranCells = 0, "", true
		return
	}
	n.emptyReplies++
	n.impliedAnswer(&llm.Reply{Text: t.Reply, Finish: t.Finish}, &r)
}

// acceptText accepts FINAL(…) or FINAL_VAR(…) in a reply's text and returns "". Otherwise it returns the reason for the
// refusal.
func (n *node) acceptText(ctx context.Context, f *textAnswer) string {
	if f.invalid != "" {
		return f.invalid
	}
	n.setTextAnswer(true)
	defer n.setTextAnswer(false)
	var end *v1.CellEnded
	switch {
	case f.variable:
		name, err := json.Marshal(f.text)
		if err != nil {
			return err.Error()
		}
		if end, err = n.runCell(ctx, fmt.Sprintf("FINAL_VAR(%s)", name), true); err != nil {
			return err.Error()
		}
	case f.expression != "" && n.askBridge(ctx, "expression", f.expression):
		// It is code of the model, which the gate judges like any other.
		var err error
		if end, err = n.runCell(ctx, "FINAL("+f.expression+")", false); err != nil {
			return err.Error()
		}
	default:
		return n.accept(&v1.RunAnswer{Content: f.text, How: v1.HowText})
	}
	if n.accepted() != nil {
		return ""
	}
	if i := strings.LastIndex(strings.TrimSpace(end.Error), "\n"); i >= 0 {
		return strings.TrimSpace(end.Error)[i+1:]
	}
	return or(end.Error, "its value could not be read")
}

func (n *node) setTextAnswer(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.textAnswer = on
}

// askBridge calls a function of the bridge that judges a text of the model, and returns its verdict:
//
//   - expression: the argument of a FINAL in a text is meant as code;
//   - runnable: a block without a tag is Python code.
func (n *node) askBridge(ctx context.Context, function, text string) bool {
	quoted, err := json.Marshal(text)
	if err != nil {
		return false
	}
	n.mu.Lock()
	n.verdict = false
	n.mu.Unlock()
	// A sandbox that is resumed may have an older bridge.
	code := fmt.Sprintf("(lambda m: m.%[1]s(%[2]s) if hasattr(m, '%[1]s') else None)(__import__('recluse_rlm'))",
		function, quoted)
	if n.runInternal(ctx, code) != nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.verdict
}

// warnOfRepeats adds a warning to the observation if the model repeats the same code with the same output.
func (n *node) warnOfRepeats(code, seen string, b *strings.Builder) {
	now := code + "\x00" + seen
	if now != n.lastTurn {
		n.lastTurn, n.repeats = now, 0
		return
	}
	if n.repeats++; n.repeats >= maxRepeats-1 {
		fmt.Fprintf(b, "[this is the same code with the same output, %d times now: "+
			"try something else, or submit the answer]\n", n.repeats+1)
	}
}

// lastCall requests the best answer from the model when a limit is reached, which is the error over. The reply is a
// partial answer.
func (n *node) lastCall(ctx context.Context, over error) error {
	prompt, err := n.prompt("last", n.data())
	if err != nil {
		return err
	}
	n.mu.Lock()
	have := n.ready != nil || n.draft != nil
	n.mu.Unlock()
	if *n.run.limits.Turns == 0 || have {
		return over
	}
	messages := append(n.requestMessages(), llm.Message{Role: llm.User, Content: prompt})
	err = n.answerPlainly(ctx, v1.CallLast, messages)
	if err != nil && !errors.Is(err, &v1.Error{Code: v1.CodeAnswerRefused}) {
		return errors.Join(over, err)
	}
	return over
}

// mustCompact reports whether the conversation is close to the model's context window and has turns to summarize.
func (n *node) mustCompact() bool {
	window := n.model.Info().Window
	return window > 0 && float64(n.tokens) >= compactAt*float64(window-min(defaultReply, window/4)) &&
		len(n.messages) > promptMessages+2*keepTurns
}

// compact replaces old turns by a summary when the conversation nearly fills the model's window. The whole conversation
// is still available to code in the Python variable history.
func (n *node) compact(ctx context.Context) error {
	if n.run.recording.strict() {
		if !n.run.recording.has(n.id, n.turn, v1.CallSummary) {
			return nil
		}
	} else if !n.mustCompact() {
		return nil
	}
	old := n.messages[2 : len(n.messages)-2*keepTurns]
	prompt, err := n.prompt("summary", n.data())
	if err != nil {
		return err
	}
	asked := n.requestMessages()[:len(n.messages)-2*keepTurns]
	var summary string
	reply, err := n.callModel(ctx, modelCall{
		kind:     v1.CallSummary,
		turn:     n.turn,
		depth:    n.depth,
		model:    n.model,
		messages: append(asked, llm.Message{Role: llm.User, Content: prompt}),
	})
	switch {
	case err == nil:
		summary = n.fitWindow(strings.TrimSpace(reply.Text))
	case v1.CodeOf(err) == v1.CodeWindow:
		summary = fmt.Sprintf("(%d older messages are left out.)", len(old))
	default:
		return err
	}
	if err := n.setHistory(ctx, n.conversation()); err != nil {
		return err
	}
	n.shorten(summary)
	n.run.emit(n, n.turn, v1.KindCompacted, v1.Compacted{Upto: n.turn - 1 - keepTurns, Summary: summary})
	return nil
}

// shorten replaces the old turns by the summary.
func (n *node) shorten(summary string) {
	head, tail := n.messages[:2], n.messages[len(n.messages)-2*keepTurns:]
	const before = "\n\nWhat happened so far (all of it is in the variable history):\n"
	first := head[1]
	first.Content, _, _ = strings.Cut(first.Content, before) // the new summary includes an earlier one
	first.Content += before + summary
	first.tokens = n.model.Count(first.Content) + perMessage
	n.messages = append([]message{head[0], first}, tail...)
	n.tokens = 0
	for _, m := range n.messages {
		n.tokens += m.tokens
	}
}

// notRun returns the end of a cell that did not run. The model sees the reason.
func notRun(why string) *v1.CellEnded {
	return &v1.CellEnded{Outcome: v1.Outcome{Ended: v1.EndedStart, StateKept: true}, Error: why}
}
