package rules

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// condition is one entry under a rule's when: everything in it must hold.
type condition struct {
	Command  patterns           `yaml:"command"` // program names
	Flags    []string           `yaml:"flags"`   // one of them is given
	Without  []string           `yaml:"without"` // none of them is given
	Args     patterns           `yaml:"args"`    // an operand
	Paths    patterns           `yaml:"paths"`   // an operand, compared as a path
	Unless   patterns           `yaml:"unless"`  // operands or files that prevent a match
	From     patterns           `yaml:"from"`    // programs whose output is the input
	Import   patterns           `yaml:"import"`
	Call     patterns           `yaml:"call"`
	Keywords map[string]pattern `yaml:"keywords"`
	Reads    patterns           `yaml:"reads"`
	Writes   patterns           `yaml:"writes"`
	Host     patterns           `yaml:"host"`
	Text     []expression       `yaml:"text"`
	Opaque   []string           `yaml:"opaque" choice:"command code syntax size"`
	Shape    []string           `yaml:"shape" choice:"fork-bomb"`
}

// expression is a regular expression.
type expression struct{ *regexp.Regexp }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *expression) UnmarshalText(text []byte) (err error) {
	if e.Regexp, err = regexp.Compile(string(text)); err != nil {
		return fmt.Errorf("invalid regular expression: %w", err)
	}
	return nil
}

// check returns an error unless a condition has exactly one subject (command, call, import, ...) and only keys that are
// allowed with that subject.
func (c *condition) check() error {
	about := 0
	for _, given := range []int{
		len(c.Command), len(c.Call), len(c.Import), len(c.Reads), len(c.Writes), len(c.Host), len(c.Text), len(c.Shape),
		len(c.Opaque),
	} {
		about += min(given, 1)
	}
	command, call := len(c.Command) > 0, len(c.Call) > 0
	switch {
	case about != 1:
		return fmt.Errorf("a condition must have exactly one of command, call, import, reads, writes, host, text, shape "+
			"and opaque; this one has %d", about)
	case !command && len(c.Flags)+len(c.Without)+len(c.From) > 0:
		return errors.New("flags, without and from are only allowed with command")
	case !call && len(c.Keywords) > 0:
		return errors.New("keywords are only allowed with call")
	case !command && !call && len(c.Args)+len(c.Paths) > 0:
		return errors.New("args and paths are only allowed with command or call")
	case !command && !call && len(c.Reads)+len(c.Writes) == 0 && len(c.Unless) > 0:
		return errors.New("unless is only allowed with command, call, reads or writes")
	}
	return nil
}

// match compares a fact with the condition, and returns what matched.
func (c *condition) match(f *fact) (answer, string) {
	switch f.kind {
	case kindCommand:
		switch {
		case len(c.Command) > 0:
			return c.matchCommand(f)
		case len(c.Reads) > 0:
			return bestOf(f.reads, func(s string) answer { return c.matchFile(c.Reads, s, f.cwd) })
		case len(c.Writes) > 0:
			return bestOf(f.writes, func(s string) answer { return c.matchFile(c.Writes, s, f.cwd) })
		}
	case kindCall:
		return c.matchCall(f)
	case kindImport:
		return c.Import.match(f.name), f.name
	case kindWrite:
		return c.matchFile(c.Writes, f.args[0], f.cwd), f.args[0]
	case kindRead:
		return c.matchFile(c.Reads, f.args[0], f.cwd), f.args[0]
	case kindText:
		return c.matchText(f.args[0])
	case kindShape:
		if slices.Contains(c.Shape, f.name) {
			return yes, f.name
		}
	case kindOpaque:
		if slices.Contains(c.Opaque, f.name) {
			return yes, f.args[0]
		}
	}
	return no, ""
}

// matchFile compares a file that is read or written.
func (c *condition) matchFile(files patterns, name, cwd string) answer {
	if c.Unless.matchPath(name, cwd) == yes {
		return no
	}
	return files.matchPath(name, cwd)
}

func (c *condition) matchCommand(f *fact) (answer, string) {
	if c.Command.match(f.name) != yes {
		return no, ""
	}
	words := splitArgs(f.args)
	best := yes
	if len(c.From) > 0 {
		best, _ = bestOf(f.from, c.From.match)
	}
	if len(c.Flags) > 0 {
		best = min(best, words.flag(c.Flags))
	}
	if len(c.Without) > 0 && words.flag(c.Without) == yes {
		return no, ""
	}
	subject := strings.Join(append([]string{f.name}, f.args...), " ")
	return c.matchArgs(best, subject, f, words.operands, words.paths())
}

func (c *condition) matchCall(f *fact) (answer, string) {
	if c.Call.match(f.name) != yes {
		return no, ""
	}
	best := yes
	for k, want := range c.Keywords {
		v, ok := f.keywords[k]
		if !ok {
			return no, ""
		}
		best = min(best, patterns{want}.match(v))
	}
	values := slices.Clone(f.args)
	for _, k := range slices.Sorted(maps.Keys(f.keywords)) {
		values = append(values, f.keywords[k])
	}
	return c.matchArgs(best, f.name, f, values, values)
}

// matchArgs compares the arguments of a command or call. best is the answer of the conditions compared before.
func (c *condition) matchArgs(best answer, subject string, f *fact, args, paths []string) (answer, string) {
	if excluded, _ := bestOf(slices.Concat(args, paths), c.Unless.match); excluded == yes {
		return no, ""
	}
	match := func(list []string, like func(string) answer) {
		got, arg := bestOf(list, like)
		if best = min(best, got); arg != "" {
			subject = arg
		}
	}
	if len(c.Args) > 0 && best > no {
		match(args, c.Args.match)
	}
	if len(c.Paths) > 0 && best > no {
		match(paths, func(s string) answer { return c.Paths.matchPath(s, f.cwd) })
	}
	return best, subject
}

// bestOf returns the best answer for one of the texts, and that text.
func bestOf(list []string, like func(string) answer) (best answer, text string) {
	for _, s := range list {
		if got := like(s); got > best {
			best, text = got, s
		}
	}
	return best, text
}

// hostsIn finds hosts in text: those of URLs, and IPv4 addresses.
var hostsIn = lazyregexp.New(`(?i)(?:\b[a-z][a-z0-9+.-]{1,15}://(?:[^/\s@'"]*@)?)([^/\s:'"?#\])]+)|` +
	`\b(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})\b`)

func (c *condition) matchText(s string) (answer, string) {
	for _, re := range c.Text {
		if m := re.FindString(s); m != "" {
			return yes, mask(m)
		}
	}
	if len(c.Host) == 0 {
		return no, ""
	}
	if len(s) < 256 && c.Host.match(strings.ToLower(s)) == yes { // nothing but a host
		return yes, s
	}
	for _, m := range hostsIn().FindAllStringSubmatch(s, 100) {
		host := strings.ToLower(m[1] + m[2])
		if c.Host.match(host) == yes {
			return yes, host
		}
	}
	return no, ""
}

// mask shows only the beginning of what may be a secret.
func mask(s string) string {
	if len(s) <= 12 {
		return s[:min(4, len(s))] + "…"
	}
	return strings.ToValidUTF8(s[:12], "") + "…"
}
