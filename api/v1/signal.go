package v1

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// signalNames are the names of Linux signals by number. A sandbox always runs Linux, so the signal names of the
// client's own system could be wrong.
var signalNames = [...]string{
	1: "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
	"PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU",
	"XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
}

// signalName returns the name of a Linux signal, or "signal N".
func signalName(s syscall.Signal) string {
	if s <= 0 || int(s) >= len(signalNames) {
		return "signal " + strconv.Itoa(int(s))
	}
	return "SIG" + signalNames[s]
}

// ParseSignal parses the name of a Linux signal, with or without SIG, or its number.
func ParseSignal(text string) (syscall.Signal, bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return syscall.Signal(n), n > 0 && n < 65
	}
	n := slices.Index(signalNames[:], strings.TrimPrefix(strings.ToUpper(text), "SIG"))
	return syscall.Signal(n), n > 0
}
