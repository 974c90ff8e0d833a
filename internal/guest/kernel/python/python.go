// Package python implements the kernel of Python.
package python

import (
	_ "embed" // for the programs
	"os/exec"
	"strconv"
)

//go:embed kernel.py
var kernelSource string

//go:embed magics.py
var magicsSource string

//go:embed charts.py
var chartsSource string

// source is the program of the interpreter. It contains the texts of magics.py and charts.py, which it runs when a cell
// first needs them.
var source = []byte("_magics_source = " + strconv.QuoteToASCII(magicsSource) + "\n_charts_source = " +
	strconv.QuoteToASCII(chartsSource) + "\n" + kernelSource)

// bootstrap is the program that Python is started with. It reads source and runs it section by section, because the
// memory that the compiler needs for a large program at once stays in the process: 2 MB. Line numbers remain those of
// source.
const bootstrap = `import os
def _r(n):
    b = b""
    while len(b) < n:
        c = os.read(3, n - len(b))
        if not c: os._exit(70)
        b += c
    return b
_n = int.from_bytes(_r(4), "little")
import builtins
_g = {"__name__": "__recluse__", "__builtins__": dict(vars(builtins))}
_s, _l = _r(_n)[1:].split(b"\n# --- "), 0
while _s:
    exec(compile(b"\n" * _l + b"# " * (_l > 0) + _s[0], "<recluse>", "exec"), _g)
    _l += _s.pop(0).count(b"\n") + 1`

// Kernel implements kernel.Kernel.
type Kernel struct{}

// Language implements kernel.Kernel.
func (Kernel) Language() string { return "python" }

// Find implements kernel.Kernel.
func (Kernel) Find() string {
	for _, name := range []string{"python3", "python"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	return ""
}

// Command implements kernel.Kernel.
func (Kernel) Command(path string) []string { return []string{path, "-c", bootstrap} }

// Source implements kernel.Kernel.
func (Kernel) Source() []byte { return source }
