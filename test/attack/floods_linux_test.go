package attack

import (
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestFloods(t *testing.T) {
	testneed.Parallel(t)
	sb := fresh(t, small())
	for _, b := range []bomb{
		{name: "stderr", variant: true, script: `dd if=/dev/zero bs=256k count=800 >&2`},
		{name: "both", script: `dd if=/dev/zero bs=256k count=400 & dd if=/dev/zero bs=256k count=400 >&2; wait`},
		{name: "a line of 1 GB", script: `dd if=/dev/zero bs=256k count=4096`, timeout: 90 * time.Second},
		{name: "without end", script: `yes & yes >&2`, timeout: 2 * time.Second},
		{name: "in tiny pieces", python: `
import os
for i in range(30000): os.write(1 + i % 2, b'x')`},
	} {
		if b.left() {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			siege(t, sb, func() {
				v := b.run(t, sb)
				if v.Stdout.Kept() > v1.DefaultInlineBytes || v.Stderr.Kept() > v1.DefaultInlineBytes {
					t.Errorf("kept %d and %d bytes", v.Stdout.Kept(), v.Stderr.Kept())
				}
				if v.Stdout.InFile > v1.DefaultSpoolBytes || v.Stderr.InFile > v1.DefaultSpoolBytes {
					t.Errorf("spooled %d and %d bytes", v.Stdout.InFile, v.Stderr.InFile)
				}
				if b.name == "a line of 1 GB" && v.Stdout.Produced != 1<<30 {
					t.Errorf("of 1 GB %d bytes were counted", v.Stdout.Produced)
				}
				if v.Stdout.Produced+v.Stderr.Produced < 30000 {
					t.Errorf("produced %d and %d bytes", v.Stdout.Produced, v.Stderr.Produced)
				}
			})
		})
	}
	t.Run("from a cell", func(t *testing.T) {
		siege(t, sb, func() {
			v := cell(t, sb, sandbox.Cell{Code: "import sys\nfor i in range(2000): sys.stdout.write('y' * 65536); sys.stderr.write('n' * 65536)"})
			if !v.OK() || v.Stdout.Produced != 2000*65536 || v.Stderr.Produced != 2000*65536 || v.Stdout.Kept() > v1.DefaultInlineBytes {
				t.Errorf("%s, %d and %d bytes produced", v, v.Stdout.Produced, v.Stderr.Produced)
			}
		})
	})
	t.Run("of shown values", func(t *testing.T) {
		siege(t, sb, func() {
			v := cell(t, sb, sandbox.Cell{Code: "class B:\n    def _repr_html_(self): return 'x' * 1000000\nfor i in range(200): recluse.display(B()) if 'recluse' in globals() else display(B())"})
			t.Log(v, len(v.Displays), v.DisplaysDropped, v.Error)
			if !v.OK() || v.DisplaysDropped == 0 || len(v.Displays)+v.DisplaysDropped != 200 {
				t.Errorf("%s, %d displays, %d dropped", v, len(v.Displays), v.DisplaysDropped)
			}
		})
	})
	t.Run("a result of 40 MB", func(t *testing.T) {
		siege(t, sb, func() {
			v := cell(t, sb, sandbox.Cell{Code: "class R:\n    def __repr__(self): return 'x' * (40 << 20)\nR()"})
			t.Log(v, len(v.Result.Text()), v.DisplaysDropped)
			if n := len(v.Result.Text()); !v.OK() || n == 0 || n > 4<<20 {
				t.Errorf("%s, a result of %d bytes", v, n)
			}
		})
	})
}

func TestBytesThatAreNotText(t *testing.T) {
	sb := shared(t)
	v := run(t, sb, sandbox.Command{Shell: `printf '\377\376\000\001\033[2J\033]0;owned\007\302'`})
	if got := string(v.Stdout.Head); got != "\xff\xfe\x00\x01\x1b[2J\x1b]0;owned\x07\xc2" {
		t.Errorf("got %q", got)
	}
	if _, err := v.MarshalJSON(); err != nil {
		t.Error(err)
	}
	c := cell(t, sb, sandbox.Cell{Code: "import os, sys\nsys.stdout.write('\\udcff\\x00\\x1b[2J\\n')\nsys.stdout.flush()\nos.write(1, b'\\xff\\xfe')"})
	if !c.StateKept {
		t.Errorf("the interpreter did not survive its own output: %s", c)
	}
}
