package config

import (
	"runtime"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

const (
	// crowd is how many processors all sessions together may have for each one of the machine. Idle sessions use none, and busy ones share.
	crowd = 16
	// machineProcesses is how many processes and threads all sessions together may have: the usual limit of a kernel for a whole machine.
	machineProcesses = 32768
)

// MachineQuota returns the bounds for callers over the network that are not configured. They follow the size of this machine: the memory of
// sessions that are awake is not overcommitted.
func MachineQuota() v1.Quota {
	q := v1.Quota{CPUs: new(float64(crowd * runtime.NumCPU())), Processes: new(machineProcesses)}
	if m := machineMemory(); m > 0 {
		q.Memory = &m
	}
	return q
}
