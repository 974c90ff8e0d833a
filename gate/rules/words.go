package rules

import (
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

const (
	maxBraces     = 6  // braces of a word that are expanded
	maxBraceWords = 64 // words that the braces of one word are expanded to
)

// argvs returns the argument lists that words may expand to.
func (sh *shell) argvs(words []*syntax.Word) [][]string {
	lists := [][]string{nil}
	for _, word := range words {
		for _, w := range sh.braces(word) {
			alternatives := sh.fields(w)
			if len(lists)*len(alternatives) > maxAlternatives {
				alternatives = [][]string{{holeText}}
			}
			next := make([][]string, 0, len(lists)*len(alternatives))
			for _, l := range lists {
				for _, f := range alternatives {
					next = append(next, append(l[:len(l):len(l)], f...))
				}
			}
			lists = next
		}
	}
	return lists
}

// braces expands {a,b} and {1..9} in a word. Words beyond the limits become a hole.
func (sh *shell) braces(w *syntax.Word) []*syntax.Word {
	open := 0 // each brace multiplies the words
	for _, p := range w.Parts {
		if lit, ok := p.(*syntax.Lit); ok {
			open += strings.Count(lit.Value, "{")
		}
	}
	if open == 0 {
		return []*syntax.Word{w}
	}
	c := *w
	if !syntax.SplitBraces(&c) {
		return []*syntax.Word{w}
	}
	var out []*syntax.Word
	if open <= maxBraces {
		for e := range expand.BracesSeq(nil, &c) {
			if out = append(out, e); len(out) > maxBraceWords {
				break
			}
		}
	}
	if len(out) == 0 || len(out) > maxBraceWords {
		sh.substitutions(w)
		out = append(out[:min(len(out), maxBraceWords)], &syntax.Word{Parts: []syntax.WordPart{&syntax.Lit{Value: holeText}}})
	}
	return out
}

// one returns the text of a word that is not split into fields, or a hole if the word may have several texts.
func (sh *shell) one(w *syntax.Word) string {
	v := sh.values(w)
	if len(v) != 1 {
		return holeText
	}
	return v[0]
}

// values returns the texts that a word may have where it is not split into fields.
func (sh *shell) values(w *syntax.Word) []string {
	out := []string{""}
	if w != nil {
		for _, p := range w.Parts {
			out = cross(out, sh.part(p, false))
		}
	}
	return out
}

// fields returns the lists of fields that a word may be split into.
func (sh *shell) fields(w *syntax.Word) [][]string {
	if w == nil {
		return [][]string{nil}
	}
	if len(w.Parts) == 1 {
		if lit, ok := w.Parts[0].(*syntax.Lit); ok { // most words
			return [][]string{{literal(lit.Value, false)}}
		}
	}
	if list, ok := sh.list(w); ok {
		return [][]string{list}
	}
	texts := []string{""}
	for _, p := range w.Parts {
		part := sh.part(p, false)
		for i, text := range part {
			part[i] = splitMarks(p, text)
		}
		texts = cross(texts, part)
	}
	out := make([][]string, len(texts))
	for i, text := range texts {
		for field := range strings.SplitSeq(text, string(fieldEnd)) {
			if field != "" {
				out[i] = append(out[i], strings.ReplaceAll(field, string(fieldMark), ""))
			}
		}
	}
	return out
}

// splitMarks marks in the text of a part where the shell splits it into fields: it splits unquoted expansions.
func splitMarks(p syntax.WordPart, text string) string {
	switch p.(type) {
	case *syntax.ParamExp, *syntax.CmdSubst, *syntax.ArithmExp:
		return strings.Map(func(r rune) rune {
			if r == ' ' || r == '\t' || r == '\n' {
				return fieldEnd
			}
			return r
		}, text)
	}
	return string(fieldMark) + text
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
	if !ok || pe.Param == nil || operates(pe) {
		return nil, false
	}
	if n := pe.Param.Value; n == "@" || n == "*" {
		return sh.args, sh.args != nil
	}
	if idx := index(pe); idx != "@" && idx != "*" {
		return nil, false
	}
	v, ok := sh.vars.get(pe.Param.Value)
	return v.array, ok && v.array != nil
}

// index returns the subscript of an expansion if it is plain.
func index(pe *syntax.ParamExp) string {
	if w, ok := pe.Index.(*syntax.Word); ok {
		return w.Lit()
	}
	return ""
}

// part returns the texts that a part of a word may have. The caller may change the slice.
func (sh *shell) part(p syntax.WordPart, quoted bool) []string {
	switch x := p.(type) {
	case *syntax.Lit:
		return []string{literal(x.Value, quoted)}
	case *syntax.SglQuoted:
		if x.Dollar {
			return []string{unescape(x.Value)}
		}
		return []string{x.Value}
	case *syntax.DblQuoted:
		out := []string{""}
		for _, q := range x.Parts {
			out = cross(out, sh.part(q, true))
		}
		return out
	case *syntax.ParamExp:
		return slices.Clone(sh.param(x))
	case *syntax.CmdSubst:
		cwd := sh.cwd
		out := sh.stmts(x.Stmts, unknown)
		sh.cwd = cwd
		return []string{strings.TrimRight(out.text, "\n")}
	case *syntax.ProcSubst:
		name := "/dev/fd/" + strconv.Itoa(len(sh.a.files)+3)
		sh.a.files[name] = sh.stmts(x.Stmts, unknown).text
		return []string{name}
	case *syntax.ExtGlob:
		return []string{x.Op.String() + x.Pattern.Value + ")"}
	case *syntax.ArithmExp:
		sh.substitutions(x.X)
		if w, ok := x.X.(*syntax.Word); ok {
			if _, err := strconv.Atoi(w.Lit()); err == nil {
				return []string{w.Lit()}
			}
		}
	}
	return []string{holeText}
}

// literal removes the backslashes of a literal.
func literal(s string, quoted bool) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) && (!quoted || strings.IndexByte("$`\"\\\n", s[i+1]) >= 0) {
			if i++; s[i] == '\n' {
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// unescape reads the escapes of $'…', echo -e and printf.
func unescape(s string) string {
	if text, _, err := expand.Format(&expand.Config{}, s, nil); err == nil {
		return text
	}
	return holeText
}

// operates reports whether an expansion has an operator, such as ${x%.txt}.
func operates(pe *syntax.ParamExp) bool {
	return pe.Exp != nil || pe.Slice != nil || pe.Repl != nil || pe.Excl || pe.Length || pe.Width || pe.IsSet
}

// param returns the texts that a parameter may expand to.
func (sh *shell) param(pe *syntax.ParamExp) []string {
	if pe.Param == nil {
		return []string{holeText}
	}
	if pe.Index != nil {
		sh.substitutions(pe.Index)
	}
	values, set := sh.lookup(pe)
	if !operates(pe) {
		return values
	}
	if pe.Exp != nil {
		switch pe.Exp.Op {
		case syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AssignUnset, syntax.AssignUnsetOrNull:
			switch {
			case !set: // a variable from outside may be set or not
				return union([]string{holeText}, sh.values(pe.Exp.Word))
			case len(values) == 1 && values[0] == "":
				return sh.values(pe.Exp.Word)
			}
			return values
		case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
			return union([]string{""}, sh.values(pe.Exp.Word))
		case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
			return values
		}
	}
	sh.substitutions(pe)
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = sh.operate(pe, v)
	}
	return out
}

// lookup returns the values of a parameter before operators are applied.
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

// operate applies an operator such as ${x%.txt} to a value. The result is a hole if anything in it is unknown.
func (sh *shell) operate(pe *syntax.ParamExp, value string) (text string) {
	if !known(value) || pe.Index != nil || pe.Names != 0 || pe.Param.Value == "@" || pe.Param.Value == "*" {
		return holeText
	}
	missed := false
	env := expand.FuncEnviron(func(name string) string {
		switch v, ok := sh.vars.get(name); {
		case name == pe.Param.Value:
			return value
		case ok && len(v.values) == 1 && v.array == nil && known(v.values[0]):
			return v.values[0]
		case name != "IFS":
			missed = true
		}
		return ""
	})
	defer func() { // the library panics on operators that it does not know
		if recover() != nil || missed || len(text) > maxOutput {
			text = holeText
		}
	}()
	text, err := expand.Literal(&expand.Config{Env: env}, &syntax.Word{Parts: []syntax.WordPart{pe}})
	if err != nil {
		return holeText
	}
	return text
}
