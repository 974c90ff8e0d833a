package gate

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// maxBraces is how many {…} of a word are expanded.
const maxBraces = 6

// cross joins each text of a with each of b.
func cross(a, b []string) []string {
	if len(a)*len(b) > maxAlternatives {
		return []string{holeText}
	}
	out := make([]string, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			if len(x)+len(y) > maxOutput {
				return []string{holeText}
			}
			out = append(out, x+y)
		}
	}
	return out
}

// argvs gives the argument lists that words may expand to.
func (sh *shell) argvs(words []*syntax.Word) [][]string {
	lists := [][]string{nil}
	for _, w := range words {
		for _, part := range braces(w) {
			alts := sh.fields(part)
			if len(lists)*len(alts) > maxAlternatives {
				alts = [][]string{{holeText}}
			}
			next := make([][]string, 0, len(lists)*len(alts))
			for _, l := range lists {
				for _, f := range alts {
					next = append(next, append(l[:len(l):len(l)], f...))
				}
			}
			lists = next
		}
	}
	return lists
}

// braces expands {a,b} in a word, within bounds.
func braces(w *syntax.Word) []*syntax.Word {
	// Each brace multiplies: a word with many is not one that a person means.
	open := 0
	for _, p := range w.Parts {
		if lit, ok := p.(*syntax.Lit); ok {
			open += strings.Count(lit.Value, "{")
		}
	}
	if open == 0 || open > maxBraces {
		return []*syntax.Word{w}
	}
	c := *w
	if !syntax.SplitBraces(&c) {
		return []*syntax.Word{w}
	}
	var out []*syntax.Word
	for e, err := range expand.BracesSeq(nil, &c) {
		if err != nil || len(out) >= 64 {
			break
		}
		out = append(out, e)
	}
	if len(out) == 0 {
		return []*syntax.Word{w}
	}
	return out
}

// one gives the text of a word that is not split, or a hole when it may have several.
func (sh *shell) one(w *syntax.Word) string {
	v := sh.values(w)
	if len(v) != 1 {
		return holeText
	}
	return v[0]
}

// values gives the texts that a word may have where it is not split into fields.
func (sh *shell) values(w *syntax.Word) []string {
	if w == nil {
		return []string{""}
	}
	out := []string{""}
	for _, p := range w.Parts {
		out = cross(out, sh.part(p, false))
	}
	return out
}

// fields gives the lists of fields that a word may be split into.
func (sh *shell) fields(w *syntax.Word) [][]string {
	if w == nil {
		return [][]string{nil}
	}
	if list, ok := sh.list(w); ok {
		return [][]string{list}
	}
	type state struct {
		done []string
		cur  string
		open bool // cur is a field, even if empty
	}
	states := []state{{}}
	for _, p := range w.Parts {
		split := unquoted(p)
		texts := sh.part(p, false)
		if len(states)*len(texts) > maxAlternatives {
			texts = []string{holeText}
			states = states[:1]
		}
		next := make([]state, 0, len(states)*len(texts))
		for _, s := range states {
			for _, t := range texts {
				n := state{done: s.done[:len(s.done):len(s.done)], cur: s.cur, open: s.open}
				if !split {
					n.cur, n.open = n.cur+t, true
					next = append(next, n)
					continue
				}
				for j, f := range splitSpace(t) {
					if j > 0 && n.open {
						n.done, n.cur, n.open = append(n.done, n.cur), "", false
					}
					if f != "" {
						n.cur, n.open = n.cur+f, true
					}
				}
				next = append(next, n)
			}
		}
		states = next
	}
	out := make([][]string, 0, len(states))
	for _, s := range states {
		if s.open {
			s.done = append(s.done, s.cur)
		}
		out = append(out, s.done)
	}
	return out
}

// splitSpace splits at white space; an empty text at an end says that there was space.
func splitSpace(s string) []string {
	out := strings.Fields(s)
	if s == "" || len(out) == 0 {
		return append(out, make([]string, min(2, 2*len(s)))...)
	}
	if strings.TrimLeft(s, " \t\n") != s {
		out = append([]string{""}, out...)
	}
	if strings.TrimRight(s, " \t\n") != s {
		out = append(out, "")
	}
	return out
}

// unquoted reports whether the shell splits what this part expands to.
func unquoted(p syntax.WordPart) bool {
	switch p.(type) {
	case *syntax.ParamExp, *syntax.CmdSubst, *syntax.ArithmExp:
		return true
	}
	return false
}

// list recognizes "$@" and "${array[@]}", which become several fields.
func (sh *shell) list(w *syntax.Word) ([]string, bool) {
	if len(w.Parts) != 1 {
		return nil, false
	}
	p := w.Parts[0]
	if q, ok := p.(*syntax.DblQuoted); ok && len(q.Parts) == 1 {
		p = q.Parts[0]
	}
	pe, ok := p.(*syntax.ParamExp)
	if !ok || pe.Param == nil || pe.Length || pe.Excl || pe.Exp != nil || pe.Slice != nil || pe.Repl != nil {
		return nil, false
	}
	if n := pe.Param.Value; n == "@" || n == "*" {
		if sh.args == nil {
			return nil, false
		}
		return sh.args, true
	}
	if idx := index(pe); idx != "@" && idx != "*" {
		return nil, false
	}
	v, ok := sh.vars.get(pe.Param.Value)
	return v.array, ok && v.array != nil
}

// index gives the subscript of an expansion if it is plain.
func index(pe *syntax.ParamExp) string {
	if w, ok := pe.Index.(*syntax.Word); ok {
		return w.Lit()
	}
	return ""
}

// part gives the texts that a part of a word may have.
func (sh *shell) part(p syntax.WordPart, quoted bool) []string {
	switch x := p.(type) {
	case *syntax.Lit:
		return []string{literal(x.Value, quoted)}
	case *syntax.SglQuoted:
		if x.Dollar {
			return []string{escapes(x.Value)}
		}
		return []string{x.Value}
	case *syntax.DblQuoted:
		out := []string{""}
		for _, q := range x.Parts {
			out = cross(out, sh.part(q, true))
		}
		return out
	case *syntax.ParamExp:
		return sh.param(x)
	case *syntax.CmdSubst:
		cwd := sh.cwd
		out := sh.stmts(x.Stmts, stream{text: holeText})
		sh.cwd = cwd
		return []string{strings.TrimRight(out.text, "\n")}
	case *syntax.ProcSubst:
		out := sh.stmts(x.Stmts, stream{text: holeText})
		name := "/dev/fd/" + strconv.Itoa(len(sh.a.files)+3)
		sh.a.files[name] = out.text
		return []string{name}
	case *syntax.ExtGlob:
		return []string{x.Op.String() + x.Pattern.Value + ")"}
	case *syntax.ArithmExp:
		sh.inside(x.X)
		if w, ok := x.X.(*syntax.Word); ok && w.Lit() != "" {
			if _, err := strconv.Atoi(w.Lit()); err == nil {
				return []string{w.Lit()}
			}
		}
	}
	return []string{holeText}
}

// literal takes the backslashes out of a literal.
func literal(s string, quoted bool) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			next := s[i+1]
			if next == '\n' {
				i++
				continue
			}
			if !quoted || strings.IndexByte("$`\"\\", next) >= 0 {
				b.WriteByte(next)
				i++
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// param expands a parameter.
func (sh *shell) param(pe *syntax.ParamExp) []string {
	if pe.Param == nil || pe.Length {
		return []string{holeText}
	}
	v, set := sh.lookup(pe)
	if pe.Excl {
		if !set || len(v) != 1 || !known(v[0]) {
			return []string{holeText}
		}
		ref, ok := sh.vars.get(v[0])
		if !ok {
			return []string{holeText}
		}
		return ref.values
	}
	switch {
	case pe.Exp != nil:
		return sh.expansion(pe.Exp, v, set)
	case pe.Repl != nil:
		from, to := sh.one(pe.Repl.Orig), sh.one(pe.Repl.With)
		return each(v, func(s string) string {
			switch {
			case !known(s) || !known(from) || strings.ContainsAny(from, "*?[#%"):
				return holeText
			case pe.Repl.All:
				return strings.ReplaceAll(s, from, to)
			}
			return strings.Replace(s, from, to, 1)
		})
	case pe.Slice != nil:
		from, ok1 := number(pe.Slice.Offset)
		length, ok2 := number(pe.Slice.Length)
		return each(v, func(s string) string {
			if !known(s) || !ok1 || from < 0 || from > len(s) || (pe.Slice.Length != nil && (!ok2 || length < 0)) {
				return holeText
			}
			s = s[from:]
			if pe.Slice.Length != nil {
				s = s[:min(length, len(s))]
			}
			return s
		})
	}
	return v
}

// lookup gives the values of the parameter itself.
func (sh *shell) lookup(pe *syntax.ParamExp) (values []string, set bool) {
	name := pe.Param.Value
	if n, err := strconv.Atoi(name); err == nil {
		switch {
		case sh.args == nil || n == 0:
			return []string{holeText}, false
		case n > len(sh.args):
			return []string{""}, true
		}
		return []string{sh.args[n-1]}, true
	}
	if (name == "@" || name == "*") && sh.args != nil {
		return []string{strings.Join(sh.args, " ")}, true
	}
	if name == "PWD" && sh.cwd != "" {
		return []string{sh.cwd}, true
	}
	v, ok := sh.vars.get(name)
	if !ok {
		return []string{holeText}, false
	}
	if pe.Index == nil {
		return v.values, true
	}
	idx := index(pe)
	if idx == "@" || idx == "*" {
		return []string{strings.Join(v.array, " ")}, true
	}
	if n, err := strconv.Atoi(idx); err == nil && n >= 0 && n < len(v.array) {
		return []string{v.array[n]}, true
	}
	return []string{holeText}, true
}

// expansion applies ${x:-y} and its kin.
func (sh *shell) expansion(e *syntax.Expansion, v []string, set bool) []string {
	switch e.Op {
	case syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AssignUnset, syntax.AssignUnsetOrNull:
		// A variable from outside may or may not be there: both count.
		if !set {
			return union([]string{holeText}, sh.values(e.Word))
		}
		if len(v) == 1 && v[0] == "" {
			return sh.values(e.Word)
		}
		return v
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
		return union([]string{""}, sh.values(e.Word))
	case syntax.RemSmallSuffix, syntax.RemLargeSuffix:
		cut := sh.one(e.Word)
		return each(v, func(s string) string {
			if !known(cut) || strings.ContainsAny(cut, "*?[") {
				return holeText
			}
			return strings.TrimSuffix(s, cut)
		})
	case syntax.RemSmallPrefix, syntax.RemLargePrefix:
		cut := sh.one(e.Word)
		return each(v, func(s string) string {
			if !known(cut) || strings.ContainsAny(cut, "*?[") {
				return holeText
			}
			return strings.TrimPrefix(s, cut)
		})
	case syntax.LowerAll:
		return each(v, strings.ToLower)
	case syntax.UpperAll:
		return each(v, strings.ToUpper)
	case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
		return v
	}
	return []string{holeText}
}

func each(v []string, f func(string) string) []string {
	out := make([]string, len(v))
	for i, s := range v {
		out[i] = f(s)
	}
	return out
}

// number reads a plain number in an arithmetic expression.
func number(e syntax.ArithmExpr) (int, bool) {
	w, ok := e.(*syntax.Word)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(w.Lit())
	return n, err == nil
}

// escapes reads the escapes of $'…' and printf.
func escapes(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch c := s[i]; c {
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'r':
			b.WriteByte('\r')
		case 'e', 'E':
			b.WriteByte(0x1b)
		case 'x':
			n := digits(s[i+1:], 2, 16)
			writeCode(&b, s[i+1:i+1+n], 16, 8)
			i += n
		case 'u', 'U':
			n := digits(s[i+1:], map[byte]int{'u': 4, 'U': 8}[c], 16)
			writeCode(&b, s[i+1:i+1+n], 16, 32)
			i += n
		case '0', '1', '2', '3', '4', '5', '6', '7':
			n := digits(s[i:], 3, 8)
			if c == '0' && n == 3 && i+3 < len(s) && s[i+3] >= '0' && s[i+3] <= '7' {
				n = 4 // printf's \0ooo
			}
			writeCode(&b, s[i:i+n], 8, 8)
			i += n - 1
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// digits counts the digits of a base at the start of s.
func digits(s string, most, radix int) int {
	n := 0
	for n < len(s) && n < most {
		if _, err := strconv.ParseUint(s[n:n+1], radix, 8); err != nil {
			break
		}
		n++
	}
	return n
}

func writeCode(b *strings.Builder, text string, radix, bits int) {
	n, err := strconv.ParseUint(text, radix, 32)
	if err != nil {
		return
	}
	if bits == 8 {
		b.WriteByte(byte(n))
		return
	}
	b.WriteRune(rune(n)) // a rune that looks like a hole only makes the text unknown
}
