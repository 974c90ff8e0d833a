package session

import (
	"cmp"
	"reflect"
	"slices"
	"testing"

	"github.com/recluse-dev/recluse/sandbox"
)

func TestTrees(t *testing.T) {
	cell := func(id string, pid int, running bool) sandbox.Operation {
		return sandbox.Operation{ID: id, Kind: "cell", Context: "main", PID: pid, Running: running}
	}
	command := func(id string, running bool, left ...sandbox.Process) sandbox.Operation {
		o := sandbox.Operation{ID: id, Kind: "command", PID: 7, Running: running}
		if !running {
			o.Verdict = &sandbox.Verdict{Survivors: left}
		}
		return o
	}
	main := []sandbox.Context{{Name: "main", PID: 10}}
	leaving := cell("c1", 10, false)
	leaving.Verdict = &sandbox.Verdict{Survivors: []sandbox.Process{{PID: 11}, {PID: 12, Killed: true}}}
	for _, c := range []struct {
		name     string
		ops      []sandbox.Operation
		contexts []sandbox.Context
		want     []tree
	}{
		{"nothing", nil, nil, nil},
		{"an interpreter of which no cell is remembered", nil, main, nil},
		{"a command that runs", []sandbox.Operation{command("r1", true)}, nil, []tree{{op: "r1", running: true}}},
		{"a command that has ended", []sandbox.Operation{command("r1", false)}, nil, nil},
		{"a command that left something behind", []sandbox.Operation{command("r1", false, sandbox.Process{PID: 8}, sandbox.Process{PID: 9, Killed: true})}, nil, []tree{{op: "r1", pids: []int{8}}}},
		{"the latest cell stands for the interpreter", []sandbox.Operation{cell("c1", 10, false), cell("c2", 10, false)}, main, []tree{{op: "c2", pids: []int{10}}}},
		{"a cell that runs stands for it before later ones", []sandbox.Operation{cell("c1", 10, true), cell("c2", 10, false)}, main, []tree{{op: "c1", running: true, pids: []int{10}}}},
		{"a cell that never reached the interpreter does not", []sandbox.Operation{cell("c1", 10, false), cell("c2", 0, false)}, main, []tree{{op: "c1", pids: []int{10}}}},
		{"nor one that waits for it", []sandbox.Operation{cell("c1", 0, true), cell("c2", 10, true)}, main, []tree{{op: "c2", running: true, pids: []int{10}}}},
		{"what a cell left behind", []sandbox.Operation{leaving, cell("c2", 10, false)}, main, []tree{{op: "c2", pids: []int{10, 11}}}},
		{"a cell whose interpreter has gone", []sandbox.Operation{cell("c1", 10, false)}, nil, nil},
		{"a command and an interpreter", []sandbox.Operation{cell("c1", 10, false), command("r1", true)}, main, []tree{{op: "c1", pids: []int{10}}, {op: "r1", running: true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := trees(c.ops, c.contexts)
			slices.SortFunc(got, func(a, b tree) int { return cmp.Compare(a.op, b.op) })
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
