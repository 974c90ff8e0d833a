package sandboxtest

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// needRoot skips the test if code cannot change the root file system.
func (s *suite) needRoot(t *testing.T) {
	t.Helper()
	if !s.caps.WritableRoot {
		t.Skip("the backend has no writable root")
	}
}

// changeRoot changes the root file system in the ways of an installation.
const changeRoot = "mkdir -p /usr/local/bin && echo tool > /usr/local/bin/x && chmod 755 /usr/local/bin/x && mkdir -p /opt/a/b && echo data > /opt/a/b/c && " +
	"echo 192.0.2.7 example > /opt/hosts"

const seeRoot = "cat /usr/local/bin/x /opt/a/b/c 2>/dev/null; cat /opt/hosts 2>/dev/null | grep -c example"

var disks = []feature{
	{"a request for a root that the backend lacks is refused", onBackend, func(t *testing.T, s *suite) {
		if s.caps.WritableRoot || s.caps.Isolation != sandbox.IsolationNone {
			t.Skip("the root can be read-only")
		}
		_, err := sandbox.Open(t.Context(), s.backend(t), sandbox.Spec{ReadOnly: true})
		fails(t, "a read-only root", err, v1.CodeNotSupported)
	}},
	{"code changes the root file system of its own sandbox only", onBackend, func(t *testing.T, s *suite) {
		s.needRoot(t)
		sb, other := s.open(t), s.open(t)
		same(t, "before", strings.TrimSpace(shell(t, sb, seeRoot+"; true")), "0")
		shell(t, sb, changeRoot)
		same(t, "after", shell(t, sb, seeRoot), "tool\ndata\n1\n")
		same(t, "another sandbox", strings.TrimSpace(shell(t, other, seeRoot+"; true")), "0")
		same(t, "the system", shell(t, sb, "touch /etc/passwd 2>/dev/null || touch /usr/bin/x 2>/dev/null || echo refused"), "refused\n")
		if s.caps.Isolation >= sandbox.IsolationKernel { // the engine of containers owns their mounts and this file
			same(t, "mounted", shell(t, sb, "grep ' / ' /proc/mounts | grep -c nosuid"), "1\n")
			same(t, "the names of hosts", shell(t, sb, "echo 192.0.2.7 example >> /etc/hosts; grep -c example /etc/hosts"), "1\n")
			same(t, "those of another sandbox", shell(t, other, "grep -c example /etc/hosts; true"), "0\n")
		}
		same(t, "a set-uid program", shell(t, sb, "cp /usr/bin/id /opt/id; chmod 4755 /opt/id; /opt/id -u"), "1000\n")
	}},
	{"a read-only root is one by request", onBackend, func(t *testing.T, s *suite) {
		s.needRoot(t)
		sb := s.open(t, func(x *sandbox.Spec) { x.ReadOnly = true })
		same(t, "the root", shell(t, sb, "for f in /opt/x /usr/local/x /srv/x; do touch $f 2>/dev/null && echo $f; done; echo end"), "end\n")
		same(t, "the home directory", shell(t, sb, "echo fine > f; cat f"), "fine\n")
	}},
	{"files may be larger than the memory", onBackend, func(t *testing.T, s *suite) {
		s.needRoot(t)
		sb := s.open(t, func(x *sandbox.Spec) { x.Limits.Memory, x.Limits.Disk = 128<<20, 300<<20 })
		same(t, "written", shell(t, sb, "head -c 200000000 /dev/zero > f; stat -c %s f"), "200000000\n")
		if !s.caps.DiskLimit {
			return
		}
		same(t, "df", shell(t, sb, "df -B1 --output=size / | tail -1"), "314572800\n")
		v := run(t, sb, sandbox.Command{Shell: "head -c 200000000 /dev/zero > /opt/g"})
		contains(t, "beyond the limit", strings.ToLower(v.Stderr.String()), "no space")
		same(t, "after it", shell(t, sb, "rm f /opt/g; head -c 200000000 /dev/zero > f; stat -c %s f"), "200000000\n")
	}},
	{"a full disk is the problem of one sandbox", onBackend, func(t *testing.T, s *suite) {
		s.needRoot(t)
		needLimit(t, s.caps.DiskLimit)
		small := func(x *sandbox.Spec) { x.Limits.Memory, x.Limits.Disk = 128<<20, 64<<20 }
		sb, other := s.open(t, small), s.open(t, small)
		shell(t, sb, "head -c 200000000 /dev/zero > /opt/full; true")
		if v := run(t, sb, sandbox.Command{Shell: "head -c 10000000 /dev/zero > more"}); v.OK() {
			t.Error("more was written than the disk holds")
		}
		same(t, "another sandbox", shell(t, other, "head -c 40000000 /dev/zero > f; stat -c %s f"), "40000000\n")
		same(t, "after it", shell(t, sb, "rm /opt/full more; echo fine > f; cat f"), "fine\n")
	}},
	{"copies and snapshots contain 2 GB of files", onBackend, func(t *testing.T, s *suite) {
		testneed.All(t, "it writes 2 GB; smaller files are copied in every tier")
		s.needRoot(t)
		if s.caps.Snapshots != sandbox.SnapshotsMemory {
			t.Skip("the backend has no snapshots of memory")
		}
		s.needLibrary(t)
		b := s.backend(t)
		sb := s.library(t)
		script(t, sb, "head -c 1000000 /dev/urandom > a; cat a a a a a a a a a a > b; cat b b b b b b b b b b > c; "+
			"for i in 1 2 3 4; do (echo $i; cat c c c c c) > $i; done; rm a b c; cat 1 2 3 4 | md5sum > sum")
		const whole = "cat 1 2 3 4 | md5sum | diff - sum && echo whole"
		copies, err := sb.Fork(t.Context(), 1)
		noError(t, err)
		t.Cleanup(func() { _ = copies[0].Close() })
		script(t, sb, "head -c 500000000 /dev/zero > 1; cat 1 2 3 4 | md5sum > sum")
		same(t, "the copy", script(t, copies[0], whole), "whole\n")
		snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{Stop: true}) // as hibernation does
		noError(t, err)
		t.Cleanup(func() { noError(t, b.DeleteSnapshot(context.WithoutCancel(t.Context()), snap.ID)) })
		restored, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
		noError(t, err)
		t.Cleanup(func() { _ = restored.Close() })
		same(t, "the restored one", script(t, restored, whole), "whole\n")
	}},
	{"snapshots and copies contain the disk", onBackend, func(t *testing.T, s *suite) {
		s.needRoot(t)
		if s.caps.Snapshots == sandbox.SnapshotsNone {
			t.Skip("the backend has no snapshots")
		}
		s.needLibrary(t)
		b := s.backend(t)
		sb := s.library(t)
		script(t, sb, changeRoot+"; head -c 40000000 /dev/urandom > big; md5sum < big > sum")
		snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
		noError(t, err)
		t.Cleanup(func() { noError(t, b.DeleteSnapshot(context.WithoutCancel(t.Context()), snap.ID)) })
		script(t, sb, "rm big /opt/a/b/c; echo more >> /usr/local/bin/x")
		for range 2 {
			restored, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
			noError(t, err)
			t.Cleanup(func() { _ = restored.Close() })
			same(t, "a copy", script(t, restored, seeRoot+"; md5sum < big | diff - sum && echo whole"), "tool\ndata\n1\nwhole\n")
			script(t, restored, "echo other > /opt/a/b/c; head -c 40000000 /dev/zero > big")
		}
	}},
}

// script runs a shell command, which must succeed, and returns its output.
func script(t *testing.T, sb *sandbox.Sandbox, text string) string {
	t.Helper()
	v, err := sb.Run(t.Context(), sandbox.Command{
		Shell: text, RunOptions: sandbox.RunOptions{Timeout: 5 * time.Minute}, // some write gigabytes
	})
	noError(t, err)
	succeeded(t, v)
	return v.Stdout.String()
}
