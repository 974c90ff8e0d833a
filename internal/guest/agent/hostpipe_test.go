//go:build linux

package agent

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestHostPipe(t *testing.T) {
	for name, long := range map[string]bool{"nothing runs": false, "a command runs": true, "a pipe that does not wait": false} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			h := &hostPipe{fd: int(r.Fd())}
			if err := unix.SetNonblock(h.fd, strings.Contains(name, "not wait")); err != nil {
				t.Fatal(err)
			}
			if long {
				over := h.beginLong()
				defer func() {
					over()
					if h.long.Load() != 0 {
						t.Error("the read does not end")
					}
				}()
			}
			time.AfterFunc(20*time.Millisecond, func() {
				_, _ = w.WriteString("hello")
				_ = w.Close()
			})
			if got, err := io.ReadAll(h); string(got) != "hello" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			if _, err := (&hostPipe{fd: -1}).Read(make([]byte, 1)); !errors.Is(err, unix.EBADF) {
				t.Error(err)
			}
		})
	}
}
