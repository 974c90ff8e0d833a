# Magics, shell commands and question marks of notebooks, without IPython. kernel.py runs this file in its own namespace
# when a cell first needs it. Standard library only; Python 3.8 and later.

import ast
import os
import re
import subprocess
import sys
import time


class UsageError(Exception):
    """An unknown magic, or wrong use of a magic."""

    recluse_one_line = True  # its traceback is only the message


UsageError.__module__ = "builtins"  # its name is shown without a module


class _Lines(list):
    """The output of a command as a list of lines. .s joins them with spaces, .n with newlines."""

    l = property(lambda self: list(self))
    n = property(lambda self: "\n".join(self))
    s = property(lambda self: " ".join(self))


# --- from a cell to Python ---

_LINE_MAGIC = re.compile(r"(\s*)%(?!%)(\w+)[ \t]*(.*)$", re.S).match
_SHELL = re.compile(r"(\s*)!(!?)(.+)$", re.S).match
_ASSIGN = re.compile(r"(\s*)([\w.\[\]'\", *()]+?)\s*=\s*([!%])([^=].*)$", re.S).match
_HELP_AFTER = re.compile(r"(\s*)(\*{0,2}[A-Za-z_][\w.\[\]]*)(\?\??)\s*$").match
_HELP_BEFORE = re.compile(r"(\s*)(\?\??)\s*([A-Za-z_][\w.\[\]]*)\s*$").match
_CELL_MAGIC = re.compile(r"\s*%%(\w+)[ \t]*([^\n]*)\n?(.*)$", re.S).match
_CALL = "__recluse_%s__(%r, %r)"


def _python_of(source):
    """Returns a cell with its magics replaced by calls, line by line, so that line numbers stay."""
    whole = _CELL_MAGIC(source)
    if whole:
        return "__recluse_cell_magic__(%r, %r, %r)" % whole.groups()
    out, state = [], _Scanner()
    lines = source.split("\n")
    while lines:
        line = lines.pop(0)
        if not state.at_statement():
            state.read(line)
            out.append(line)
            continue
        joined = 0
        text = line
        while text.endswith("\\") and lines and _call_of(text):  # the command continues in the next line
            text = text[:-1] + lines.pop(0)
            joined += 1
        call = _call_of(text)
        if call is None:
            state.read(line)
            out.append(line)
        else:
            out.append(call + "\n" * joined)
    return "\n".join(out)


def _call_of(line):
    """Returns the call for a line of notebook syntax, or None if the line is Python."""
    m = _LINE_MAGIC(line)
    if m:
        return m[1] + _CALL % ("magic", m[2], m[3].strip())
    m = _SHELL(line)
    if m:
        return m[1] + _CALL % ("output" if m[2] else "shell", m[3].strip(), "")
    m = _ASSIGN(line)
    if m:
        kind, rest = m[3], m[4].strip()
        if kind == "!":
            return "%s%s = %s" % (m[1], m[2], _CALL % ("output", rest.lstrip("!"), ""))
        name, _, arguments = rest.partition(" ")
        return "%s%s = %s" % (m[1], m[2], _CALL % ("magic", name, arguments.strip()))
    m = _HELP_AFTER(line)
    if m:
        return m[1] + _CALL % ("help", m[2], m[3])
    m = _HELP_BEFORE(line)
    if m:
        return m[1] + _CALL % ("help", m[3], m[2])
    return None


class _Scanner:
    """Tracks whether a line begins a statement, or continues a string, a bracket or a line with a backslash."""

    def __init__(self):
        self.quote, self.depth, self.joined = "", 0, False

    def at_statement(self):
        return not self.quote and self.depth == 0 and not self.joined

    def read(self, line):
        self.joined = False
        i = 0
        while i < len(line):
            c = line[i]
            if self.quote:
                if c == "\\":
                    i += 1
                elif line.startswith(self.quote, i):
                    i += len(self.quote) - 1
                    self.quote = ""
            elif c == "#":
                break
            elif c in "'\"":
                self.quote = line[i:i + 3] if line[i:i + 3] == c * 3 else c
                i += len(self.quote) - 1
            elif c in "([{":
                self.depth += 1
            elif c in ")]}":
                self.depth = max(0, self.depth - 1)
            elif c == "\\" and i == len(line) - 1:
                self.joined = True
            i += 1
        if len(self.quote) == 1:  # a string in single quotes ends with its line, even if it is not closed
            self.quote = ""


# --- commands ---

_NAME = re.compile(r"\$\$|\$([A-Za-z_]\w*)|\$\{([^{}]+)\}|\{\{|\}\}|\{([^{}\n]+)\}").sub


def _expanded(command):
    """Returns a command with $name and {expression} of Python replaced. Unknown names are left to the shell."""
    def value(m):
        if m[0] in ("$$", "{{", "}}"):
            return m[0][0]
        name = m[1] or m[2]
        if name is not None:
            return str(_main.__dict__[name]) if name in _main.__dict__ else m[0]
        try:
            return str(eval(m[3], _main.__dict__))
        except Exception:
            return m[0]
    return _NAME(value, command)


def _shell_program():
    for path in ("/bin/bash", "/usr/bin/bash"):
        if os.path.exists(path):
            return path
    return None  # subprocess uses sh


def _shell(command, _=""):
    _out_buffer.flush()
    code = subprocess.call(_expanded(command), shell=True, executable=_shell_program(), stdin=subprocess.DEVNULL)
    _main.__dict__["_exit_code"] = code


def _output(command, _=""):
    _out_buffer.flush()
    done = subprocess.run(_expanded(command), shell=True, executable=_shell_program(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    _main.__dict__["_exit_code"] = done.returncode
    return _Lines(done.stdout.decode("utf-8", "replace").splitlines())


def _program(command):
    """Runs a program. A status other than 0 is an error."""
    _out_buffer.flush()
    code = subprocess.call(command, stdin=subprocess.DEVNULL)
    if code:
        raise UsageError("%s ended with status %d" % (" ".join(command), code))


# --- line magics ---

_previous_dir = None  # the directory before the last %cd


def _m_cd(rest):
    """%cd [DIR|-]: change the working directory; without DIR, to the home directory"""
    global _previous_dir
    was = os.getcwd()
    to = _expanded(rest.strip().strip("'\""))
    if to == "-":
            if _previous_dir is None:
                raise UsageError("%cd -: no previous directory")
            to = _previous_dir
    os.chdir(os.path.expanduser(to or "~"))
    _previous_dir = was
    sys.stdout.write(os.getcwd() + "\n")


def _m_pwd(rest):
    """%pwd: the working directory"""
    return os.getcwd()


def _m_ls(rest):
    """%ls [ARGS]: list files"""
    _shell("ls " + rest)


def _m_env(rest):
    """%env [NAME | NAME=VALUE | NAME VALUE]: show or set environment variables"""
    if not rest:
        return dict(os.environ)
    m = re.match(r"(\w+)(?:\s*=\s*|\s+)(.*)$", rest, re.S)
    if not m:
        if rest not in os.environ:
            raise UsageError("%%env: environment variable %s not found" % rest)
        return os.environ[rest]
    os.environ[m[1]] = _expanded(m[2])
    sys.stdout.write("env: %s=%s\n" % (m[1], os.environ[m[1]]))


def _statement(source, name):
    """Runs code of a magic in the namespace of the cells, and returns the value of its last expression."""
    tree = ast.parse(_python_of(source), name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, name, "exec", S.flags, True), _main.__dict__)
    return eval(compile(last, name, "eval", S.flags, True), _main.__dict__) if last else None


def _duration(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return "%.3g %s" % (seconds / size, unit)
    return "%.3g ns" % (seconds * 1e9)


def _m_time(rest, source=None):
    """%time STATEMENT, or %%time over a cell: measure how long it takes"""
    cpu, wall = os.times(), time.perf_counter()
    try:
        return _statement(rest + "\n" + source if source else rest, "<time>")
    finally:
        now = os.times()
        sys.stdout.write("CPU times: user %s, sys: %s, total: %s\nWall time: %s\n" % (
            _duration(now.user - cpu.user), _duration(now.system - cpu.system), _duration(now.user - cpu.user + now.system - cpu.system),
            _duration(time.perf_counter() - wall)))


def _m_timeit(rest, source=None):
    """%timeit [-n LOOPS] [-r RUNS] STATEMENT, or %%timeit over a cell: measure how long it takes on average"""
    import timeit
    loops, runs = 0, 7
    while True:
        m = re.match(r"-([nr])\s*(\d+)\s+(.*)$", rest + " ", re.S) or re.match(r"-([qopt])\s+()(.*)$", rest + " ", re.S)
        if not m:
            break
        if m[1] == "n":
            loops = int(m[2])
        elif m[1] == "r":
            runs = int(m[2])
        rest = m[3].rstrip()
    setup, statement = (rest or "pass", source) if source else ("pass", rest)
    timer = timeit.Timer(statement or "pass", setup, globals=_main.__dict__)
    if not loops:
        loops, took = timer.autorange()
        while took > 0.3 and loops > 1:  # there are seven runs of this
            loops, took = max(1, loops // 10), took / 10
    each = [t / loops for t in timer.repeat(runs, loops)]
    mean = sum(each) / len(each)
    spread = (sum((t - mean) ** 2 for t in each) / len(each)) ** 0.5
    sys.stdout.write("%s ± %s per loop (mean ± std. dev. of %d runs, %d loop%s each)\n" % (
        _duration(mean), _duration(spread), runs, loops, "" if loops == 1 else "s"))


def _m_matplotlib(rest):
    """%matplotlib [inline]: figures are shown when a cell ends, with or without it"""
    import matplotlib
    matplotlib.use("Agg")


def _m_pip(rest):
    """%pip ARGS: run pip for this interpreter"""
    import shlex
    try:
        _program([sys.executable, "-m", "pip"] + shlex.split(_expanded(rest)))
    finally:
        _find_installed()


def _m_load_ext(rest):
    """%load_ext NAME: load an extension of IPython, where IPython is installed"""
    shell = _use_ipython()
    if shell is None:
        sys.stderr.write("%%load_ext %s: extensions need IPython, which is not installed; the cell continues without it\n" % rest)
        return
    shell.run_line_magic("load_ext", rest)


def _m_autoreload(rest):
    """%autoreload [MODE]: reload changed modules, where IPython is installed"""
    shell = _use_ipython()
    if shell is not None:
        shell.run_line_magic("autoreload", rest)


def _m_run(rest):
    """%run FILE [ARGS]: run a Python file; cells can use its names afterwards"""
    import shlex
    words = shlex.split(_expanded(rest))
    words = [w for i, w in enumerate(words) if not (w in ("-i", "-e", "-n") and not any(x.endswith(".py") for x in words[:i]))]
    if not words:
        raise UsageError("%run: missing file name")
    path = os.path.expanduser(words[0])
    with open(path, "rb") as f:
        code = compile(f.read(), path, "exec")
    names = {"__name__": "__main__", "__file__": path, "__builtins__": _main.__dict__["__builtins__"]}
    argv = sys.argv
    sys.argv = [path] + words[1:]
    try:
        exec(code, names)
    except SystemExit as e:
        if e.code not in (None, 0):
            raise
    finally:
        sys.argv = argv
        _main.__dict__.update((k, v) for k, v in names.items() if not k.startswith("__"))


def _names():
    return sorted(k for k, v in _main.__dict__.items() if not k.startswith("_") and not isinstance(v, type(os)))


def _m_who(rest):
    """%who: list the names that cells have defined"""
    sys.stdout.write(("\t ".join(_names()) or "no names are defined") + "\n")


def _m_whos(rest):
    """%whos: list the names that cells have defined, with type and value"""
    for name in _names():
        value = _main.__dict__[name]
        sys.stdout.write("%-20s %-15s %s\n" % (name, type(value).__name__, _text_of(value).replace("\n", " ")[:80]))


def _m_reset(rest):
    """%reset: delete all names"""
    for name in [k for k in _main.__dict__ if not k.startswith("__")]:
        del _main.__dict__[name]


# --- cell magics ---

def _script(program, rest, source):
    _out_buffer.flush()
    code = subprocess.run([program] + rest.split(), input=source.encode("utf-8", "surrogateescape")).returncode
    _main.__dict__["_exit_code"] = code
    if code:
        raise UsageError("the script ended with status %d" % code)


def _c_bash(rest, source):
    """%%bash: run the cell as a script of bash"""
    _script(_shell_program() or "/bin/sh", rest, source)


def _c_sh(rest, source):
    """%%sh: run the cell as a script of sh"""
    _script("/bin/sh", rest, source)


def _c_writefile(rest, source):
    """%%writefile [-a] FILE: write the cell to a file"""
    append = rest.startswith("-a ")
    path = os.path.expanduser(_expanded(rest[3:].strip() if append else rest.strip()).strip("'\""))
    if not path:
        raise UsageError("%%writefile: missing file name")
    there = os.path.exists(path)
    with open(path, "a" if append else "w", encoding="utf-8") as f:
        f.write(source if source.endswith("\n") or not source else source + "\n")
    sys.stdout.write("%s %s\n" % ("Appending to" if append else "Overwriting" if there else "Writing", path))


def _c_capture(rest, source):
    """%%capture [NAME]: keep the output of the cell in a variable instead of showing it"""
    import io
    out, err = io.StringIO(), io.StringIO()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        _statement(source, "<capture>")
    finally:
        sys.stdout, sys.stderr = before
        names = [w for w in rest.split() if not w.startswith("-")]
        if names:
            kept = type("Captured", (), {"__str__": lambda self: self.stdout, "show": lambda self: sys.stdout.write(self.stdout)})()
            kept.stdout, kept.stderr = out.getvalue(), err.getvalue()
            _main.__dict__[names[0]] = kept


def _shown_as(mime):
    def magic(rest, source):
        display({mime: source, "text/plain": source}, raw=True)
    magic.__doc__ = "%%%%%s: show the cell as %s" % (mime.split("/")[1], mime)
    return magic


_LINE_MAGICS = {
    "cd": _m_cd, "pwd": _m_pwd, "ls": _m_ls, "env": _m_env, "set_env": _m_env, "time": _m_time, "timeit": _m_timeit, "matplotlib": _m_matplotlib,
    "pip": _m_pip, "load_ext": _m_load_ext, "reload_ext": _m_load_ext, "autoreload": _m_autoreload, "run": _m_run, "who": _m_who, "whos": _m_whos,
    "reset": _m_reset,
}
_CELL_MAGICS = {
    "bash": _c_bash, "sh": _c_sh, "writefile": _c_writefile, "file": _c_writefile, "time": _m_time, "timeit": _m_timeit, "capture": _c_capture,
    "html": _shown_as("text/html"), "HTML": _shown_as("text/html"), "markdown": _shown_as("text/markdown"),
}


def _known(table, prefix):
    return ", ".join(prefix + name for name in sorted(table))


def _magic(name, rest):
    magic = _LINE_MAGICS.get(name)
    if magic is not None:
        return magic(rest)
    if name in ("lsmagic", "magic"):
        return "%s\n%s" % (_known(_LINE_MAGICS, "%"), _known(_CELL_MAGICS, "%%"))
    shell = _use_ipython()
    if shell is not None and shell.find_line_magic(name) is not None:
        return shell.run_line_magic(name, rest)
    raise UsageError("unknown line magic %%%s; known: %s" % (name, _known(_LINE_MAGICS, "%")))


def _cell_magic(name, rest, source):
    magic = _CELL_MAGICS.get(name)
    if magic is not None:
        return magic(rest, source)
    shell = _use_ipython()
    if shell is not None and shell.find_cell_magic(name) is not None:
        return shell.run_cell_magic(name, rest, source)
    raise UsageError("unknown cell magic %%%%%s; known: %s" % (name, _known(_CELL_MAGICS, "%%")))


def _help(name, marks):
    """Describes a value: NAME?, and NAME?? with its source"""
    import inspect
    try:
        value = eval(name, _main.__dict__)
    except Exception:
        sys.stdout.write("Object `%s` not found.\n" % name)
        return
    lines = []
    try:
        if callable(value):
            lines.append("Signature: %s%s" % (name, inspect.signature(value)))
    except (TypeError, ValueError):
        pass
    lines.append("Type:      %s" % type(value).__name__)
    if not callable(value):
        lines.append("Value:     %s" % _text_of(value)[:1000])
    doc = inspect.getdoc(value)
    if doc:
        lines.append("Docstring:\n" + doc)
    if marks == "??":
        try:
            lines.append("Source:\n" + inspect.getsource(value))
        except (TypeError, OSError):
            pass
    sys.stdout.write("\n".join(lines) + "\n")


class Shell:
    """The commonly used part of IPython's shell, returned by get_ipython() if IPython is not installed."""

    def run_line_magic(self, name, rest, *_, **__):
        return _magic(name, rest)

    def run_cell_magic(self, name, rest, source):
        return _cell_magic(name, rest, source)

    def magic(self, text):
        name, _, rest = text.lstrip("%").partition(" ")
        return _magic(name, rest.strip())

    def system(self, command):
        _shell(command)

    def getoutput(self, command):
        return _output(command)

    user_ns = property(lambda self: _main.__dict__)


_shell_object = Shell()


def _install_magics():
    """Makes the names that transformed cells use builtins, so that they are not in the namespace of the cells."""
    have = vars(builtins)
    have["__recluse_magic__"], have["__recluse_cell_magic__"] = _magic, _cell_magic
    have["__recluse_shell__"], have["__recluse_output__"], have["__recluse_help__"] = _shell, _output, _help
