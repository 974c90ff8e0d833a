package session

// childEnv marks the test process that is killed.
const childEnv = "RECLUSE_TEST_CHILD"

func child(string) int { return 1 }
