"""The values of code, as far as reading can determine them."""

import ast
import contextlib
import json
import struct
import sys
import warnings

HOLE = "\ue000"
EACH = HOLE + "\ue003"  # the name of any entry, where code walks over all entries of a directory
MOST = 8  # maximum number of alternatives per value
STEPS = 200_000
FACTS = 40_000
LONGEST = 1 << 16  # maximum length of a computed text
DEPTH = 4  # maximum depth of function calls


class Unknown:
    pass


UNKNOWN = Unknown()


class Ref:
    """A name of a module, function or object: os.path.join."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name


class PathText(str):
    """A pathlib.Path of this text."""


class Result(Ref):
    """What a call of this name returned."""


class File(Result):
    """A file of this path that the code opened, or what the code read from it."""

    __slots__ = ("path",)

    def __init__(self, path):
        super().__init__("open")
        self.path = path


class Func:
    """A function of the code itself."""

    __slots__ = ("node", "env", "seen")

    def __init__(self, node, env):
        self.node, self.env, self.seen = node, env, 0


class Method:
    __slots__ = ("base", "name")

    def __init__(self, base, name):
        self.base, self.name = base, name


class Alt:
    """Alternatives inside a list."""

    __slots__ = ("values",)

    def __init__(self, values):
        self.values = values


STARS = {
    "os": ("system", "popen", "remove", "unlink", "removedirs", "rmdir", "execv", "execvp", "execl", "kill", "chmod", "chown", "environ", "path", "fork", "spawnl", "spawnv"),
    "subprocess": ("run", "call", "Popen", "check_call", "check_output", "getoutput", "getstatusoutput"),
    "shutil": ("rmtree", "move", "copy", "copyfile", "copytree"),
}
CONSTANTS = {"os.sep": "/", "os.path.sep": "/", "posixpath.sep": "/", "os.curdir": ".", "os.pardir": "..", "os.path.curdir": "."}
# Calls that remove a file or directory, calls that load objects from bytes, and calls that write such bytes.
REMOVES_EMPTY = {"os.rmdir", "os.removedirs", "pathlib.Path.rmdir"}  # empty directories
REMOVES = {"os.remove", "os.unlink", "pathlib.Path.unlink"} | REMOVES_EMPTY
LOADS = {"pickle.load", "pickle.loads", "cPickle.load", "cPickle.loads", "dill.load", "dill.loads", "marshal.load", "marshal.loads", "shelve.open", "jsonpickle.decode"}
DUMPS = {"pickle.dumps", "cPickle.dumps", "dill.dumps", "marshal.dumps", "jsonpickle.encode"}
DUMPS_TO = {"pickle.dump", "cPickle.dump", "dill.dump", "marshal.dump"}
# Tests that do not exclude a file of a walk.
PLAIN_TESTS = {"is_file", "is_dir", "exists", "is_symlink", "isfile", "isdir", "islink"}
SENSITIVE = {"os", "subprocess", "shutil", "builtins", "__builtins__", "sys", "ctypes", "socket", "posix"}


def spread(v):
    return v.values if isinstance(v, Alt) else [v]


def shown(v):
    """A value for a fact: a text, or a list of texts."""
    if isinstance(v, list):
        return [text(x) for x in v[:64]]
    return text(v)[:65536]


def constant(name):
    """The value of a name of a module: a text, or the name itself."""
    return CONSTANTS.get(name) or Ref(name)


def walked(path):
    """The directory of which a path is any entry, or None."""
    parts = path.split("/")
    if parts[-1] != EACH:
        return None
    while parts and parts[-1] == EACH:
        parts.pop()
    return "/".join(parts) or ("/" if path.startswith("/") else ".")


def entries(directory, pattern="*"):
    """The path that a pattern matches below a directory: any entry, unless the pattern leaves some out."""
    name = EACH if not pattern.replace("/", "").strip("*") else HOLE
    return directory.rstrip("/") + "/" + name if directory else name


def narrows(test):
    """Reports whether a test leaves out some of the files of a walk."""
    if isinstance(test, ast.UnaryOp):
        return narrows(test.operand)
    if isinstance(test, ast.BoolOp):
        return any(narrows(v) for v in test.values)
    return not (isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and test.func.attr in PLAIN_TESTS)


def small(v):
    return isinstance(v, int) and -(1 << 40) < v < (1 << 40)


def partial(v):
    return isinstance(v, str) and HOLE in v


def percent(a, b):
    values = b if isinstance(b, list) else [b]
    out, i = "", 0
    parts = a.split("%")
    out = parts[0]
    k = 1
    while k < len(parts):
        p = parts[k]
        if p == "" and k + 1 < len(parts):
            out += "%" + parts[k + 1]
            k += 2
            continue
        v = values[i] if i < len(values) else UNKNOWN
        i += 1
        out += (text(v) if p[:1] in ("s", "d") else HOLE) + p[1:]
        k += 1
    return out if len(out) < LONGEST else UNKNOWN


def brace(a, values):
    out, i, k = "", 0, 0
    while k < len(a):
        c = a[k]
        if c in "{}" and a[k : k + 2] == c * 2:
            out += c
            k += 2
        elif c == "{":
            end = a.find("}", k)
            if end < 0:
                return UNKNOWN
            field = a[k + 1 : end]
            if field == "":
                v, i = (values[i] if i < len(values) else UNKNOWN), i + 1
            elif field.isdigit():
                v = values[int(field)] if int(field) < len(values) else UNKNOWN
            else:
                v = UNKNOWN
            out += text(v)
            k = end + 1
        else:
            out += c
            k += 1
        if len(out) > LONGEST:
            return UNKNOWN
    return out


class Spent(Exception):
    pass


class Env:
    def __init__(self, parent=None):
        self.parent, self.vars = parent, {}

    def get(self, name):
        e = self
        while e is not None:
            if name in e.vars:
                return e.vars[name]
            e = e.parent
        return None

    def set(self, name, values):
        self.vars[name] = values[:MOST] if len(values) <= MOST else [UNKNOWN]


def unique(values):
    out = []
    for v in values:
        if not any(v is o or (type(v) is type(o) and not isinstance(v, (list, dict)) and v == o) for o in out):
            out.append(v)
    return out if len(out) <= MOST else [UNKNOWN]


def text(v):
    """A value as text with holes, the way it would be handed to a program."""
    if isinstance(v, bool) or v is None:
        return str(v)
    if isinstance(v, str):
        return str(v)
    if isinstance(v, (int, float)):
        return repr(v)[:64] if isinstance(v, float) or -(1 << 64) < v < 1 << 64 else HOLE
    if isinstance(v, (bytes, bytearray)):
        return bytes(v).decode("utf-8", "replace")
    return HOLE
