package backendkit

import "github.com/recluse-dev/recluse/internal/guest/proc"

func processStart(pid int) uint64 {
	p, _ := proc.Get(pid)
	return p.Start
}

func processAlive(pid int, start uint64) bool {
	p, ok := proc.Get(pid)
	return ok && !p.Zombie && (start == 0 || p.Start == start)
}
