package config

import (
	"runtime"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/diskuse"
)

const (
	// cpuOvercommit is how many CPUs all sessions together may have for each CPU of the machine. Idle sessions use
	// none, and busy ones share.
	cpuOvercommit = 16
	// machineProcesses is how many processes and threads all sessions together may have. It is the usual limit of a
	// Linux kernel for a whole machine.
	machineProcesses = 32768
	// The parts of the file system of the data directory that the volumes of all tenants, and of one, may take:
	// 1/allVolumes and 1/tenantVolumes.
	allVolumes    = 2
	tenantVolumes = 4
)

// MachineQuota returns the default quota for callers over the network, for values that are not configured. It follows
// the size of this machine and of the file system of the data directory. The memory of live sessions that are not
// hibernated is not overcommitted.
func MachineQuota(data string) v1.Quota {
	q := v1.Quota{CPUs: new(float64(cpuOvercommit * runtime.NumCPU())), Processes: new(machineProcesses)}
	if m := machineMemory(); m > 0 {
		q.Memory = &m
	}
	if s, ok := diskuse.Of(data); ok {
		q.VolumeBytes = new(s.Total / allVolumes)
	}
	return q
}

// TenantQuota returns the default quota of a tenant for callers over the network, for values that the tenant's own
// quota leaves out. One volume of the default size always fits, if the quota of the server allows it.
func TenantQuota(data string) (q v1.Quota) {
	if s, ok := diskuse.Of(data); ok {
		q.VolumeBytes = new(max(s.Total/tenantVolumes, v1.DefaultVolumeSize))
	}
	return q
}
