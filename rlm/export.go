package rlm

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/llm"
)

// Export writes a stored run in the JSON Lines format of the official Python library, for the viewer of that library:
// one line of metadata, then one line for each turn. Prompts of sub-calls are cut, because the events have only the
// beginning of each.
func (e *Engine) Export(id string, w io.Writer) error {
	p, err := e.readRun(id, -1, false)
	if err != nil {
		return err
	}
	x := exporter{out: json.NewEncoder(w), openCalls: map[string]exportCall{}}
	err = x.out.Encode(map[string]any{
		"type":               "metadata",
		"timestamp":          p.started.Format(time.RFC3339Nano),
		"root_model":         p.startEvent.Model,
		"max_depth":          p.startEvent.Limits.Depth,
		"max_iterations":     p.startEvent.Limits.Turns,
		"backend":            "recluse",
		"backend_kwargs":     map[string]any{"model_name": p.startEvent.Model},
		"environment_type":   "sandbox",
		"environment_kwargs": map[string]any{},
		"other_backends":     nil,
	})
	if err != nil {
		return fmt.Errorf("export run: %w", err)
	}
	x.prompt = []llm.Message{{Role: llm.User, Content: p.startEvent.Query}}
	for ev, err := range trajectory.Read(p.dir) {
		if err == nil {
			err = x.add(&ev)
		}
		if err != nil {
			return &v1.Error{Code: v1.CodeInternal, Op: "export run", Err: err}
		}
	}
	return nil
}

// exporter writes the turns of a run from its events.
type exporter struct {
	out         *json.Encoder
	prompt      []llm.Message
	turnStarted time.Time
	blocks      []exportBlock         // of the current turn
	cellCalls   []exportCall          // of the current cell
	openCalls   map[string]exportCall // by call ID; started, but not ended
	answer      *string
}

type exportBlock struct {
	Code   string       `json:"code"`
	Result exportResult `json:"result"`
}

type exportResult struct {
	Stdout string            `json:"stdout"`
	Stderr string            `json:"stderr"`
	Locals map[string]string `json:"locals"`
	Time   float64           `json:"execution_time"`
	Calls  []exportCall      `json:"rlm_calls"`
	Answer *string           `json:"final_answer"`
}

type exportCall struct {
	Model    string      `json:"root_model"`
	Prompt   string      `json:"prompt"`
	Response string      `json:"response"`
	Usage    exportUsage `json:"usage_summary"`
	Time     float64     `json:"execution_time"`
}

type exportUsage struct {
	Models map[string]exportModel `json:"model_usage_summaries"`
}

type exportModel struct {
	Calls  int64 `json:"total_calls"`
	Input  int64 `json:"total_input_tokens"`
	Output int64 `json:"total_output_tokens"`
}

// add processes an event, and writes a line when a turn is complete. Only turns of the run itself are iterations. A
// child run is shown as the call that started it.
func (x *exporter) add(e *v1.RunEvent) error {
	if e.Node != "0" {
		return nil
	}
	switch e.Kind {
	case v1.KindTurnStarted:
		x.turnStarted, x.blocks, x.cellCalls = e.Time, nil, nil
	case v1.KindCallStarted:
		var c v1.CallStarted
		if err := e.Decode(&c); err != nil {
			return err
		}
		x.openCalls[c.ID] = exportCall{Model: c.Model, Prompt: c.Preview}
	case v1.KindCallEnded:
		var c v1.CallEnded
		if err := e.Decode(&c); err != nil {
			return err
		}
		call := x.openCalls[c.ID]
		delete(x.openCalls, c.ID)
		if c.Call != v1.CallSub {
			return nil
		}
		call.Model, call.Response, call.Time = c.Model, c.Text, c.Wall.Seconds()
		call.Usage.Models = map[string]exportModel{c.Model: {c.Usage.Calls, c.Usage.Input, c.Usage.Output}}
		x.cellCalls = append(x.cellCalls, call)
	case v1.KindChildEnded:
		var c v1.ChildEnded
		if err := e.Decode(&c); err != nil {
			return err
		}
		x.cellCalls = append(x.cellCalls, exportCall{
			Model:    "rlm",
			Prompt:   c.Node,
			Response: c.Answer,
			Usage:    exportUsage{map[string]exportModel{}},
		})
	case v1.KindCellStarted:
		var c v1.CellStarted
		if err := e.Decode(&c); err != nil {
			return err
		}
		x.blocks, x.cellCalls = append(x.blocks, exportBlock{Code: c.Code}), []exportCall{}
	case v1.KindAnswer:
		var a v1.RunAnswer
		if err := e.Decode(&a); err != nil {
			return err
		}
		x.answer = &a.Content
	case v1.KindCellEnded:
		var c v1.CellEnded
		if err := e.Decode(&c); err != nil {
			return err
		}
		if len(x.blocks) == 0 {
			return nil
		}
		r := &x.blocks[len(x.blocks)-1].Result
		*r = exportResult{
			Stdout: c.Stdout,
			Stderr: c.Stderr + c.Error,
			Locals: c.Vars,
			Time:   c.Wall.Seconds(),
			Calls:  x.cellCalls,
			Answer: x.answer,
		}
		if r.Locals == nil {
			r.Locals = map[string]string{}
		}
	case v1.KindTurnEnded:
		return x.writeIteration(e)
	default: // the other events do not matter here
	}
	return nil
}

// writeIteration writes the line of a turn that has ended.
func (x *exporter) writeIteration(e *v1.RunEvent) error {
	var t v1.TurnEnded
	if err := e.Decode(&t); err != nil {
		return err
	}
	if x.blocks == nil {
		x.blocks = []exportBlock{}
	}
	err := x.out.Encode(map[string]any{
		"type":           "iteration",
		"iteration":      e.Turn,
		"timestamp":      e.Time.Format(time.RFC3339Nano),
		"prompt":         x.prompt,
		"response":       t.Reply,
		"code_blocks":    x.blocks,
		"final_answer":   x.answer,
		"iteration_time": e.Time.Sub(x.turnStarted).Seconds(),
	})
	x.prompt = append(x.prompt,
		llm.Message{Role: llm.Assistant, Content: t.Reply},
		llm.Message{Role: llm.User, Content: t.Observation})
	return err
}
