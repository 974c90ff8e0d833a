package runview

import "strings"

// token is a part of code with the name of its style: k for a keyword, s for a string, c for a comment; or "".
type token struct{ Class, Text string }

// keywords are the keywords of Python and of the shell that are highlighted.
var keywords = map[string]map[string]bool{
	"python": wordSet("and as assert async await break class continue def del elif else except False finally for from " +
		"global if import in is lambda None nonlocal not or pass raise return True try while with yield"),
	"bash": wordSet("if then else elif fi for in do done while until case esac function return local export"),
}

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}

// highlight splits code into tokens. Their texts together are the code.
func highlight(lang, code string) []token {
	var out []token
	add := func(class, text string) {
		if n := len(out); n > 0 && out[n-1].Class == class {
			out[n-1].Text += text
		} else if text != "" {
			out = append(out, token{class, text})
		}
	}
	for at := 0; at < len(code); {
		n, class := 1, ""
		switch c := code[at]; {
		case c == '#' && (at == 0 || strings.IndexByte(" \t\n;", code[at-1]) >= 0 || lang == "python"):
			class, n = "c", len(code)-at
			if i := strings.IndexByte(code[at:], '\n'); i >= 0 {
				n = i
			}
		case c == '"' || c == '\'':
			class, n = "s", quoteEnd(code[at:])
		case wordByte(c):
			for at+n < len(code) && wordByte(code[at+n]) {
				n++
			}
			if keywords[lang][code[at:at+n]] {
				class = "k"
			}
		}
		add(class, code[at:at+n])
		at += n
	}
	return out
}

// quoteEnd returns the length of the string with which code begins. A string in single quotes ends with its line.
func quoteEnd(code string) int {
	mark := code[:1]
	if triple := strings.Repeat(mark, 3); strings.HasPrefix(code, triple) {
		mark = triple
	}
	for i := len(mark); i < len(code); i++ {
		switch {
		case code[i] == '\\':
			i++
		case strings.HasPrefix(code[i:], mark):
			return i + len(mark)
		case code[i] == '\n' && len(mark) == 1:
			return i
		}
	}
	return len(code)
}

func wordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
