package sandboxtest

import (
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// notebook are features of notebooks that models expect.
var notebook = []feature{
	{"the environment of a cell ends with it", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		runCell(t, sb, sandbox.Cell{Code: "import os\nassert os.environ['K'] == 'v'", RunOptions: sandbox.RunOptions{Env: map[string]string{"K": "v"}}})
		same(t, "result", okCell(t, sb, "str(os.environ.get('K'))").Result.Text(), "'None'")
	}},
	{"tasks continue between cells", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "import asyncio\nsteps = []\nasync def g():\n  for i in range(3):\n    await asyncio.sleep(0.01)\n    steps.append(i)\n  return 'done'\nt = asyncio.create_task(g())")
		testneed.Await(t, "the task ends", func() bool { return okCell(t, sb, "len(steps)").Result.Text() == "3" })
		same(t, "result", okCell(t, sb, "await t").Result.Text(), "'done'")
		same(t, "gather", okCell(t, sb, "ts = [asyncio.create_task(g()) for _ in range(2)]\nawait asyncio.gather(*ts)").Result.Text(), "['done', 'done']")
		same(t, "asyncio.run", okCell(t, sb, "asyncio.run(g())").Result.Text(), "'done'")
	}},
	{"magics work without IPython", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		same(t, "cd", okCell(t, sb, "%cd /tmp\n!echo from a shell\n%pwd").Result.Text(), "'/tmp'")
		same(t, "a script", okCell(t, sb, "%%bash\necho $((6 * 7))").Stdout.String(), "42\n")
		same(t, "ls", okCell(t, sb, "%ls -d /tmp").Stdout.String(), "/tmp\n")
		v := cell(t, sb, "%nosuch")
		same(t, "error", v.Error.Name, "UsageError")
		same(t, "traceback", v.Error.Traceback, "UsageError: "+v.Error.Value+"\n")
	}},
	{"a package that pip installs can be imported at once", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, `import zipfile, os
with zipfile.ZipFile("/tmp/recluse_sample-1.0-py3-none-any.whl", "w") as z:
    z.writestr("recluse_sample.py", "answer = 42\n")
    z.writestr("recluse_sample-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: recluse_sample\nVersion: 1.0\n")
    z.writestr("recluse_sample-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("recluse_sample-1.0.dist-info/RECORD", "")`)
		v := run(t, sb, sandbox.Command{Shell: `python3 -m pip --version >/dev/null 2>&1 || exit 77
			[ -n "$PIP_BREAK_SYSTEM_PACKAGES" ] || export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_USER=1 # without isolation only the home directory is ours
			python3 -m pip install --no-index -q /tmp/recluse_sample-1.0-py3-none-any.whl`})
		if v.ExitCode == 77 {
			return // this image has no pip
		}
		same(t, "pip", v.ExitCode, 0)
		same(t, "result", okCell(t, sb, "import recluse_sample\nrecluse_sample.answer").Result.Text(), "42")
		same(t, "%pip", okCell(t, sb, "%pip show -qq recluse_sample").Stdout.String(), "")
	}},
}
