package docker

import (
	"context"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func withRuntime(name string) func(*Options) { return func(o *Options) { o.Runtime = name } }

func TestCodeRunsAsTheUserOfItsSpec(t *testing.T) {
	for _, c := range []struct{ runtime, user, want string }{
		{"runc", "1001", "1001 1001"}, // the user of bridges, unless code uses it
		{"runc", "2000:3000", "2000 3000"},
		{"runc", "nobody", "65534 65534"},
		{"runsc", "1001:3000", "1001 3000"},
		{"runsc", "nobody", "65534 65534"},
	} {
		t.Run(c.user+" with "+c.runtime, func(t *testing.T) {
			sb := open(t, newBackend(t, withRuntime(c.runtime)), sandbox.Spec{User: c.user})
			const script = "echo $(id -u) $(id -g); cd; echo mine > f; stat -c '%u %g' f ~; touch /tmp/f /var/tmp/f; [ $USER != nobody ] || echo named"
			want := strings.Repeat(c.want+"\n", 3)
			if c.user == "nobody" {
				want += "named\n"
			}
			if got := shell(t, sb, script); got != want {
				t.Errorf("a command: %q", got)
			}
			if v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "import os; f'{os.getuid()} {os.getgid()} {os.getgroups()}'"}); err != nil || !strings.HasPrefix(v.Result.Text(), "'"+c.want+" ") {
				t.Errorf("a cell: %v, %v", v, err)
			}
			if data, err := sb.Files().ReadAll(t.Context(), v1.DefaultHome+"/f"); err != nil || string(data) != "mine\n" {
				t.Errorf("the file is read as %q, %v", data, err)
			}
		})
	}
}

func TestTheUserStaysWithSnapshotsAndAttachments(t *testing.T) {
	b := newBackend(t, nil)
	sb := open(t, b, sandbox.Spec{User: "nobody"})
	shell(t, sb, "echo kept > /home/user/f")
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.DeleteSnapshot(context.WithoutCancel(t.Context()), snap.ID); err != nil {
			t.Error(err)
		}
	})
	sb.Detach()
	again, err := sandbox.Attach(t.Context(), b, sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, again, "id -u"); got != "65534\n" {
		t.Errorf("after an attachment, code runs as user %q", got)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	restored, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, restored, "id -u; stat -c %u /home/user/f; cat /home/user/f"); got != "65534\n65534\nkept\n" {
		t.Errorf("restored: %q", got)
	}
	if err := restored.Close(); err != nil {
		t.Error(err)
	}
}

func TestRootNeedsConsent(t *testing.T) {
	careful := newBackend(t, nil)
	for _, user := range []string{"0", "root", "1000:0"} {
		if _, err := sandbox.Open(t.Context(), careful, sandbox.Spec{User: user}); v1.CodeOf(err) != v1.CodeConsentMissing || !strings.Contains(err.Error(), "unsafe_root") {
			t.Errorf("user %s without consent: %v", user, err)
		}
	}
	b := newBackend(t, func(o *Options) { o.UnsafeRoot = true })
	f, err := b.facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c := b.Capabilities(t.Context()); c.Isolation != f.Level-1 || !strings.Contains(strings.Join(c.Notes, "\n"), "a spec may run code as root") {
		t.Errorf("with consent: isolation %s, %q", c.Isolation, c.Notes)
	}
	sb := open(t, b, sandbox.Spec{User: "root"})
	// Root by name and number, but without capabilities, and with a guest that cannot be read.
	const script = "id -u; touch /home/user/f && stat -c %u /home/user/f; grep -h ^CapEff /proc/self/status | tr -d '\\t' | cut -d: -f2; cat /proc/1/environ 2>/dev/null || echo closed; touch /x 2>/dev/null || echo closed"
	if got := shell(t, sb, script); got != "0\n0\n0000000000000000\nclosed\nclosed\n" {
		t.Errorf("root: %q", got)
	}
	t.Setenv("RECLUSE_ENV", "production")
	if err := b.consentRoot(v1.User{}); v1.CodeOf(err) != v1.CodeConsentMissing {
		t.Errorf("in production: %v", err)
	}
}

func TestRootOnGVisorNeedsNoConsent(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.Runtime = "runsc" })
	if c := b.Capabilities(t.Context()); !c.Root {
		t.Errorf("capabilities: %+v", c)
	}
	for name, spec := range map[string]sandbox.Spec{"root": {User: "root"}, "sudo": {Sudo: true}} {
		sb := open(t, b, spec)
		if got := shell(t, sb, "sudo id -u; sudo grep CapEff /proc/self/status | cut -f 2; kill -9 1 2>/dev/null || echo alive"); got != "0\n00000000000405db\nalive\n" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestSnapshotsKeepFilesOfRoot takes snapshots of files that sudo made: in memory, and on a writable root.
func TestSnapshotsKeepFilesOfRoot(t *testing.T) {
	testneed.All(t, "gVisor's own backend has sudo with snapshots in every tier")
	const (
		fill = "sudo sh -c 'umask 077; mkdir /tmp/r; echo secret > /tmp/r/x; echo theirs > /home/user/r; chown 33:34 /home/user/r'; echo mine > ~/mine"
		see  = "stat -c '%u:%g %a %n' /tmp/r /home/user/r /home/user/mine; sudo stat -c '%u:%g %a' /tmp/r/x; sudo cat /tmp/r/x /home/user/r; cat /home/user/r ~/mine 2> /dev/null"
		want = "0:0 700 /tmp/r\n33:34 600 /home/user/r\n1000:1000 644 /home/user/mine\n0:0 600\nsecret\ntheirs\nmine\n"
	)
	for name, unlimited := range map[string]bool{"in memory": false, "on a writable root": true} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, func(o *Options) { o.Runtime, o.UnlimitedDisk = "runsc", unlimited })
			sb := open(t, b, sandbox.Spec{Sudo: true})
			shell(t, sb, fill)
			snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := b.DeleteSnapshot(context.WithoutCancel(t.Context()), snap.ID); err != nil {
					t.Error(err)
				}
			})
			restored, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = restored.Close() })
			for which, sb := range map[string]*sandbox.Sandbox{"the original": sb, "the copy": restored} {
				if got := shell(t, sb, see+"; true"); got != want {
					t.Errorf("%s has\n%swant\n%s", which, got, want)
				}
			}
		})
	}
}

func TestSudoNeedsAKernelOfItsOwn(t *testing.T) {
	b := newBackend(t, func(o *Options) { o.UnsafeRoot = true })
	if _, err := sandbox.Open(t.Context(), b, sandbox.Spec{Sudo: true}); v1.CodeOf(err) != v1.CodeNotSupported {
		t.Errorf("reported as %v", err)
	}
}

func TestAUserThatTheImageDoesNotKnowIsNamed(t *testing.T) {
	b := newBackend(t, nil)
	if _, err := sandbox.Open(t.Context(), b, sandbox.Spec{User: "martha"}); v1.CodeOf(err) != v1.CodeInvalidSpec || !strings.Contains(err.Error(), `no user "martha"`) {
		t.Errorf("reported as %v", err)
	}
	if left := docker(t, "ps", "-aq", "--filter", "label="+labelInstance+"="+b.instance); left != "" {
		t.Errorf("left behind: %q", left)
	}
}

// scored returns a spec whose commands have an oom_score_adj.
func scored(t *testing.T, score int) sandbox.Spec {
	t.Helper()
	var spec sandbox.Spec
	if err := (SpecOptions{OOMScoreAdj: &score}).Apply(&spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestTheOOMScoreOfASpecHolds(t *testing.T) {
	b := newBackend(t, nil)
	for _, score := range []int{0, 900} {
		sb := open(t, b, scored(t, score))
		if got := shell(t, sb, "cat /proc/self/oom_score_adj"); got != strconv.Itoa(score)+"\n" {
			t.Errorf("a command has %q, want %d", got, score)
		}
		// An interpreter has state to lose, so it may have a lower score than a command.
		v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "int(open('/proc/self/oom_score_adj').read())"})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := strconv.Atoi(v.Result.Text()); err != nil || n > score {
			t.Errorf("a cell has %s, %v", v.Result.Text(), err)
		}
	}
	score := 900
	if _, err := sandbox.Open(t.Context(), newBackend(t, withRuntime("runsc")), scored(t, score)); v1.CodeOf(err) != v1.CodeNotSupported {
		t.Errorf("on gVisor, reported as %v", err)
	}
	loose := newBackend(t, func(o *Options) { o.HostConfig = []byte(`{"OomScoreAdj": 950}`) })
	if _, err := sandbox.Open(t.Context(), loose, scored(t, score)); v1.CodeOf(err) != v1.CodeInvalidSpec {
		t.Errorf("below the score of the host config, reported as %v", err)
	}
	if got := shell(t, open(t, loose, sandbox.Spec{}), "cat /proc/self/oom_score_adj"); got != "950\n" {
		t.Errorf("without a score in the spec, a command has %q", got)
	}
}
