package rules

import (
	"slices"
	"strings"
)

// arguments are the arguments of a command by their role.
type arguments struct {
	flags    []string
	values   []string // of --flag=value and name=value
	operands []string
}

func splitArgs(args []string) arguments {
	var out arguments
	for i, a := range args {
		key, value, assigns := strings.Cut(a, "=")
		switch {
		case a == "--":
			out.operands = append(out.operands, args[i+1:]...)
			return out
		case strings.HasPrefix(a, "-") && len(a) > 1:
			out.flags = append(out.flags, a)
			if assigns {
				out.values = append(out.values, value)
			}
		default:
			out.operands = append(out.operands, a)
			if assigns && !strings.ContainsAny(key, "/ ") {
				out.values = append(out.values, value)
			}
			if strings.HasPrefix(a, holeText) {
				out.flags = append(out.flags, a)
			}
		}
	}
	return out
}

func (a arguments) paths() []string { return slices.Concat(a.operands, a.values) }

// flag reports whether one of the flags is given; single letters are found in clusters like -rf.
func (a arguments) flag(flags []string) answer {
	best := no
	for _, given := range a.flags {
		name, _, _ := strings.Cut(given, "=")
		for _, want := range flags {
			switch {
			case name == want:
				return yes
			case len(want) == 2 && isCluster(name) && strings.Contains(name[1:], want[1:]):
				return yes
			case strings.HasPrefix(want, "--") && len(name) > 5 && strings.HasPrefix(want, name):
				return yes // long flags may be abbreviated
			case !known(given):
				best = maybe
			}
		}
	}
	return best
}

// isCluster reports whether a flag looks like several single letters.
func isCluster(s string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return len(s) > 2 && len(s) <= 8 && strings.Trim(s[1:], letters) == ""
}

// Programs whose operands are files that they read or write.
var (
	readers = strings.Fields("cat less more head tail tac nl od xxd hexdump strings base64 grep egrep awk sed cut sort " +
		"cp mv scp rsync tar zip gzip source . jq curl dd vim nano install")
	writers = strings.Fields("tee cp mv install touch truncate dd ln sed")
)

// operandFiles returns the files that a well-known program reads and writes.
func operandFiles(program string, args []string) (reads, writes []string) {
	reader, writer := slices.Contains(readers, program), slices.Contains(writers, program)
	if !reader && !writer {
		return nil, nil
	}
	words := splitArgs(args)
	if reader {
		reads = words.paths()
	}
	if writer {
		writes = words.paths()
	}
	for i, s := range reads {
		reads[i] = strings.TrimPrefix(s, "@") // curl -d @FILE
	}
	switch last := max(len(words.operands)-1, 0); program {
	case "cp", "mv", "install", "ln": // the last operand is written
		if writes = nil; last > 0 {
			writes = words.operands[last:]
		}
		if reader {
			reads = words.operands[:last]
		}
	case "sed":
		if words.flag([]string{"-i", "--in-place"}) != yes {
			writes = nil
		}
	case "dd":
		writes = nil
		for _, a := range args {
			if v, ok := strings.CutPrefix(a, "of="); ok {
				writes = append(writes, v)
			}
		}
	}
	return reads, writes
}
