package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestRunning(t *testing.T) {
	k := servertest.New(t, server.Options{})
	s := open(t, k.Trusted, "work")
	ctx := t.Context()

	t.Run("output streams while it comes", func(t *testing.T) {
		var out, errs strings.Builder
		var shown []string
		v, err := s.Cell(ctx, sandbox.Cell{
			Code:       "import sys\nprint('oné')\nprint('two', file=sys.stderr)\ndisplay(3)\n4",
			Display:    func(b sandbox.Bundle) { shown = append(shown, b.Text()) },
			RunOptions: sandbox.RunOptions{Stdout: &out, Stderr: &errs},
		})
		if err != nil || !v.OK() || v.Result.Text() != "4" {
			t.Fatal(v, err)
		}
		if out.String() != "oné\n" || errs.String() != "two\n" || len(shown) == 0 || shown[0] != "3" {
			t.Errorf("%q %q %v", out.String(), errs.String(), shown)
		}
	})
	t.Run("bytes that are no text", func(t *testing.T) {
		var out bytes.Buffer
		c := sandbox.Command{Args: []string{"printf", `\377\376\303`}, RunOptions: sandbox.RunOptions{Stdout: &out}}
		v, err := s.Run(ctx, c)
		if err != nil || out.String() != "\xff\xfe\xc3" || string(v.Stdout.Head) != "\xff\xfe\xc3" {
			t.Errorf("%q %v %v", out.String(), v, err)
		}
		v, err = s.Run(ctx, sandbox.Command{Args: []string{"printf", "%s", "\xffarg"}})
		if err != nil || string(v.Stdout.Head) != "\xffarg" {
			t.Errorf("%v %v", v, err)
		}
	})
	t.Run("input streams", func(t *testing.T) {
		r, w := io.Pipe()
		var out strings.Builder
		go func() { _, _ = io.WriteString(w, "a\n"); _, _ = io.WriteString(w, "b\n"); w.Close() }()
		v, err := s.Run(ctx, sandbox.Command{Shell: "while read x; do echo got $x; done; exit 3", RunOptions: sandbox.RunOptions{Stdin: r, Stdout: &out}})
		if err != nil || v.ExitCode != 3 || out.String() != "got a\ngot b\n" {
			t.Errorf("%q %v %v", out.String(), v, err)
		}
		v, err = s.Cell(ctx, sandbox.Cell{Code: "input()", RunOptions: sandbox.RunOptions{Stdin: strings.NewReader("hello\n")}})
		if err != nil || v.Result.Text() != "'hello'" {
			t.Errorf("%v %v", v, err)
		}
	})
	t.Run("much of both", func(t *testing.T) {
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB
		var out bytes.Buffer
		v, err := s.Run(ctx, sandbox.Command{Args: []string{"cat"}, RunOptions: sandbox.RunOptions{Stdin: bytes.NewReader(data), Stdout: &out}})
		if err != nil || !v.OK() || !bytes.Equal(out.Bytes(), data) {
			t.Errorf("%d bytes, %v %v", out.Len(), v, err)
		}
	})
	t.Run("a terminal", func(t *testing.T) {
		r, w := io.Pipe()
		defer w.Close()
		resize := make(chan sandbox.Size, 1)
		out := &lockedBuffer{}
		go func() {
			testneed.Await(t, "the first size", func() bool { return strings.Contains(out.String(), "24 80") })
			resize <- sandbox.Size{Rows: 40, Cols: 100}
			testneed.Await(t, "the second size", func() bool { _, _ = io.WriteString(w, "stty size\n"); return strings.Contains(out.String(), "40 100") })
			_, _ = io.WriteString(w, "exit 5\n")
		}()
		v, err := s.Run(ctx, sandbox.Command{Shell: "stty size; exec sh", PTY: &sandbox.Size{Rows: 24, Cols: 80}, Resize: resize, RunOptions: sandbox.RunOptions{Stdin: r, Stdout: out}})
		if err != nil || v.ExitCode != 5 {
			t.Errorf("%v %v %q", v, err, out.String())
		}
	})
	t.Run("whoever gives up gets a verdict", func(t *testing.T) {
		for name, c := range map[string]sandbox.Command{
			"plain": {Shell: "sleep 60"}, "with output": {Shell: "echo x; sleep 60", RunOptions: sandbox.RunOptions{Stdout: io.Discard}}, "with input": {Shell: "sleep 60", RunOptions: sandbox.RunOptions{Stdin: strings.NewReader("")}},
		} {
			ctx, cancel := context.WithCancel(ctx)
			c.ID = "give-up-" + strings.ReplaceAll(name, " ", "-")
			go func() {
				testneed.Await(t, "it runs", func() bool {
					ops, _ := s.Operations(t.Context())
					for _, o := range ops {
						if o.ID == c.ID && o.Running {
							return true
						}
					}
					return false
				})
				cancel()
			}()
			v, err := s.Run(ctx, c)
			if err != nil || v.Ended != v1.EndedCancelled {
				t.Errorf("%s: %v %v", name, v, err)
			}
			cancel()
		}
		if v := cell(t, s, "1"); !v.OK() {
			t.Error(v)
		}
	})
	t.Run("an exception and a time-out are verdicts", func(t *testing.T) {
		if v := cell(t, s, "1/0"); v.Error == nil || v.Error.Name != "ZeroDivisionError" || v.ExitCode != 1 {
			t.Errorf("%+v", v)
		}
		v, err := s.Run(ctx, sandbox.Command{Shell: "sleep 60", RunOptions: sandbox.RunOptions{Timeout: 50 * time.Millisecond}})
		if err != nil || v.Ended != v1.EndedTimeout || v.Status() != 124 {
			t.Errorf("%v %v", v, err)
		}
	})
	t.Run("a writer that fails", func(t *testing.T) {
		v, err := s.Run(ctx, sandbox.Command{Shell: "echo x", RunOptions: sandbox.RunOptions{Stdout: broken{}}})
		if v == nil || !errors.Is(err, errBroken) {
			t.Errorf("%v %v", v, err)
		}
	})
	t.Run("in the background", func(t *testing.T) {
		id, err := s.Start(ctx, sandbox.Command{Shell: "echo on; while [ ! -e /tmp/off ]; do sleep 0.05; done; echo off"})
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		testneed.Await(t, "the first output", func() bool {
			out.Reset()
			v, err := s.Follow(ctx, id, sandbox.FollowOptions{NoWait: true, Stdout: &out})
			if v != nil || err != nil {
				t.Fatal(v, err)
			}
			return out.Len() > 0
		})
		if err := s.Files().WriteAll(ctx, "/tmp/off", nil, sandbox.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		out.Reset()
		v, err := s.Follow(ctx, id, sandbox.FollowOptions{StdoutOffset: 3, Stdout: &out})
		if err != nil || !v.OK() || out.String() != "off\n" {
			t.Errorf("%v %v %q", v, err, out.String())
		}
		if err := s.Forget(ctx, id); err != nil {
			t.Error(err)
		}
		if _, err := s.Follow(ctx, id, sandbox.FollowOptions{}); v1.CodeOf(err) != v1.CodeNotFound {
			t.Errorf("forgotten: %v", err)
		}
	})
	t.Run("signals", func(t *testing.T) {
		id, err := s.Start(ctx, sandbox.Command{Args: []string{"sleep", "60"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Signal(ctx, id, syscall.SIGTERM, sandbox.SignalOptions{Tree: true}); err != nil {
			t.Fatal(err)
		}
		v, err := s.Follow(ctx, id, sandbox.FollowOptions{})
		if err != nil || v.Ended != v1.EndedKilled || v.Signal != syscall.SIGTERM {
			t.Errorf("%v %v", v, err)
		}
	})
	t.Run("contexts", func(t *testing.T) {
		if _, err := s.Cell(ctx, sandbox.Cell{Code: "y = 1", Context: "other"}); err != nil {
			t.Fatal(err)
		}
		list, err := s.Contexts(ctx)
		if err != nil || len(list) != 2 {
			t.Errorf("%v %v", list, err)
		}
		if err := s.CloseContext(ctx, "other"); err != nil {
			t.Error(err)
		}
	})
}

func TestServerThatIsNotThere(t *testing.T) {
	c, err := client.New(client.Options{URL: "http://127.0.0.1:1", RetryTime: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Session("x").Cell(t.Context(), sandbox.Cell{Code: "1"})
	if e, ok := errors.AsType[*v1.Error](err); !ok || e.Code != v1.CodeUnavailable || !e.Retry {
		t.Errorf("%v", err)
	}
	for _, o := range []client.Options{{}, {URL: "http://a", Socket: "/b"}, {URL: "ftp://a"}, {URL: "nonsense"}} {
		if _, err := client.New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

func TestServerThatIsBeingStarted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	const patience = 100 * time.Millisecond
	began := time.Now()
	var srv *http.Server
	c, err := client.New(client.Options{Socket: path, RetryTime: patience, Starting: func() bool {
		if time.Since(began) < 5*patience {
			return true
		}
		if srv == nil {
			ln, err := net.Listen("unix", path)
			if err != nil {
				t.Error(err)
				return false
			}
			srv = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }), ReadHeaderTimeout: time.Minute}
			go func() { _ = srv.Serve(ln) }()
		}
		return true
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Session("x").Info(t.Context()); err != nil {
		t.Error(err)
	}
	if srv == nil || srv.Close() != nil {
		t.Error("it was given up while it was being started")
	}
}

var errBroken = errors.New("broken")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errBroken }
