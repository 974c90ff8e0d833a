package runview

import (
	"fmt"
	"io"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

const (
	fps          = 15                     // maximum frames per second
	tickInterval = 100 * time.Millisecond // for the spinner and the clock
)

// showCursor is the control sequence that makes the cursor visible.
const showCursor = "\x1b[?25h"

// Live draws a run as a tree on a terminal. It reads no keys, so Ctrl-C stays a signal.
type Live struct {
	w       io.Writer
	program *tea.Program
	done    chan struct{}
}

// NewLive starts to draw on w. The caller must call Close or Abandon.
func NewLive(w io.Writer) *Live {
	l := &Live{w: w, done: make(chan struct{})}
	l.program = tea.NewProgram(model{run: newRun(), width: 80, height: 24, now: time.Now()},
		tea.WithOutput(w), tea.WithInput(nil), tea.WithoutSignalHandler(), tea.WithFPS(fps))
	go func() {
		defer close(l.done)
		_, _ = l.program.Run() // an error of the view must not end the run
	}()
	return l
}

// Event updates the tree with an event.
func (l *Live) Event(e v1.RunEvent) { l.program.Send(e) }

// Note shows a line below the tree until the next note.
func (l *Live) Note(text string) { l.program.Send(note(text)) }

// Close draws the tree a last time and leaves it on the screen.
func (l *Live) Close() {
	l.program.Quit()
	<-l.done
}

// Abandon restores the terminal immediately, for a program that exits without calling Close.
func (l *Live) Abandon() { _, _ = fmt.Fprint(l.w, showCursor+"\r\n") }

type (
	note string
	tick time.Time
)

// model is the state of the view.
type model struct {
	run           *run
	note          string
	width, height int
	now           time.Time
}

// Init implements tea.Model.
func (m model) Init() tea.Cmd { return nextTick() }

// nextTick returns the command that sends the next tick.
func nextTick() tea.Cmd { return tea.Tick(tickInterval, func(t time.Time) tea.Msg { return tick(t) }) }

// Update implements tea.Model.
func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case v1.RunEvent:
		m.run.apply(&msg)
	case note:
		m.note = string(msg)
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tick:
		m.now = time.Time(msg)
		return m, nextTick()
	}
	return m, nil
}

// View implements tea.Model.
func (m model) View() tea.View {
	return tea.NewView(strings.Join(m.run.render(m.width, m.height, m.now, m.note), "\n") + "\n")
}
