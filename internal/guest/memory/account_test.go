//go:build linux

package memory

import (
	"syscall"
	"testing"
)

const (
	killed   = syscall.WaitStatus(syscall.SIGKILL)
	shell137 = syscall.WaitStatus(killedStatus << 8)
	exited   = syscall.WaitStatus(1 << 8)
)

func TestAccountOfTheKernelsKills(t *testing.T) {
	for name, c := range map[string]struct {
		kills     int64 // by the kernel while the operation runs
		beside    bool  // another operation runs
		end       syscall.WaitStatus
		requested bool
		want      int64
		main      bool
	}{
		"nothing was killed":                {end: exited},
		"killed by another hand":            {end: killed},
		"the main process":                  {kills: 1, end: killed, want: 1, main: true},
		"the main process, beside others":   {kills: 2, beside: true, end: killed, want: 2, main: true},
		"a child of a shell":                {kills: 1, end: shell137, want: 1},
		"a child, which the code survived":  {kills: 3, end: exited, want: 3},
		"somebody's, beside others":         {kills: 3, beside: true, end: exited},
		"the caller asked for SIGKILL, too": {kills: 1, end: killed, requested: true, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(7)
			var a Account
			a.open(func() int64 { return now })
			a.SetMain(42)
			if c.beside {
				a.Share()
			}
			now += c.kills
			a.RecordExit(c.end, c.requested)
			if a.Kills() != c.want || a.MainKilled() != c.main {
				t.Errorf("%d kills, the main process: %t", a.Kills(), a.MainKilled())
			}
		})
	}
}

func TestAccountOfTheEnforcersKills(t *testing.T) {
	var a Account
	a.Open()
	a.Killed(43)
	if a.MainKilled() || a.Kills() != 1 {
		t.Error("the main process is unknown, and a process was killed")
	}
	a.SetMain(42)
	if a.MainKilled() {
		t.Error("another process was killed, not the main one")
	}
	a.SetMain(43)
	if !a.MainKilled() {
		t.Error("the main process was killed before it was known")
	}
	a.Restart(44)
	if a.MainKilled() || a.Kills() != 1 {
		t.Error("a kill of the first attempt must only be counted")
	}
	a.Killed(44)
	if !a.MainKilled() || a.Kills() != 2 {
		t.Error("the main process was killed")
	}
}

func TestParseKills(t *testing.T) {
	for text, want := range map[string]int64{
		"":                                      0,
		"low 0\nhigh 0\noom 2\noom_kill 3\n":    3,
		"oom_kill_disable 0\noom_kill 5":        5,
		"oom_kill x\n":                          0,
		"oom_group_kill 1\noom 1\noom_kill 0\n": 0,
	} {
		if got := parseKills([]byte(text)); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}
