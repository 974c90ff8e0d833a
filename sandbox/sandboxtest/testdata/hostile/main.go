//go:build linux

// Command hostile is a guest that attacks its host, as code that has become root in a virtual machine could, or the
// service that runs it. The environment variable ATTACK of the sandbox says how.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/boot"
	"github.com/recluse-dev/recluse/internal/guest/carrier"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == launch.BootArg {
		boot.Main()
	}
	var c launch.Config
	var in io.Reader = os.Stdin
	text := []byte(os.Getenv(launch.ConfigEnv))
	remote := len(os.Args) == 2 && os.Args[1] == launch.RemoteArg
	if remote {
		lines := bufio.NewReader(os.Stdin)
		text, _ = lines.ReadBytes('\n')
		in = lines
	}
	if err := json.Unmarshal(text, &c); err != nil {
		os.Exit(1)
	}
	token, _ := hex.DecodeString(c.Token)
	var out io.Writer = os.Stdout
	if remote {
		g := carrier.NewGuest(in, out, token)
		in, out = g, g
	}
	at, err := wire.NewLink(in, out, token).Accept(func(*wire.Hello) *wire.Welcome {
		return &wire.Welcome{Protocol: wire.Protocol, GuestVersion: "hostile"}
	})
	if err != nil {
		os.Exit(1)
	}
	kind := at.Hello.Identity.Env["ATTACK"]
	if serve := services[kind]; serve != nil {
		session := wire.NewSession(at, at, false)
		session.Serve(func(st *wire.Stream, _ *wire.Request) bool { return serve(session, st) })
	}
	attack(at, kind)
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
	case "output beside the stream": // as a service could add it
		w = os.Stdout
	case "both ends closed":
		_ = os.Stdout.Close()
		_ = os.Stdin.Close()
		return
	}
	for {
		_, _ = w.Write(junk)
	}
}

// services are guests that speak the protocol, and abuse it. The host has asked for something on the stream.
var services = map[string]func(s *wire.Session, st *wire.Stream) bool{
	"a forged verdict": func(_ *wire.Session, st *wire.Stream) bool {
		v := &wire.Verdict{
			Id: "someone else's", Ending: 99, ExitCode: -7, Signal: 4000, WallNs: -1, CpuNs: -1, PeakMemory: -1,
			Stdout: &wire.Kept{
				Produced: -1, Head: bytes.Repeat([]byte{0xff}, 1<<20), File: "/etc/passwd", FileBytes: -1,
			},
			CellError:      &wire.CellError{Name: "\xff", Line: -1},
			SurvivorsTotal: -1, MemoryKills: -1, DisplaysDropped: -1, HasResult: true, Displays: [][]byte{{0xff}, []byte("{")},
		}
		for range 1000 {
			v.Survivors = append(v.Survivors, &wire.Process{Pid: -1, Command: string(make([]byte, 1000))})
		}
		_ = st.Send(&wire.Frame{Body: &wire.Frame_Verdict{Verdict: v}, Last: true}) // the host may have hung up
		return true
	},
	"frames without end": func(_ *wire.Session, st *wire.Stream) bool {
		for st.Send(&wire.Frame{Body: &wire.Frame_Output{Output: &wire.Output{Data: make([]byte, 1<<10)}}}) == nil {
		}
		return false
	},
	"calls without end": func(s *wire.Session, _ *wire.Stream) bool {
		for {
			st, err := s.Open()
			if err != nil {
				return false
			}
			call := &wire.HostCall{Op: "forged", Name: "spend"}
			_ = st.Send(&wire.Request{Call: &wire.Request_HostCall{HostCall: call}}) // the host may have hung up
			_ = st.Send(&wire.Frame{Body: &wire.Frame_Eof{Eof: true}})
		}
	},
	"calls that never end": func(s *wire.Session, _ *wire.Stream) bool {
		for {
			st, err := s.Open()
			if err != nil {
				return false
			}
			call := &wire.HostCall{Op: "forged", Name: "spend"}
			_ = st.Send(&wire.Request{Call: &wire.Request_HostCall{HostCall: call}}) // the host may have hung up
			_ = st.Send(&wire.Frame{Body: &wire.Frame_Data{Data: make([]byte, 64<<10)}})
		}
	},
}
