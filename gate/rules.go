package gate

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Rules is a set of rules, as loaded from a file. It is safe for concurrent use.
type Rules struct {
	rules []*rule
}

// rule is one rule of the file.
type rule struct {
	name        string
	action      Action
	undecidable Action // of a case that may be one: Allow is a note, "" is silence
	languages   []Language
	message     string
	fix         string
	when        []*condition
	tests       []ruleTest
	line        int
}

// condition is one entry under a rule's when: everything in it must hold.
type condition struct {
	command  patterns // program names
	flags    []string // one of them is given
	without  []string // none of them is given
	args     patterns // an operand is like one of them
	paths    patterns // an operand is a path like one of them
	from     patterns // its input comes from one of these programs
	imports  patterns
	calls    patterns
	keywords map[string]pattern
	reads    patterns
	writes   patterns
	hosts    patterns
	text     []*regexp.Regexp
	opaque   []string
	shapes   []string
}

// Names lists the rules in the order of the file.
func (r *Rules) Names() []string {
	names := make([]string, len(r.rules))
	for i, rule := range r.rules {
		names[i] = rule.name
	}
	return names
}

// maxFindings bounds what one decision tells; more would not be read.
const maxFindings = 50

// findings compares facts with the rules.
func (r *Rules) findings(facts []*fact, lang Language) []Finding {
	var out []Finding
	type spot struct {
		rule *rule
		line int
	}
	seen := map[spot]int{}           // index in out
	same := map[uint64][]judgement{} // of facts that differ only in their place
	for _, f := range facts {
		judged, ok := same[f.key(false)]
		if !ok {
			judged = r.judge(f, lang)
			same[f.key(false)] = judged
		}
		for _, j := range judged {
			found := j.rule.finding(f, j.got, j.subject)
			key := spot{rule: j.rule, line: f.place.line}
			if i, ok := seen[key]; ok {
				// One finding per rule and line; a sure one replaces a doubtful one.
				if out[i].Undecidable && !found.Undecidable {
					out[i] = found
				}
				continue
			}
			if len(out) >= maxFindings {
				continue
			}
			seen[key] = len(out)
			out = append(out, found)
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return b.Severity.rank() - a.Severity.rank()
	})
	return out
}

// judgement is what one rule says of a fact.
type judgement struct {
	rule    *rule
	got     answer
	subject string
}

// judge compares a fact with all rules.
func (r *Rules) judge(f *fact, lang Language) []judgement {
	var out []judgement
	for _, rule := range r.rules {
		if len(rule.languages) > 0 && !slices.Contains(rule.languages, lang) {
			continue
		}
		if got, subject := rule.match(f); got == yes || (got == maybe && rule.undecidable != "") {
			out = append(out, judgement{rule: rule, got: got, subject: subject})
		}
	}
	return out
}

func (r *rule) finding(f *fact, got answer, subject string) Finding {
	found := Finding{
		Rule: r.name, Line: max(f.place.line, 1), Column: f.place.column, Fix: r.fix, Severity: r.action,
		Message: strings.ReplaceAll(r.message, "{match}", show(subject)),
	}
	if got == maybe {
		found.Undecidable = true
		found.Severity = r.undecidable
		found.Message = "may be a case of this, which reading cannot tell: " + found.Message
	}
	if f.kind == kindOpaque || f.unsure {
		found.Undecidable = true
	}
	return found
}

// match compares a fact with all conditions of a rule.
func (r *rule) match(f *fact) (answer, string) {
	best, subject := no, ""
	for _, c := range r.when {
		if got, s := c.match(f); got > best {
			best, subject = got, s
		}
	}
	return best, subject
}

// match compares a fact with one condition, and gives what it is that matched.
func (c *condition) match(f *fact) (answer, string) {
	switch f.kind {
	case kindCommand:
		if len(c.command) > 0 {
			return c.matchCommand(f)
		}
		if len(c.reads) > 0 || len(c.writes) > 0 {
			return c.matchFiles(f)
		}
	case kindCall:
		if len(c.calls) > 0 {
			return c.matchCall(f)
		}
	case kindImport:
		if len(c.imports) > 0 {
			return c.imports.match(f.name, false), f.name
		}
	case kindWrite:
		if len(c.writes) > 0 {
			p := cleanPath(f.args[0], f.cwd)
			return c.writes.match(p, true), f.args[0]
		}
	case kindRead:
		if len(c.reads) > 0 {
			p := cleanPath(f.args[0], f.cwd)
			return c.reads.match(p, true), f.args[0]
		}
	case kindText:
		return c.matchText(f.args[0])
	case kindShape:
		if slices.Contains(c.shapes, f.name) {
			return yes, f.name
		}
	case kindOpaque:
		if slices.Contains(c.opaque, f.name) {
			return yes, f.args[0]
		}
	}
	return no, ""
}

func (c *condition) matchCommand(f *fact) (answer, string) {
	if c.command.match(f.name, false) != yes {
		return no, ""
	}
	words := splitArgs(f.args)
	best, subject := yes, strings.Join(append([]string{f.name}, f.args...), " ")
	if len(c.from) > 0 {
		from := no
		for _, name := range f.from {
			from = from.or(c.from.match(name, false))
		}
		best = best.and(from)
	}
	if len(c.flags) > 0 {
		best = best.and(words.flag(c.flags))
	}
	if len(c.without) > 0 && words.flag(c.without) == yes {
		return no, ""
	}
	if len(c.args) > 0 && best > no {
		got, s := anyOf(words.operands, func(s string) answer { return c.args.match(s, false) })
		best, subject = best.and(got), orText(s, subject)
	}
	if len(c.paths) > 0 && best > no {
		got, s := anyOf(words.paths(), func(s string) answer { return c.paths.match(cleanPath(s, f.cwd), true) })
		best, subject = best.and(got), orText(s, subject)
	}
	return best, subject
}

// readers and writers are programs whose operands are files they read or write.
var (
	readers = strings.Fields("cat less more head tail tac nl od xxd hexdump strings base64 grep egrep awk sed cut sort cp mv scp rsync tar zip gzip source . jq curl dd vim nano install")
	writers = strings.Fields("tee cp mv install touch truncate dd ln sed")
)

// matchFiles compares the files that well-known programs read and write.
func (c *condition) matchFiles(f *fact) (answer, string) {
	wanted := c.writes
	switch {
	case len(c.reads) > 0 && slices.Contains(readers, f.name):
		wanted = c.reads
	case len(c.writes) > 0 && slices.Contains(writers, f.name):
	default:
		return no, ""
	}
	words := splitArgs(f.args)
	files := words.paths()
	if len(c.writes) > 0 {
		switch f.name {
		case "cp", "mv", "install", "ln": // the last one is written
			if len(words.operands) < 2 {
				return no, ""
			}
			files = words.operands[len(words.operands)-1:]
		case "sed":
			if words.flag([]string{"-i", "--in-place"}) != yes {
				return no, ""
			}
		case "dd":
			files = nil
			for _, a := range f.args {
				if v, ok := strings.CutPrefix(a, "of="); ok {
					files = append(files, v)
				}
			}
		}
	} else {
		switch f.name {
		case "cp", "mv", "install":
			if len(words.operands) > 0 {
				files = words.operands[:len(words.operands)-1]
			}
		}
	}
	return anyOf(files, func(s string) answer {
		return wanted.match(cleanPath(strings.TrimPrefix(s, "@"), f.cwd), true)
	})
}

func (c *condition) matchCall(f *fact) (answer, string) {
	if c.calls.match(f.name, false) != yes {
		return no, ""
	}
	best, subject := yes, f.name
	for k, want := range c.keywords {
		v, ok := f.keywords[k]
		if !ok {
			return no, ""
		}
		best = best.and(patterns{want}.match(v, false))
	}
	values := f.args
	for _, k := range slices.Sorted(maps.Keys(f.keywords)) {
		values = append(values[:len(values):len(values)], f.keywords[k])
	}
	if len(c.args) > 0 && best > no {
		got, s := anyOf(values, func(s string) answer { return c.args.match(s, false) })
		best, subject = best.and(got), orText(s, subject)
	}
	if len(c.paths) > 0 && best > no {
		got, s := anyOf(values, func(s string) answer { return c.paths.match(cleanPath(s, f.cwd), true) })
		best, subject = best.and(got), orText(s, subject)
	}
	return best, subject
}

// hostsIn finds hosts in text: in addresses, and where a plain address of four numbers stands.
var hostsIn = regexp.MustCompile(`(?i)(?:\b[a-z][a-z0-9+.-]{1,15}://(?:[^/\s@'"]*@)?)([^/\s:'"?#\])]+)|\b(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})\b`)

func (c *condition) matchText(s string) (answer, string) {
	for _, re := range c.text {
		if m := re.FindString(s); m != "" {
			return yes, mask(m)
		}
	}
	if len(c.hosts) == 0 {
		return no, ""
	}
	if len(s) < 256 { // a text that is a host and nothing else
		if c.hosts.match(strings.ToLower(s), false) == yes {
			return yes, s
		}
	}
	for _, m := range hostsIn.FindAllStringSubmatch(s, 100) {
		host := strings.ToLower(m[1] + m[2])
		if c.hosts.match(host, false) == yes {
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

func anyOf(list []string, f func(string) answer) (answer, string) {
	best, subject := no, ""
	for _, s := range list {
		if got := f(s); got > best {
			best, subject = got, s
		}
	}
	return best, subject
}

func orText(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// arguments are the arguments of a command, told apart.
type arguments struct {
	flags    []string
	values   []string // of --flag=value and name=value
	operands []string
}

func splitArgs(args []string) arguments {
	var out arguments
	for i, a := range args {
		switch {
		case a == "--":
			out.operands = append(out.operands, args[i+1:]...)
			return out
		case strings.HasPrefix(a, "-") && len(a) > 1:
			out.flags = append(out.flags, a)
			if _, v, ok := strings.Cut(a, "="); ok {
				out.values = append(out.values, v)
			}
		default:
			out.operands = append(out.operands, a)
			if k, v, ok := strings.Cut(a, "="); ok && !strings.ContainsAny(k, "/ ") {
				out.values = append(out.values, v)
			}
			if strings.HasPrefix(a, holeText) {
				out.flags = append(out.flags, a)
			}
		}
	}
	return out
}

func (a arguments) paths() []string {
	return append(a.operands[:len(a.operands):len(a.operands)], a.values...)
}

// flag tells whether one of the flags is given; single letters are found in clusters like -rf.
func (a arguments) flag(flags []string) answer {
	best := no
	for _, given := range a.flags {
		name, _, _ := strings.Cut(given, "=")
		for _, want := range flags {
			switch {
			case name == want:
				return yes
			case len(want) == 2 && len(name) > 2 && name[1] != '-' && strings.Contains(name[1:], want[1:]) && clustered(name):
				return yes
			case strings.HasPrefix(want, "--") && len(name) > 5 && strings.HasPrefix(want, name):
				return yes // long flags may be shortened
			case !known(given):
				best = maybe
			}
		}
	}
	return best
}

// clustered reports whether a flag looks like several letters together.
func clustered(s string) bool {
	return len(s) <= 8 && strings.Trim(s[1:], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == ""
}
