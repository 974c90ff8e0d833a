package session

// failpoint is called between the steps of every change to a session. Tests replace it to kill the process there. The
// comment in recover.go lists what each step leaves behind.
var failpoint = func(string) {}
