package v1

import (
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"strings"
	"testing"
)

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Limits)
		bad    string // a part of the error; empty: fine
	}{
		{"the defaults", func(*Limits) {}, ""},
		{"the least memory", func(l *Limits) { l.Memory, l.Disk = MinMemory, 1<<20 }, ""},
		{"too little memory", func(l *Limits) { l.Memory = MinMemory - 1 }, "memory"},
		{"negative memory", func(l *Limits) { l.Memory = -1 }, "memory"},
		{"the least CPU", func(l *Limits) { l.CPUs = MinCPUs }, ""},
		{"too little CPU", func(l *Limits) { l.CPUs = MinCPUs / 2 }, "cpus"},
		{"negative CPU", func(l *Limits) { l.CPUs = -1 }, "cpus"},
		{"CPU that is not a number", func(l *Limits) { l.CPUs = math.NaN() }, "cpus"},
		{"infinite CPU", func(l *Limits) { l.CPUs = math.Inf(1) }, "cpus"},
		{"the fewest processes", func(l *Limits) { l.Processes = MinProcesses }, ""},
		{"too few processes", func(l *Limits) { l.Processes = MinProcesses - 1 }, "processes"},
		{"negative processes", func(l *Limits) { l.Processes = -5 }, "processes"},
		{"too few files", func(l *Limits) { l.OpenFiles = MinOpenFiles - 1 }, "open files"},
		{"too little disk", func(l *Limits) { l.Disk = 1<<20 - 1 }, "disk"},
		{"negative disk", func(l *Limits) { l.Disk = -1 }, "disk"},
		{"no disk yet", func(l *Limits) { l.Disk = 0 }, ""},
		{"more disk than memory", func(l *Limits) { l.Disk = 1 << 40 }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := Limits{}.WithDefaults()
			c.change(&l)
			checkSpec(t, l.Check(), c.bad)
		})
	}
}

func TestFilesInMemoryLeaveAReserve(t *testing.T) {
	l := Limits{Disk: DefaultMemory - MemoryReserve - MinScratch}.WithDefaults()
	checkSpec(t, l.CheckInMemory(), "")
	l.Disk++
	checkSpec(t, l.CheckInMemory(), "disk")
	checkSpec(t, Limits{Memory: MinMemory}.WithDefaults().InMemory().CheckInMemory(), "")
}

func TestLimitsOfZeroAreTheDefaults(t *testing.T) {
	// Literal numbers, not the constants: these are what the documentation promises.
	want := Limits{Memory: 536_870_912, CPUs: 1, Processes: 256, OpenFiles: 4096}
	if l := (Limits{}).WithDefaults(); l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
	onDisk, inMemory := Spec{Limits: want}.Storage(true).Disk, Spec{Limits: want}.Storage(false).Disk
	if readOnly := (Spec{Limits: want, ReadOnly: true}).Storage(true).Disk; onDisk != 10_737_418_240 || inMemory != 268_435_456 || readOnly != inMemory {
		t.Errorf("disk %d, in memory %d, with a read-only root %d", onDisk, inMemory, readOnly)
	}
	if own := (Limits{Memory: 1, CPUs: 2, Processes: 3, Disk: 4, OpenFiles: 5}); own.WithDefaults() != own {
		t.Error("a default replaced a given value")
	}
}

// TestDefaultsAreThosePromised also compares the other defaults with literal numbers.
func TestDefaultsAreThosePromised(t *testing.T) {
	for what, c := range map[string]struct{ got, want any }{
		"timeout":        {DefaultTimeout.String(), "30s"},
		"inline output":  {DefaultInlineBytes, 65_536},
		"spooled output": {DefaultSpoolBytes, 10_485_760},
		"user":           {DefaultUID, 1000},
		"home":           {DefaultHome, "/home/user"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
}

func TestSpec(t *testing.T) {
	for _, c := range []struct {
		name string
		spec Spec
		bad  string
	}{
		{"nothing", Spec{}, ""},
		{"a shell by name", Spec{Shell: "zsh"}, ""},
		{"a shell by path", Spec{Shell: "/bin/zsh"}, ""},
		{"a shell with a relative path", Spec{Shell: "bin/zsh"}, "shell"},
		{"a user by number", Spec{User: "2000"}, ""},
		{"a user and a group", Spec{User: "2000:100"}, ""},
		{"a user by name", Spec{User: "www-data"}, ""},
		{"a negative user", Spec{User: "-1"}, "user"},
		{"a user with a leading zero", Spec{User: "0100"}, "user"},
		{"a user that is too large", Spec{User: "4294967295"}, "user"},
		{"a user with an empty group", Spec{User: "1000:"}, "user"},
		{"a user by name with a group", Spec{User: "www-data:100"}, "user"},
		{"a volume", Spec{Volumes: []Volume{{Name: "data", Path: "/data"}}}, ""},
		{"a volume that is a directory", Spec{Volumes: []Volume{{Name: "/data", Path: "/data"}}}, "volume"},
		{"a volume over the home", Spec{Volumes: []Volume{{Name: "data", Path: DefaultHome}}}, "hide"},
		{"a volume over a mount", Spec{Mounts: []Mount{{Host: "/x", Path: "/data"}}, Volumes: []Volume{{Name: "data", Path: "/data/"}}}, "two mounts"},
		{"options", Spec{Options: map[string]json.RawMessage{"x": []byte(`{"a": 7}`)}}, ""},
		{"options that are not JSON", Spec{Options: map[string]json.RawMessage{"x": []byte(`{`)}}, "JSON"},
		{"everything", Spec{Image: "alpine:3", Env: map[string]string{"A": "=\n"}, Dir: "/work", Hostname: "box", Mounts: []Mount{{Host: "/data", Path: "/data"}, {Host: "/x", Path: "/mnt/x"}}}, ""},
		{"image and root file system", Spec{Image: "a", RootFS: "/b"}, "exclude"},
		{"NUL in the image", Spec{Image: "a\x00"}, "NUL"},
		{"NUL in the root file system", Spec{RootFS: "/a\x00"}, "NUL"},
		{"a variable without a name", Spec{Env: map[string]string{"": "x"}}, "variable"},
		{"a variable with an equals sign", Spec{Env: map[string]string{"A=B": "x"}}, "variable"},
		{"NUL in a value", Spec{Env: map[string]string{"A": "\x00"}}, "variable"},
		{"an environment of maximum size", Spec{Env: map[string]string{"A": strings.Repeat("x", MaxEnv-3)}}, ""},
		{"an environment that is too large", Spec{Env: map[string]string{"A": strings.Repeat("x", MaxEnv-5), "B": ""}}, "environment of"},
		{"a relative directory", Spec{Dir: "work"}, "absolute"},
		{"NUL in the directory", Spec{Dir: "/\x00"}, "absolute"},
		{"a host name that is too long", Spec{Hostname: strings.Repeat("h", 64)}, "hostname"},
		{"a host name like a path", Spec{Hostname: "a/b"}, "hostname"},
		{"a relative mount", Spec{Mounts: []Mount{{Host: "/a", Path: "a"}}}, "absolute"},
		{"a mount over the root", Spec{Mounts: []Mount{{Host: "/a", Path: "/x/.."}}}, "hide"},
		{"a mount over /proc", Spec{Mounts: []Mount{{Host: "/a", Path: "//proc/"}}}, "hide"},
		{"a mount below /etc", Spec{Mounts: []Mount{{Host: "/a", Path: "/etc/x"}}}, "hide"},
		{"a mount over the home", Spec{Mounts: []Mount{{Host: "/a", Path: DefaultHome}}}, "hide"},
		{"two mounts at one place", Spec{Mounts: []Mount{{Host: "/a", Path: "/x"}, {Host: "/b", Path: "/x/"}}}, "two mounts"},
		{"bad limits", Spec{Limits: Limits{Memory: 1}}, "memory"},
	} {
		t.Run(c.name, func(t *testing.T) { checkSpec(t, c.spec.WithDefaults().Check(), c.bad) })
	}
}

func checkSpec(t *testing.T, err error, bad string) {
	t.Helper()
	switch {
	case bad == "" && err != nil:
		t.Errorf("refused: %v", err)
	case bad != "" && (!errors.Is(err, &Error{Code: CodeInvalidSpec}) || !strings.Contains(err.Error(), bad)):
		t.Errorf("the error is %v, want one about %q", err, bad)
	}
}

func TestSpecWithDefaultsSharesNothing(t *testing.T) {
	s := Spec{Env: map[string]string{"A": "1"}, Labels: map[string]string{"l": "1"}, Mounts: []Mount{{Path: "/a"}}, Options: map[string]json.RawMessage{"x": []byte("1")}}
	d := s.WithDefaults()
	d.Env["A"], d.Labels["l"], d.Mounts[0].Path = "2", "2", "/b"
	d.Options["x"][0] = '2'
	d.Options["y"] = nil
	if s.Env["A"] != "1" || s.Labels["l"] != "1" || s.Mounts[0].Path != "/a" || len(s.Options) != 1 || string(s.Options["x"]) != "1" {
		t.Error("the original has changed")
	}
}

func TestNamesOfUsersAndVolumes(t *testing.T) {
	user, volume := regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`), regexp.MustCompile(`^([a-zA-Z0-9_.-]{1,128}/)?[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}$`)
	names := []string{"", "a", "_", "-", ".", "7", "A", "a-b_c9", "a.b", "A.b-c_9", "a b", "a\n", "a/b", "a/b/c", "a/", "/b", "é", "aé", "a\xff", "a:b"}
	for _, n := range []int{31, 32, 33, 254, 255, 256} {
		names = append(names, strings.Repeat("a", n))
	}
	for _, name := range names {
		u, err := ParseUser(name)
		if got, want := err == nil && u.Name != "", user.MatchString(name); got != want {
			t.Errorf("%.40q is the name of a user: %v, want %v", name, got, want)
		}
		err = Spec{Volumes: []Volume{{Name: name, Path: "/data"}}}.WithDefaults().Check()
		if got, want := err == nil, volume.MatchString(name); got != want {
			t.Errorf("%.40q is the name of a volume: %v, want %v", name, got, want)
		}
	}
}
