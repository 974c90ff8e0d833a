package v1

import (
	"strconv"
	"syscall"
)

// signalNames are the names of Linux signals by number. A sandbox runs Linux wherever its client runs, so the client's own names would be
// wrong on other systems.
var signalNames = [...]string{
	1: "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM", "STKFLT",
	"CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
}

// signalName returns the name of a Linux signal, or "signal N".
func signalName(s syscall.Signal) string {
	if s <= 0 || int(s) >= len(signalNames) {
		return "signal " + strconv.Itoa(int(s))
	}
	return "SIG" + signalNames[s]
}
