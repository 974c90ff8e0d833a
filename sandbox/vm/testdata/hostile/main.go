//go:build linux

// Command hostile is a guest that attacks its host, as code that has become root in a virtual machine could. The
// environment variable ATTACK of the sandbox says how.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/boot"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == launch.BootArg {
		boot.Main()
	}
	var c launch.Config
	if err := json.Unmarshal([]byte(os.Getenv(launch.ConfigEnv)), &c); err != nil {
		os.Exit(1)
	}
	token, _ := hex.DecodeString(c.Token)
	at, err := wire.NewLink(os.Stdin, os.Stdout, token).Accept(func(*wire.Hello) *wire.Welcome {
		return &wire.Welcome{Protocol: wire.Protocol, GuestVersion: "hostile"}
	})
	if err != nil {
		os.Exit(1)
	}
	attack(at, at.Hello.Identity.Env["ATTACK"])
	for {
		_ = unix.Pause()
	}
}

// attack attacks the host.
func attack(w io.Writer, kind string) {
	junk := bytes.Repeat([]byte{0}, 1<<20)
	switch kind {
	case "zeros without end":
	case "ones without end":
		junk = bytes.Repeat([]byte{0xff}, 1<<20)
	case "a huge message":
		_, _ = w.Write(binary.BigEndian.AppendUint32(nil, 1<<31)) // the host may have hung up
	case "the console":
		c, err := os.OpenFile("/dev/ttyS0", os.O_WRONLY, 0)
		if err != nil {
			return
		}
		for {
			_, _ = c.Write(junk) // never fails
		}
	case "the end":
		os.Exit(0)
	case "silence":
		return
	}
	for {
		_, _ = w.Write(junk)
	}
}
