package daemon

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// startTimeField is the index of the start time in /proc/PID/stat, counted from the state, the first field after the
// name.
const startTimeField = 19

// startTime returns the start time of a process in clock ticks since boot, or 0 if there is no such process.
func startTime(pid int) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name may contain any character, including parentheses and spaces.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) <= startTimeField {
		return 0
	}
	n, err := strconv.ParseUint(string(fields[startTimeField]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
