package config

import (
	"runtime"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

const (
	// cpuOvercommit is how many CPUs all sessions together may have for each CPU of the machine. Idle sessions use
	// none, and busy ones share.
	cpuOvercommit = 16
	// machineProcesses is how many processes and threads all sessions together may have. It is the usual limit of a
	// Linux kernel for a whole machine.
	machineProcesses = 32768
)

// MachineQuota returns the default quota for callers over the network, for values that are not configured. It follows
// the size of this machine. The memory of live sessions that are not hibernated is not overcommitted.
func MachineQuota() v1.Quota {
	q := v1.Quota{CPUs: new(float64(cpuOvercommit * runtime.NumCPU())), Processes: new(machineProcesses)}
	if m := machineMemory(); m > 0 {
		q.Memory = &m
	}
	return q
}
