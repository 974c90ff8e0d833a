//go:build linux

package gvisor

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

func TestStreamBothWays(t *testing.T) {
	dir := t.TempDir()
	pipes, err := makePipes(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := openStream(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	buf := make([]byte, 4)
	if _, err := s.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(pipes.in, buf); err != nil || string(buf) != "ping" {
		t.Fatalf("guest read %q, %v", buf, err)
	}
	if _, err := pipes.out.Write([]byte("pong")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, buf); err != nil || string(buf) != "pong" {
		t.Fatalf("host read %q, %v", buf, err)
	}
	pipes.close()
	if _, err := s.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("read after the guest's end: %v", err)
	}
	if _, err := s.Write(buf); err == nil {
		t.Error("write after the guest's end succeeded")
	}
	if _, err := openStream(dir); !errors.Is(err, errGuestGone) {
		t.Errorf("attach after the guest's end: %v", err)
	}
}

func TestStreamCloseUnblocks(t *testing.T) {
	dir := t.TempDir()
	pipes, err := makePipes(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer pipes.close()
	s, err := openStream(dir)
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
	go func() { _, err := s.Write(make([]byte, 8*fifoSize)); done <- err }()
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
		case <-time.After(answerWait):
			t.Fatal("Close did not unblock")
		}
	}
}

func TestStreamOfNothing(t *testing.T) {
	if _, err := openStream(t.TempDir()); !errors.Is(err, errGuestGone) {
		t.Errorf("got %v", err)
	}
}
