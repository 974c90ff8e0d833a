//go:build linux

package nanny

import (
	"bytes"
	"strings"
	"testing"
)

func TestSudoArguments(t *testing.T) {
	t.Setenv("KEPT", "only with -E")
	for line, want := range map[string]string{
		"id -u":                 "root: id -u",
		"-n -- id":              "root: id",
		"-nE id":                "root: id, KEPT",
		"-u bob id":             "bob: id",
		"-ubob id":              "bob: id",
		"A=1 id":                "root: id, A",
		"-s":                    "root: ",
		"-i":                    "root: , login",
		"-s echo two words":     "root: /bin/sh -c echo two words",
		"-v":                    "root: true",
		"--no-such-option":      "error",
		"-u":                    "error",
		"":                      "nothing",
		"-h":                    "nothing",
		"-H -S apt-get -y -u x": "root: apt-get -y -u x",
	} {
		r, _, err := parseSudo(strings.Fields(line))
		got := "nothing"
		switch {
		case err != nil:
			got = "error"
		case r != nil:
			got = r.User + ": " + string(bytes.Join(r.Argv, []byte(" ")))
			for _, name := range []string{"KEPT", "A"} {
				for _, kv := range r.Env {
					if strings.HasPrefix(string(kv), name+"=") {
						got += ", " + name
					}
				}
			}
			if r.Login {
				got += ", login"
			}
		}
		if got != want {
			t.Errorf("sudo %s: %q, want %q", line, got, want)
		}
	}
}
