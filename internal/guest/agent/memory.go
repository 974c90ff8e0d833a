//go:build linux

package agent

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/proc"
)

// The host's kernel is a bad judge of who uses a sandbox's memory. All of it belongs
// to gVisor's one memory file: a killed process frees nothing until gVisor has
// given its pages back, and what was filled by read(2) counts as gVisor's own. A hard limit
// therefore tends to kill the whole sandbox. So the guest, who sees true figures inside,
// watches, and kills the largest process before the limit is reached; the host's
// limit stands a reserve above it, as a backstop.
const (
	// fastest is how quickly code can fill memory: the next look comes before it can be full.
	fastest = 2 << 30 // bytes a second
	// soonest and latest bound the pause between two looks.
	soonest = 4 * time.Millisecond
	latest  = 500 * time.Millisecond
	// asleep is the pause while nothing runs.
	asleep = 2 * time.Second
	// settle is how long a killed process has to vanish before another is chosen.
	settle = 250 * time.Millisecond
)

// police keeps the sandbox below its memory limit.
func (a *Agent) police() {
	for {
		_, used, ok := meminfo()
		if !ok {
			time.Sleep(latest)
			continue
		}
		left := a.cfg.Memory - used
		if left <= 0 {
			a.killLargest()
			continue
		}
		pause := time.Duration(float64(left) / fastest * float64(time.Second) / 2)
		pause = min(max(pause, soonest), latest)
		if pause == latest && !a.anythingRuns() {
			pause = asleep
		}
		time.Sleep(pause)
	}
}

func (a *Agent) anythingRuns() bool {
	for _, o := range a.ops.all() {
		if !o.finished() {
			return true
		}
	}
	return false
}

// meminfo gives the sandbox's memory and how much of it is used, files in memory included.
func meminfo() (total, used int64, ok bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0, false
	}
	defer f.Close()
	buf := make([]byte, 512)
	n, err := f.Read(buf)
	if err != nil {
		return 0, 0, false
	}
	buf = buf[:n]
	field := func(name string) (int64, bool) {
		i := bytes.Index(buf, []byte(name))
		if i < 0 {
			return 0, false
		}
		w := bytes.Fields(buf[i+len(name):])
		if len(w) == 0 {
			return 0, false
		}
		kb, err := strconv.ParseInt(string(w[0]), 10, 64)
		return kb << 10, err == nil
	}
	total, ok1 := field("MemTotal:")
	free, ok2 := field("MemFree:")
	return total, total - free, ok1 && ok2
}

// killLargest ends the process with the most memory that is not ours, and notes for
// whose operation that was. While it chooses and waits everybody else stands still:
// otherwise a hundred small processes together outrun it.
func (a *Agent) killLargest() {
	all, err := proc.List()
	if err != nil {
		return
	}
	parent := map[int]int{}
	for _, p := range all {
		parent[p.PID] = p.PPID
	}
	ours := a.ours()
	var victim proc.Process
	var most int64
	var stopped []int
	for _, p := range all {
		if p.Zombie || ours[p.PID] {
			continue
		}
		if p.State != 'T' && unix.Kill(p.PID, syscall.SIGSTOP) == nil {
			stopped = append(stopped, p.PID)
		}
		if rss := proc.Resident(p.PID); rss > most {
			victim, most = p, rss
		}
	}
	defer func() {
		for _, pid := range stopped {
			_ = unix.Kill(pid, syscall.SIGCONT) // one that has gone needs none
		}
	}()
	if most == 0 {
		time.Sleep(soonest)
		return
	}
	a.blame(victim, parent)
	if unix.Kill(victim.PID, syscall.SIGKILL) != nil {
		return
	}
	for end := time.Now().Add(settle); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if p, ok := proc.Get(victim.PID); !ok || p.Start != victim.Start || p.Zombie {
			if _, used, ok := meminfo(); ok && used < a.cfg.Memory {
				return
			}
		}
	}
}

// ours are the processes that must not be taken for the sandbox's: the guest and its nannies.
func (a *Agent) ours() map[int]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	ours := map[int]bool{os.Getpid(): true}
	for pid := range a.trees {
		ours[pid] = true
	}
	for _, n := range a.idle {
		ours[n.PID()] = true
	}
	for _, i := range a.interps {
		ours[i.nanny.PID()] = true
	}
	return ours
}

// blame finds the operation below whose nanny the victim lives.
func (a *Agent) blame(victim proc.Process, parent map[int]int) {
	for pid := victim.PID; pid > 0; pid = parent[pid] {
		a.mu.Lock()
		o := a.trees[pid]
		a.mu.Unlock()
		if o == nil {
			continue
		}
		o.mu.Lock()
		o.kills++
		o.oom = o.oom || o.pid == victim.PID
		o.mu.Unlock()
		return
	}
}

// endStrays kills what came to us because its nanny died.
func (a *Agent) endStrays() {
	ours := a.ours()
	for range 100 {
		all, err := proc.List()
		if err != nil {
			return
		}
		found := false
		for _, p := range all {
			if p.PPID != os.Getpid() || ours[p.PID] {
				continue
			}
			found = true
			_ = unix.Kill(p.PID, syscall.SIGKILL) // gone is what we want
			var ws unix.WaitStatus
			_, _ = unix.Wait4(p.PID, &ws, unix.WNOHANG, nil)
		}
		if !found {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
