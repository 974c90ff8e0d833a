package session

// failpoint is called between the steps of everything that changes a session. Tests replace it to die there; see recover.go for what
// each step leaves behind.
var failpoint = func(string) {}
