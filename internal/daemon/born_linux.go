package daemon

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// bornField is the place of the start time in a process's stat, counted from the state, which is the first behind the name.
const bornField = 19

// born gives when a process began, in ticks since the machine did; 0 where there is none.
func born(pid int) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name may hold anything, brackets and blanks included.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) <= bornField {
		return 0
	}
	n, err := strconv.ParseUint(string(fields[bornField]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
