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
	maxImages  = 8       // maximum number of images per cell
	maxImage   = 4 << 20 // maximum size of one in base64 characters
)

type runCode struct {
	sessionArg
	networkArg
	Code    string            `json:"code" doc:"Python code to run; the value of the last expression is shown"`
	Context string            `json:"context,omitempty" doc:"name of the interpreter context; left out: default. Each has its own variables"`
	Timeout float64           `json:"timeout_seconds,omitempty" doc:"timeout in seconds; left out: 30"`
	Env     map[string]string `json:"env,omitempty" doc:"environment variables of this cell only"`
}

type runBash struct {
	sessionArg
	networkArg
	Command string            `json:"command" doc:"bash script to run"`
	Dir     string            `json:"working_dir,omitempty" doc:"directory to run in; relative to the working directory of the sandbox, by default the home directory"`
	Timeout float64           `json:"timeout_seconds,omitempty" doc:"timeout in seconds; left out: 30"`
	Env     map[string]string `json:"env,omitempty" doc:"environment variables of this command"`
}

// verdict is a sandbox.Verdict without its methods.
type verdict sandbox.Verdict

// outcome is a verdict in a form for models: output and result are texts, and entries of the metadata have their own
// fields. All other fields are those of the verdict.
type outcome struct {
	Session    string `json:"session" doc:"session in which it ran"`
	NewSession bool   `json:"new_session,omitempty" doc:"the session was created for this call; it has no state of earlier calls"`
	OK         bool   `json:"ok" doc:"it ended on its own, with exit code 0 and without an exception"`
	verdict
	Ended      sandbox.Ending `json:"ended" doc:"exit, signal, timeout, cancelled, memory, killed or start"`
	Signal     string         `json:"signal,omitempty"`
	Stdout     string         `json:"stdout"`
	Stderr     string         `json:"stderr"`
	Produced   int64          `json:"output_bytes" doc:"bytes written to stdout and stderr, including cut ones"`
	Cut        int64          `json:"cut_bytes,omitempty" doc:"bytes missing from the middle of stdout and stderr"`
	StdoutFile string         `json:"stdout_file,omitempty" doc:"file in the sandbox with the complete stdout, if a part was cut"`
	StderrFile string         `json:"stderr_file,omitempty"`
	Displayed  []string       `json:"displayed,omitempty" doc:"values that the code displayed, as text; images are separate content"`
	Result     string         `json:"result,omitempty" doc:"value of the last expression"`
	StateKept  *bool          `json:"state_kept,omitempty" doc:"the interpreter still runs and has its variables"`
	StateFrom  string         `json:"state_from,omitempty" doc:"the session's sandbox was lost and restored; variables and files have their state of this time"`
	Previous   string         `json:"previous_session,omitempty" doc:"the session is new, because the previous session of that name ended, as described here; its variables and files are gone"`
	Warning    string         `json:"gate_warning,omitempty" doc:"warning of the gate about this code"`

	images []sdk.Content // displayed values that are images
}

func (srv *mcpServer) addRun() {
	add(srv, tool{
		name:        "run_code",
		title:       "Run Python",
		destructive: true,
		description: "Run Python in the session's live interpreter. " +
			"Variables, imports and files stay for the next call. " +
			"The sandbox has no network unless the user has allowed it.",
		shape: func(in *jsonschema.Schema) {
			setMaxLength(in, "code", v1.MaxCode)
			setRange(in, "timeout_seconds", 0, maxTimeout.Seconds())
		},
	}, func(c *call, in runCode) (outcome, error) {
		return c.cell(in.Session, in.Network, sandbox.Cell{
			Code:       in.Code,
			Context:    in.Context,
			RunOptions: sandbox.RunOptions{Timeout: seconds(in.Timeout), Env: in.Env},
		})
	})
	add(srv, tool{
		name:        "run_bash",
		title:       "Run a shell command",
		destructive: true,
		description: "Run a bash script in the session's sandbox. " +
			"Files stay for the next call, shell variables do not. " +
			"At the timeout, the script and everything that it started are killed; " +
			"otherwise background processes continue to run after its end.",
		shape: func(in *jsonschema.Schema) {
			setMaxLength(in, "command", v1.MaxCode)
			setRange(in, "timeout_seconds", 0, maxTimeout.Seconds())
		},
	}, func(c *call, in runBash) (outcome, error) {
		return c.command(in.Session, in.Network, sandbox.Command{
			Shell:      in.Command,
			Dir:        in.Dir,
			RunOptions: sandbox.RunOptions{Timeout: seconds(in.Timeout), Env: in.Env},
		})
	})
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (c *call) cell(name, network string, cell sandbox.Cell) (outcome, error) {
	return c.run(
		name,
		network,
		&cell.RunOptions,
		func(s *client.Session) (*sandbox.Verdict, error) { return s.Cell(c, cell) },
		true,
	)
}

func (c *call) command(name, network string, cmd sandbox.Command) (outcome, error) {
	run := func(s *client.Session) (*sandbox.Verdict, error) { return s.Run(c, cmd) }
	return c.run(name, network, &cmd.RunOptions, run, false)
}

// run runs a cell or command. Its output is sent as progress notifications, if the client requested them. state is set
// for a cell, whose result contains StateKept.
func (c *call) run(
	name, network string,
	o *sandbox.RunOptions,
	do func(*client.Session) (*sandbox.Verdict, error),
	state bool,
) (outcome, error) {
	s, opened, err := c.openWith(name, network)
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
		Session:    name,
		NewSession: made,
		OK:         v.OK() && v.Error == nil,
		verdict:    verdict(*v),
		Ended:      v.Ended,
		Stdout:     strings.ToValidUTF8(v.Stdout.String(), "\uFFFD"),
		Stderr:     strings.ToValidUTF8(v.Stderr.String(), "\uFFFD"),
		Produced:   v.Stdout.Produced + v.Stderr.Produced,
		Cut:        v.Stdout.Cut() + v.Stderr.Cut(),
		StdoutFile: v.Stdout.File,
		StderrFile: v.Stderr.File,
		Warning:    v.Metadata[session.MetaGate],
		StateFrom:  v.Metadata[session.MetaStateFrom],
		Previous:   v.Metadata[session.MetaPrevious],
	}
	o.Displays, o.Metadata, o.images = nil, nil, imagesOf(v)
	for _, d := range v.Displays {
		if text := textOf(&d); text != "" && !isImage(&d) {
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

// countRunning returns the number of survivors that still run.
func countRunning(list []sandbox.Process) (n int) {
	for _, p := range list {
		if !p.Killed {
			n++
		}
	}
	return n
}

// newSessionNote returns the note that the session has the name of an ended session; previous is how that session
// ended.
func newSessionNote(previous string) string {
	return "[the session is new; the previous session of that name " + previous + "; its variables and files are gone]"
}

// restoredNote returns the note that the session was restored to its state at the time from.
func restoredNote(from string) string {
	return "[the session's sandbox was lost and restored; variables and files have their state of " + from + "]"
}

// render returns an outcome as text and images. The result of code that failed is an error, so that a model notices it.
func (o outcome) render() *sdk.CallToolResult {
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
		block("", "[session "+o.Session+" was created for this call]")
	}
	if o.Previous != "" {
		block("", newSessionNote(o.Previous))
	}
	if o.StateFrom != "" {
		block("", restoredNote(o.StateFrom))
	}
	if o.StateLostBefore {
		block("", "[the interpreter had ended before this call; earlier variables are gone]")
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
	case o.OK && b.Len() == 0 && len(o.images) == 0:
		b.WriteString("[done, without output]\n")
	case !o.OK && o.Error == nil:
		fmt.Fprintf(&b, "[exit code %d]\n", o.ExitCode)
	}
	if o.StateKept != nil && !*o.StateKept {
		block("", "[the interpreter ended and its variables are gone; files are kept]")
	}
	if n := countRunning(o.Survivors); n > 0 {
		fmt.Fprintf(&b, "[%d processes still run in the background]\n", n)
	}
	return &sdk.CallToolResult{
		IsError: !o.OK,
		Content: append([]sdk.Content{&sdk.TextContent{Text: b.String()}}, o.images...),
	}
}

// bareObject matches the default text of a Python object, which only names its class.
var bareObject = regexp.MustCompile(`^<[\w.]+ object( at 0x[0-9a-f]+)?>$`)

// textOf returns a value as text. If the plain text only names the class, as for HTML objects, it returns another text
// format.
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

// isImage reports whether a value has an image format.
func isImage(b *sandbox.Bundle) bool {
	return b.Format("image/png") != "" || b.Format("image/jpeg") != ""
}

// imagesOf returns the displayed values and the result of a cell that are images.
func imagesOf(v *sandbox.Verdict) (out []sdk.Content) {
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
