//go:build linux

// Command floor is the smallest possible program between a host and an interpreter in a sandbox. It is started instead
// of our guest, and copies frames between its standard streams and Python's control pipes with plain blocking calls.
// The time of a cell through it is the baseline for the library.
//
// Called as "floor spawn N PROGRAM", it starts a program N times, one after the other, and prints the duration of each
// in nanoseconds.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/kernel/python"
)

func main() {
	err := error(nil)
	if len(os.Args) == 4 && os.Args[1] == "spawn" {
		err = spawn(os.Args[2], os.Args[3])
	} else {
		err = relay()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func spawn(count, program string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	for range n {
		began := time.Now()
		if err := exec.CommandContext(context.Background(), program).Run(); err != nil {
			return err
		}
		fmt.Println(time.Since(began).Nanoseconds())
	}
	return nil
}

// fd reads and writes with blocking calls, without the poller of the Go runtime.
type fd int

func (f fd) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(f), p)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (f fd) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Write(int(f), p[done:])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return done, err
		}
		done += max(n, 0)
	}
	return done, nil
}

const maxFrame = 64 << 20

func relay() error {
	var down, up [2]int
	for _, p := range []*[2]int{&down, &up} {
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return err
		}
	}
	page, file, err := kernel.NewPage() // the interpreter writes there which cell began; it is not read here
	if err != nil {
		return err
	}
	defer page.Close()
	argv := python.Kernel{}.Command("python3")
	python3 := exec.CommandContext(context.Background(), argv[0], argv[1:]...)
	python3.ExtraFiles = []*os.File{os.NewFile(uintptr(down[0]), "down"), os.NewFile(uintptr(up[1]), "up"), file}
	if err := python3.Start(); err != nil {
		return err
	}
	for _, f := range python3.ExtraFiles {
		_ = f.Close() // Python has its own copies
	}
	if _, err := fd(down[1]).Write(kernel.AppendFrame(nil, kernel.TypeSource, python.Kernel{}.Source())); err != nil {
		return err
	}
	host, interpreter := bufio.NewReader(fd(0)), bufio.NewReader(fd(up[0]))
	buf := make([]byte, 64<<10)
	// The interpreter sends the first frame, its hello. After that, it answers each frame of the host with several
	// frames, the last of which has the type end.
	for {
		var out []byte
		for typ := byte(0); typ != kernel.TypeEnd && typ != kernel.TypeHello; {
			var payload []byte
			var err error
			if typ, payload, err = kernel.ReadFrame(interpreter, buf, maxFrame); err != nil {
				return err
			}
			out = kernel.AppendFrame(out, typ, payload)
		}
		if _, err := fd(1).Write(out); err != nil {
			return err
		}
		typ, payload, err := kernel.ReadFrame(host, buf, maxFrame)
		if err != nil {
			return err
		}
		if _, err := fd(down[1]).Write(kernel.AppendFrame(nil, typ, payload)); err != nil {
			return err
		}
	}
}
