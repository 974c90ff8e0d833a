package rlm

import (
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/llm"
)

// DefaultMaxPrompts is the default of Options.MaxPrompts: the conversations of hundreds of turns and some thousand
// large sub-calls.
const DefaultMaxPrompts = 64 << 20

// previewChars is the length of the beginning of a prompt in an event.
const previewChars = 200

// openPrompts opens the file of the prompts of the run.
func (r *Run) openPrompts() error {
	limit := r.engine.o.MaxPrompts
	if limit < 0 {
		return nil
	}
	p, err := trajectory.OpenPrompts(r.dir, limit, r.engine.redactor.Text)
	if err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "begin run", Err: err}
	}
	r.prompts = p
	return nil
}

// putQuestion stores the question of a child run or a candidate, and returns the id of the prompt.
func (r *Run) putQuestion(text string) string {
	return r.prompts.Put([]llm.Message{{Role: llm.User, Content: text}})
}

// beginning returns the beginning of a prompt without its secrets.
func (r *Run) beginning(text string) string {
	text = strings.ToValidUTF8(firstRunes(text, 4*previewChars), "\uFFFD") // a key at the end of the preview is whole
	return firstRunes(r.engine.redactor.Text(text), previewChars)
}

// Prompts returns the messages that a stored run has sent to models so far.
func (e *Engine) Prompts(id string) (*v1.RunPrompts, error) {
	dir, err := e.runDir(id)
	if err != nil {
		return nil, err
	}
	p, err := trajectory.ReadPrompts(dir)
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "read prompts", Err: err}
	}
	return p, nil
}

// promptOf returns the id of the prompt of an event, or "".
func promptOf(e *v1.RunEvent) (string, error) {
	switch e.Kind {
	case v1.KindCallStarted, v1.KindCallEnded, v1.KindChildStarted:
	default:
		return "", nil
	}
	var has struct {
		Prompt string `json:"prompt"`
	}
	err := e.Decode(&has)
	return has.Prompt, err
}
