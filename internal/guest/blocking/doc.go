// Package blocking waits in system calls without occupying a processor (P) of the Go scheduler.
//
// The runtime expects system calls to be short: a goroutine in a system call keeps its P, and the runtime's monitor
// thread checks every 20 microseconds whether to take the P away, for up to 10 milliseconds. Normally this does not
// matter. In gVisor each check is one to three system calls, and guest and nannies mostly wait while a command runs:
// `true` took a third longer. The functions of this package release the P before they wait, so that the monitor thread
// can sleep.
//
// This pays off only for long waits: a goroutine that has released its P must acquire one again, and wakes the monitor
// thread. A cell usually ends sooner, so waiting for a cell uses plain system calls.
package blocking
