package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// eachVerb calls f with every verb.
func eachVerb(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		eachVerb(sub, f)
	}
}

// fits checks that no line is wider than a terminal.
func fits(t *testing.T, what, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > console.DefaultWidth {
			t.Errorf("%s: a line of %d columns: %s", what, n, line)
		}
	}
}

func TestHelpFitsATerminal(t *testing.T) {
	root := (&app{stdin: os.Stdin}).root()
	eachVerb(root, func(c *cobra.Command) {
		c.InitDefaultHelpFlag()
		if f := c.Flags().Lookup("backend"); f != nil {
			if err := f.Value.Set("docker"); err != nil {
				t.Fatal(err)
			}
		}
		// cobra's own, with long commands to copy
		if c.Name() != "bash" && c.Name() != "zsh" && c.Name() != "fish" && c.Name() != "powershell" {
			fits(t, c.CommandPath(), helpText(c))
		}
	})
}

func TestHelpLeavesOutFlagsOfOneBackend(t *testing.T) {
	const flag = "--oom-score-adj"
	_, plain, _ := called(t, "exec", "--help")
	_, docker, _ := called(t, "exec", "--help", "--backend", "docker")
	if strings.Contains(plain, flag) || !strings.Contains(plain, "recluse exec --help --backend docker") {
		t.Errorf("exec --help: %s", plain)
	}
	if !strings.Contains(docker, flag) || !strings.Contains(docker, "--memory") {
		t.Errorf("exec --help --backend docker: %s", docker)
	}
}

func TestTablesFitATerminal(t *testing.T) {
	now := time.Now()
	ago, ahead := now.Add(-26*time.Hour), now.Add(7*24*time.Hour-time.Second)
	long := strings.Repeat("a reason or a command that is longer than its column ", 3)
	for name, rows := range map[string][][]string{
		"session list": sessionRows([]session.Info{
			{Key: v1.SessionKey{Name: "data-analysis"}, State: v1.StateHibernated, Created: ago, Used: ago, Expires: &ahead, Running: 12, Snapshots: 10, Reason: long},
		}),
		"ps": operationRows([]psEntry{{
			Ports: []int{8000, 8001, 8002, 8003, 8004}, Operation: sandbox.Operation{
				ID: "abcdef", PID: 12345, Kind: "command", Started: ago, Stdout: 123456789, Command: long, Verdict: &sandbox.Verdict{Ended: v1.EndedTimeout, Wall: 90 * time.Second},
			},
		}}, v1.StateReady),
		"key list": keyRows([]v1.APIKey{
			{ID: "5d41402abc4b2a76", Name: "dashboard", Tenant: "team-a", Scope: "execute", Created: ago, Expires: &ahead},
		}),
		"snapshot list": snapshotRows([]session.Snapshot{
			{Session: "data-analysis", Name: "after-loading", Size: 123456789, Created: ago, Parent: "empty", Memory: true},
		}),
		"runs list": runRows([]*rlm.Info{
			{ID: "20300131-150405-abcdef01", Started: ago, Turns: 30, Query: long},
		}),
	} {
		var out bytes.Buffer
		if err := console.Table(&out, rows); err != nil {
			t.Fatal(err)
		}
		fits(t, name, out.String())
	}
	fits(t, "audit", auditLine(session.Entry{
		Time: now, Actor: "user alice", Session: "data-analysis", Action: "command", Verdict: "exit", Detail: long,
	}, console.DefaultWidth))
}

func TestEnumeratedFlagsAreCompleted(t *testing.T) {
	root := (&app{stdin: os.Stdin}).root()
	eachVerb(root, func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if o, ok := f.Value.(option); ok && len(o.words()) > 0 {
				if _, ok := c.GetFlagCompletionFunc(f.Name); !ok {
					t.Errorf("%s --%s is not completed", c.CommandPath(), f.Name)
				}
			}
		})
	})
	for line, want := range map[string]string{
		"exec --pull ":            "missing\nalways\nnever",
		"exec --min-isolation ":   "none\ncontainer\nkernel\nvm",
		"exec --backend ":         "vm\ngvisor\ndocker\nlocal\ne2b\nmodal\nprime",
		"session open --on-idle ": "hibernate\nend\nkeep",
		"session open --gate ":    "off\nwarn\nblock",
		"ask --gate ":             "off\nwarn\nblock",
		"key create --scope ":     "read\nexecute\nadmin",
		"runs export --format ":   "rlm\nevents",
	} {
		if _, got, _ := called(t, append([]string{cobra.ShellCompRequestCmd}, strings.Split(line, " ")...)...); !strings.HasPrefix(got, want+"\n:") {
			t.Errorf("%s: %q", line, got)
		}
	}
}
