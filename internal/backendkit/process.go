package backendkit

import "os"

// Process is a process of some machine, as the program that must end a sandbox. Its start tells it from later
// ones of the same pid.
type Process struct {
	Machine string `json:"machine,omitempty"` // the host's name
	PID     int    `json:"pid"`
	Start   uint64 `json:"start,omitempty"` // 0 where the system does not tell
}

// ProcessOf returns the process of this machine that has a pid now.
func ProcessOf(pid int) Process {
	p := Process{PID: pid, Start: processStart(pid)}
	p.Machine, _ = os.Hostname() // without a name two machines without one are taken for the same
	return p
}

// Self returns this program.
func Self() Process { return ProcessOf(os.Getpid()) }

// Alive reports whether a process of this machine still runs.
func (p Process) Alive() bool { return p.PID > 0 && processAlive(p.PID, p.Start) }

// Dead reports that the process has certainly ended. Of another machine's nothing is certain.
func (p Process) Dead() bool { return p.PID > 0 && p.Machine == Self().Machine && !p.Alive() }
