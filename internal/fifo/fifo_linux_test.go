package fifo

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStreamBothWays(t *testing.T) {
	dir := t.TempDir()
	pipes, err := Make(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	buf := make([]byte, 4)
	if _, err := s.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(pipes.In, buf); err != nil || string(buf) != "ping" {
		t.Fatalf("guest read %q, %v", buf, err)
	}
	if _, err := pipes.Out.Write([]byte("pong")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, buf); err != nil || string(buf) != "pong" {
		t.Fatalf("host read %q, %v", buf, err)
	}
	pipes.Close()
	if _, err := s.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("read after the guest's end: %v", err)
	}
	if _, err := s.Write(buf); err == nil {
		t.Error("write after the guest's end succeeded")
	}
	if _, err := Open(dir); !errors.Is(err, ErrNoGuest) {
		t.Errorf("attach after the guest's end: %v", err)
	}
}

func TestStreamCloseUnblocks(t *testing.T) {
	dir := t.TempDir()
	pipes, err := Make(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer pipes.Close()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read past its deadline: %v", err)
	}
	_ = s.SetReadDeadline(time.Time{})
	done := make(chan error, 2)
	go func() { _, err := s.Read(make([]byte, 1)); done <- err }()
	go func() { _, err := s.Write(make([]byte, 8*pipeSize)); done <- err }()
	time.Sleep(20 * time.Millisecond) // both are likely to block by now; the test holds either way
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case err := <-done:
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("Close did not unblock")
		}
	}
}

func TestStreamOfNothing(t *testing.T) {
	if _, err := Open(t.TempDir()); !errors.Is(err, ErrNoGuest) {
		t.Errorf("got %v", err)
	}
}

func TestComplaintsAreReadWithoutWaiting(t *testing.T) {
	dir := t.TempDir()
	pipes, err := MakeWithStderr(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer pipes.Close()
	if got := pipes.PendingStderr(); got != "" {
		t.Errorf("before any output: %q", got)
	}
	if _, err := pipes.Err.WriteString("  it hurts\n" + strings.Repeat("x", pendingLimit)); err != nil {
		t.Fatal(err)
	}
	if got := PendingStderr(dir); !strings.HasPrefix(got, "it hurts\nxxx") || len(got) > pendingLimit {
		t.Errorf("got %d bytes, %.20q", len(got), got)
	}
	if got := PendingStderr(t.TempDir()); got != "" {
		t.Errorf("without a pipe: %q", got)
	}
}
