package local

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/guest/proc"
)

const (
	// politely is how long nannies have, once the guest has gone, to end what they look after. They do it
	// better than we could from outside: they stop a tree before they kill it.
	politely = 2 * time.Second
	// Between two looks at the process table, doubling from the first to the second.
	firstLook = time.Millisecond
	laterLook = 50 * time.Millisecond
)

// endTree ends the guest and everything below it. The guest's end closes the sockets of its nannies, which then
// kill what they have started; what is left after that is killed here.
func endTree(ctx context.Context, st state) error {
	guest := st.Process
	tree := map[backendkit.Process]bool{}
	look := func() error {
		if !guest.Alive() {
			return nil
		}
		all, err := proc.Descendants(guest.PID)
		if err != nil {
			return err
		}
		for _, p := range all {
			tree[backendkit.Process{PID: p.PID, Start: p.Start}] = true
		}
		return nil
	}
	if err := look(); err != nil {
		return err
	}
	tree[guest] = true
	if guest.Alive() {
		_ = unix.Kill(guest.PID, syscall.SIGTERM)
		_ = unix.Kill(guest.PID, syscall.SIGCONT) // one that is stopped could not hear it
	}
	began := time.Now()
	for pause := firstLook; ; pause = min(2*pause, laterLook) {
		if time.Since(began) > politely/4 && guest.Alive() {
			if err := look(); err != nil {
				return err
			}
			_ = unix.Kill(guest.PID, syscall.SIGKILL)
		}
		left := 0
		for p := range tree {
			if !p.Alive() {
				delete(tree, p)
				continue
			}
			left++
			if time.Since(began) > politely {
				_ = unix.Kill(p.PID, syscall.SIGKILL)
			}
		}
		if left == 0 {
			// Whoever had lost its parents before we looked.
			for _, pid := range marked(st.ID) {
				left++
				tree[backendkit.ProcessOf(pid)] = true // a dying process loses its mark before it has ended
				_ = unix.Kill(pid, syscall.SIGKILL)
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%d are left: %w", left, ctx.Err())
		}
	}
}

// marked gives the processes whose environment names the sandbox, and its guest, which hides its own but
// has the name as its argument.
func marked(id string) []int {
	all, err := proc.List()
	if err != nil {
		return nil
	}
	want := []byte(marker + "=" + id)
	var out []int
	for _, p := range all {
		if p.Zombie {
			continue
		}
		dir := "/proc/" + strconv.Itoa(p.PID)
		if line, err := os.ReadFile(dir + "/cmdline"); err == nil && bytes.HasSuffix(line, []byte("\x00"+id+"\x00")) && bytes.Contains(line, []byte(bundle.GuestName)) {
			out = append(out, p.PID)
			continue
		}
		env, err := os.ReadFile(dir + "/environ")
		if err != nil {
			continue // it has gone, or is not ours
		}
		for v := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.Equal(v, want) {
				out = append(out, p.PID)
				break
			}
		}
	}
	return out
}
