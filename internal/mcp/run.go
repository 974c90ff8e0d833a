package mcp

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

const (
	maxTimeout = 24 * time.Hour
	maxImages  = 8       // shown values of one cell that are passed on as images
	maxImage   = 4 << 20 // base64 characters of one
)

type runCode struct {
	where
	Code    string            `json:"code" doc:"Python to run; the value of a last expression is shown"`
	Context string            `json:"context,omitempty" doc:"name of the interpreter; left out: default. Each has variables of its own"`
	Timeout float64           `json:"timeout_seconds,omitempty" doc:"seconds it may take; left out: 30"`
	Env     map[string]string `json:"env,omitempty" doc:"environment variables for this cell alone"`
}

type runBash struct {
	where
	Command string            `json:"command" doc:"script for bash"`
	Dir     string            `json:"working_dir,omitempty" doc:"directory to run in; relative ones begin in the working directory of the sandbox, which is the home directory by default"`
	Timeout float64           `json:"timeout_seconds,omitempty" doc:"seconds it may take; left out: 30"`
	Env     map[string]string `json:"env,omitempty" doc:"environment variables for this command"`
}

// verdict is a verdict without its methods.
type verdict sandbox.Verdict

// outcome is a verdict as a model needs it: output and result are texts, and what the metadata says is told apart. Everything else is as in the verdict.
type outcome struct {
	Session    string `json:"session" doc:"where it ran"`
	NewSession bool   `json:"new_session,omitempty" doc:"the session was made for this call: nothing from earlier calls is there"`
	OK         bool   `json:"ok" doc:"it ended by itself, with exit code 0 and without an exception"`
	verdict
	Ended      sandbox.Ending `json:"ended" doc:"exit, signal, timeout, cancelled, memory, killed or start"`
	Signal     string         `json:"signal,omitempty"`
	Stdout     string         `json:"stdout"`
	Stderr     string         `json:"stderr"`
	Produced   int64          `json:"output_bytes" doc:"bytes written to both, shown or not"`
	Cut        int64          `json:"cut_bytes,omitempty" doc:"bytes missing from the middle of stdout and stderr"`
	StdoutFile string         `json:"stdout_file,omitempty" doc:"file in the sandbox with all of stdout, if something was cut"`
	StderrFile string         `json:"stderr_file,omitempty"`
	Displayed  []string       `json:"displayed,omitempty" doc:"values that the code displayed, as text; pictures are content of their own"`
	Result     string         `json:"result,omitempty" doc:"value of the last expression"`
	StateKept  *bool          `json:"state_kept,omitempty" doc:"the interpreter and its variables live on"`
	StateFrom  string         `json:"state_from,omitempty" doc:"the session's sandbox was lost: variables and files went back to what they were at this moment"`
	Previous   string         `json:"previous_session,omitempty" doc:"the session is new, because the previous one of that name has ended as said here: its variables and files are gone"`
	Warning    string         `json:"gate_warning,omitempty" doc:"what the gate has against this code"`

	pictures []sdk.Content // shown values that are images
}

func (f *face) addRun() {
	add(f, tool{
		name: "run_code", title: "Run Python", destructive: true,
		description: "Run Python in the session's live interpreter. Variables, imports and files stay for the next call. The sandbox has no network unless the user gave it one.",
		shape: func(in *jsonschema.Schema) {
			longest(in, "code", v1.MaxCode)
			between(in, "timeout_seconds", 0, maxTimeout.Seconds())
		},
	}, func(c *call, in runCode) (outcome, error) {
		return c.cell(in.Session, sandbox.Cell{Code: in.Code, Context: in.Context, RunOptions: sandbox.RunOptions{Timeout: seconds(in.Timeout), Env: in.Env}})
	})
	add(f, tool{
		name: "run_bash", title: "Run a shell command", destructive: true,
		description: "Run a bash script in the session's sandbox. Files stay for the next call, variables of the shell do not. Ends with everything it started when its time is up; processes put into the background go on.",
		shape: func(in *jsonschema.Schema) {
			longest(in, "command", v1.MaxCode)
			between(in, "timeout_seconds", 0, maxTimeout.Seconds())
		},
	}, func(c *call, in runBash) (outcome, error) {
		return c.command(in.Session, sandbox.Command{Shell: in.Command, Dir: in.Dir, RunOptions: sandbox.RunOptions{Timeout: seconds(in.Timeout), Env: in.Env}})
	})
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (c *call) cell(name string, cell sandbox.Cell) (outcome, error) {
	return c.run(name, &cell.RunOptions, func(s *client.Session) (*sandbox.Verdict, error) { return s.Cell(c, cell) }, true)
}

func (c *call) command(name string, cmd sandbox.Command) (outcome, error) {
	return c.run(name, &cmd.RunOptions, func(s *client.Session) (*sandbox.Verdict, error) { return s.Run(c, cmd) }, false)
}

// run runs a cell or command, and tells a client that asked for it what is written meanwhile.
func (c *call) run(name string, o *sandbox.RunOptions, do func(*client.Session) (*sandbox.Verdict, error), state bool) (outcome, error) {
	s, opened, err := c.open(name)
	if err != nil {
		return outcome{}, err
	}
	p := c.progress("running")
	if p != nil {
		o.Stdout, o.Stderr = p, p
	}
	v, err := do(s)
	p.stop()
	if err != nil {
		return outcome{}, err
	}
	out := outcomeOf(s.Name(), opened.New, v)
	if state {
		out.StateKept = &v.StateKept
	}
	return out, nil
}

func outcomeOf(name string, made bool, v *sandbox.Verdict) outcome {
	o := outcome{
		Session: name, NewSession: made, OK: v.OK() && v.Error == nil, verdict: verdict(*v), Ended: v.Ended,
		Stdout: strings.ToValidUTF8(v.Stdout.String(), "\uFFFD"), Stderr: strings.ToValidUTF8(v.Stderr.String(), "\uFFFD"),
		Produced: v.Stdout.Produced + v.Stderr.Produced, Cut: v.Stdout.Cut() + v.Stderr.Cut(), StdoutFile: v.Stdout.File, StderrFile: v.Stderr.File,
		Warning: v.Metadata[session.MetaGate], StateFrom: v.Metadata[session.MetaStateFrom],
		Previous: v.Metadata[session.MetaPrevious],
	}
	o.Displays, o.Metadata, o.pictures = nil, nil, pictures(v)
	for _, d := range v.Displays {
		if text := textOf(&d); text != "" && !picture(&d) {
			o.Displayed = append(o.Displayed, text)
		}
	}
	if v.Ended == v1.EndedSignal || v.Ended == v1.EndedKilled {
		o.Signal = v.Signal.String()
	}
	if v.StartError != "" && o.Stderr == "" {
		o.Stderr = v.StartError
	}
	if v.Result != nil {
		o.Result = textOf(v.Result)
	}
	return o
}

// running counts the processes that were left.
func running(list []sandbox.Process) (n int) {
	for _, p := range list {
		if !p.Killed {
			n++
		}
	}
	return n
}

// isNew tells that the session took the name of an earlier one, and how that one ended.
func isNew(previous string) string {
	return "[the session is new; the previous one of that name " + previous + "; its variables and files are gone]"
}

// wentBack tells that a session is no longer as it was left.
func wentBack(from string) string {
	return "[the session's sandbox was lost: variables and files are those of " + from + "]"
}

// shown returns an outcome as text and pictures. Code that failed is an error of the tool, so that a model looks at it.
func (o outcome) shown() *sdk.CallToolResult {
	var b strings.Builder
	block := func(title, text string) {
		if text == "" {
			return
		}
		if title != "" {
			fmt.Fprintf(&b, "[%s]\n", title)
		}
		b.WriteString(text)
		if !strings.HasSuffix(text, "\n") {
			b.WriteByte('\n')
		}
	}
	if o.NewSession {
		block("", "[session "+o.Session+" was made for this call]")
	}
	if o.Previous != "" {
		block("", isNew(o.Previous))
	}
	if o.StateFrom != "" {
		block("", wentBack(o.StateFrom))
	}
	if o.StateLostBefore {
		block("", "[the interpreter had died: earlier variables are gone]")
	}
	block("", o.Stdout)
	block("stderr", o.Stderr)
	for _, text := range o.Displayed {
		block("displayed", text)
	}
	block("result", o.Result)
	if o.Error != nil {
		block("exception", o.Error.Traceback)
		if o.Error.Traceback == "" {
			block("exception", o.Error.Name+": "+o.Error.Value)
		}
	}
	block("gate", o.Warning)
	switch {
	case o.Ended != v1.EndedExit && o.Ended != v1.EndedStart:
		fmt.Fprintf(&b, "[ended by %s after %d ms; output so far is above]\n", o.Ended, o.Wall.Milliseconds())
	case o.OK && b.Len() == 0 && len(o.pictures) == 0:
		b.WriteString("[done, without output]\n")
	case !o.OK && o.Error == nil:
		fmt.Fprintf(&b, "[exit code %d]\n", o.ExitCode)
	}
	if o.StateKept != nil && !*o.StateKept {
		block("", "[the interpreter was lost with its variables; files are still there]")
	}
	if n := running(o.Survivors); n > 0 {
		fmt.Fprintf(&b, "[%d processes still run in the background]\n", n)
	}
	return &sdk.CallToolResult{IsError: !o.OK, Content: append([]sdk.Content{&sdk.TextContent{Text: b.String()}}, o.pictures...)}
}

// bareObject is the plain text of a value without a text of its own.
var bareObject = regexp.MustCompile(`^<[\w.]+ object( at 0x[0-9a-f]+)?>$`)

// textOf returns a value as text. The plain text of a value that exists to be rendered, such as HTML, only names its class.
func textOf(b *sandbox.Bundle) string {
	plain := b.Text()
	if plain != "" && !bareObject.MatchString(plain) {
		return plain
	}
	for _, mime := range []string{"text/markdown", "text/latex", "text/html", "image/svg+xml"} {
		if text := b.Format(mime); text != "" {
			return text
		}
	}
	return plain
}

// picture reports whether a value is passed on as an image.
func picture(b *sandbox.Bundle) bool {
	return b.Format("image/png") != "" || b.Format("image/jpeg") != ""
}

// pictures are the shown values of a cell that are images.
func pictures(v *sandbox.Verdict) (out []sdk.Content) {
	all := v.Displays
	if v.Result != nil {
		all = append(all[:len(all):len(all)], *v.Result)
	}
	for _, d := range all {
		for _, mime := range []string{"image/png", "image/jpeg"} {
			text := d.Format(mime)
			if text == "" || len(text) > maxImage || len(out) == maxImages {
				continue
			}
			if raw, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(text, "\n", "")); err == nil {
				out = append(out, &sdk.ImageContent{Data: raw, MIMEType: mime})
				break
			}
		}
	}
	return out
}
