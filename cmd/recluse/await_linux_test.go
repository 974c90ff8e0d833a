package main

import (
	"strings"
	"testing"
)

// The interpreter of a session has one event loop, and tasks continue between cells.
func TestTasksLiveFromCellToCell(t *testing.T) {
	w := newWorld(t)
	for _, cell := range []struct{ name, code, shown string }{
		{"a task", "import asyncio\nasync def g(n=1):\n    await asyncio.sleep(0.01)\n    return n\nt = asyncio.create_task(g())", ""},
		{"await of an earlier cell's task, last", "await t", "1\n"},
		{"a task and its await in one cell", "u = asyncio.create_task(g(2))\nawait u", "2\n"},
		{"tasks", "tasks = [asyncio.create_task(g(i)) for i in range(3)]", ""},
		{"gather, last", "asyncio.gather(*tasks)", "<_GatheringFuture"},
		{"await of gather, last", "await asyncio.gather(*tasks)", "[0, 1, 2]\n"},
		{"a task that is not awaited", "done = []\nasync def later():\n    await asyncio.sleep(0.01)\n    done.append('later')\nasyncio.create_task(later());", ""},
		{"what it did meanwhile", "import time\nend = time.monotonic() + 60\nwhile not done and time.monotonic() < end:\n    await asyncio.sleep(0.01)\ndone", "['later']\n"},
	} {
		got := w.run("", "exec", "--session", "loop", "--python", cell.code)
		if got.status != 0 || got.stderr != "" || !strings.HasPrefix(got.stdout, cell.shown) || cell.shown == "" && got.stdout != "" {
			t.Fatalf("%s: %+v", cell.name, got)
		}
	}
}
