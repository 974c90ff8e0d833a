//go:build linux

package rlm

const stateEnv = "RECLUSE_TEST_RLM_STATE"

func victim() int { return 0 }
