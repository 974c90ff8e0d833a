//go:build !unix

package agents

// Owner returns the sandbox's usual user: here files have no owner that a sandbox knows.
func Owner(string) (user string, root bool, err error) { return "", false, nil }
