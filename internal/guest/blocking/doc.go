// Package blocking waits in system calls without keeping one of Go's processors.
//
// The runtime expects a system call to be short: whoever is in one keeps its processor, and the runtime's monitor looks every 20 microseconds whether it
// is time to take it away, for up to 10 milliseconds. Elsewhere nobody notices. In gVisor each look is one to three system calls, and guest and nannies
// do little else than wait while a command runs: `true` took a third longer. Here the processor is given up before the wait, so that the monitor sleeps, too.
//
// That is for waits that last. Whoever gives its processor up has to get one again, and wakes the monitor: a cell, which is over sooner than that pays,
// is waited for with plain calls.
package blocking
