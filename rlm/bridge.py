# The bridge: the functions and variables that the code of a run has in its interpreter. They give it the context, the
# models, the budget and the ways to submit an answer. bridge.go installs it once as a module of its own, and again only if
# the interpreter was lost. It uses the standard library only, and supports Python 3.8 and later.
#
# The code in the same interpreter may overwrite anything. Therefore the names of the bridge are restored after each cell.
#
# after, answer, expression, install, load, runnable, set_history and tell are called by the host, possibly of another version: a sandbox that
# is resumed may have an older bridge.

import ast
import builtins
import codecs
import json
import mmap
import os
import re
import reprlib
import sys
import types
from collections.abc import Iterator, Mapping

import recluse

_call = recluse.call
_at_cell_end = getattr(recluse, "at_cell_end", None)
_dumps = json.JSONEncoder(ensure_ascii=False).encode
_loads = json.loads
PACK_BYTES = 8 << 20    # prompts in one host call: with a large context, little memory is left for copies
PACK_ITEMS = 5000
TERMS_CHARS = 2 << 20   # of a text in which the host finds terms
DRAFT_LIMIT = 1 << 20
VARS_LIMIT = 200
EXCERPT = 300           # characters of the beginning and the end of a context that its description has
EXCERPTS = 1200         # of all contexts together
LINES_CHARS = 1 << 20   # of a text in which lines are counted here; the host is much faster
NAMES = 12              # keys, paths or extensions in a description
PACKAGES = ("numpy", "pandas", "scipy", "sklearn", "matplotlib", "networkx", "nltk", "rapidfuzz", "bs4", "lxml", "yaml", "regex", "dateutil")


class QueryError(RuntimeError):
    """A model call failed. .code is the reason."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class ToolError(QueryError):
    """A tool failed. .code is the reason, if it is known."""


class Failure:
    """The place of a failed call in a list of replies. It is not a str, so that code cannot mistake it for a reply."""

    def __init__(self, error):
        self.code, self.message = error.get("code", "failed"), error.get("message", "the call failed")

    def __bool__(self):
        return False

    def __repr__(self):
        return "<failed: %s>" % self.message

    def __str__(self):
        return "Error: " + self.message


class Partial(str):
    """The text of a child run that ended without an answer. It begins with a mark that says so. .reason is why it ended."""

    def __new__(cls, text, reason):
        self = super().__new__(cls, text)
        self.reason = reason
        return self


def _plain_value(value):
    """Returns a value that JSON has no form for as one that it has."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError("context= must be a text, or a value of texts, numbers, lists and dicts; it has a " + type(value).__name__)


_dumps_values = json.JSONEncoder(ensure_ascii=False, default=_plain_value).encode


def _host_call(name, body):
    data = _dumps_values(body).encode("utf-8", "replace")  # an unpaired surrogate cannot be encoded
    try:
        return _loads(_call(name, data))
    except recluse.CallError as e:
        raise QueryError(e.code, str(e)) from None


def _prompt(p):
    if isinstance(p, str):
        return p
    if isinstance(p, (list, tuple)) and p and all(isinstance(m, dict) and "content" in m for m in p):
        return [{"role": str(m.get("role", "user")), "content": str(m["content"])} for m in p]
    if isinstance(p, dict) and "content" in p:
        return [{"role": str(p.get("role", "user")), "content": str(p["content"])}]
    return str(p)


def _child(p):
    """Returns the prompt of a child run. A dict with a question may also have a context and a schema of the answer."""
    if not isinstance(p, dict) or "content" in p or not ("question" in p or "prompt" in p):
        return _prompt(p)
    unknown = set(p) - {"question", "prompt", "context", "schema"}
    if unknown:
        raise ValueError("unknown key %s; an item has a question, and optionally context and schema" % ", ".join(map(repr, sorted(unknown))))
    question = _prompt(p["question"] if "question" in p else p["prompt"])
    context, schema = p.get("context"), p.get("schema")
    if context is None and schema is None:
        return question
    item = {"question": question}
    if context is not None:
        item["context"] = context
    if schema is not None:
        item["schema"] = _loads(schema) if isinstance(schema, str) else schema
    return item


def _size(p):
    if isinstance(p, dict):
        context = p.get("context", "")
        return _size(p["question"]) + len(context if isinstance(context, str) else _dumps_values(context))
    return len(p) if isinstance(p, str) else sum(len(m["content"]) for m in p)


def _many(name, prompts, model):
    prompts = [_child(p) if name == "rlm.rlm" else _prompt(p) for p in prompts]
    out, pack, size = [], [], 0
    for i, p in enumerate(prompts):
        pack.append(p)
        size += _size(p)
        if size >= PACK_BYTES or len(pack) >= PACK_ITEMS or i == len(prompts) - 1:
            out += _host_call(name, {"prompts": pack, "model": model})["replies"]
            pack, size = [], 0
    cut = sum(1 for r in out if r.get("cut"))
    if cut:
        print("%d of %d replies were cut at their maximum length" % (cut, len(out)), file=sys.stderr)
    partial = [r["partial"] for r in out if r.get("partial")]
    if partial:
        print("%d of %d child runs ended without an answer (%s); their text so far is in their place, as Partial" % (
            len(partial), len(out), ", ".join(sorted(set(partial)))), file=sys.stderr)
    return out


def _value(reply):
    """Returns the value of a successful call."""
    if "value" in reply:
        return reply["value"]
    text = reply.get("text", "")
    return Partial(text, reply["partial"]) if reply.get("partial") else text


def _one(reply):
    if "error" not in reply:
        return _value(reply)
    if O.error_strings:
        return "Error: " + reply["error"].get("message", "the call failed")
    raise QueryError(reply["error"].get("code", "failed"), reply["error"].get("message", "the call failed"))


def _all(replies):
    failed = [r for r in replies if "error" in r]
    if not failed:
        return [_value(r) for r in replies]
    if O.error_strings:
        return [_one(r) for r in replies]
    if len(failed) == len(replies):
        return [_one(r) for r in replies]  # raises
    print("%d of %d calls failed, and a Failure is in their place; the first: %s" % (
        len(failed), len(replies), failed[0]["error"].get("message", "")), file=sys.stderr)
    return [Failure(r["error"]) if "error" in r else _value(r) for r in replies]


def llm_query(prompt, model=None):
    """Calls a sub-model with the prompt and returns its reply."""
    return _one(_many("rlm.llm", [prompt], model)[0])


def llm_query_batched(prompts, model=None):
    """Calls a sub-model with several prompts concurrently. The replies are in the order of the prompts."""
    return _all(_many("rlm.llm", prompts, model))


def rlm_query(prompt=None, model=None, context=None, schema=None, question=None):
    """Starts a child run, which has its own interpreter, and returns its answer. Without context=, the prompt is also the context of the child
    run. With schema=, a JSON Schema, the answer is a value that meets it. question= is another name of the prompt."""
    if question is None:
        question = prompt
    elif prompt is not None:
        raise TypeError("rlm_query takes a prompt or a question, not both")
    if question is None:
        raise TypeError("rlm_query needs a prompt")
    if context is not None or schema is not None:
        question = {"question": question, "context": context, "schema": schema}
    return _one(_many("rlm.rlm", [question], model)[0])


def rlm_query_batched(prompts, model=None):
    """Calls rlm_query with several prompts concurrently. An item is a prompt, or a dict with question, context and schema."""
    return _all(_many("rlm.rlm", prompts, model))


def budget():
    """Returns the remaining tokens, cost, seconds, calls, depth and turns."""
    return _host_call("rlm.budget", {})


# --- answers ---

_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode  # NaN and Infinity are not JSON


def _content(value):
    """Returns an answer as text, and also as JSON if it is not a str."""
    if isinstance(value, str):
        return {"content": value}
    try:
        text = _strict(value)
        return {"content": text, "value": _loads(text)}
    except (TypeError, ValueError):
        return {"content": str(value)}


def _submit(value):
    if value is None:
        raise ValueError("the answer was not accepted: it is None; submit a value")
    if isinstance(value, Iterator):
        raise ValueError("the answer was not accepted: it is a %s, not a value; submit list(...) of it" % type(value).__name__)
    reply = _host_call("rlm.final", _content(value))
    if not reply.get("ok"):
        raise ValueError("the answer was not accepted: " + reply.get("error", ""))
    raise SystemExit(0)  # code after a submitted answer does not run


def FINAL(value=""):
    """Submits the answer and ends the run."""
    _submit(value)


def FINAL_VAR(name):
    """Submits the value of the variable with this name."""
    if isinstance(name, str):
        key = name.strip().strip("\"'")
        if key not in _main or key in _names and key not in ("context", "history", "answer"):
            known = ", ".join(sorted(n for n, _, _ in _variables())) or "none"
            raise NameError("FINAL_VAR: variable %r not found; variables: %s" % (key, known))
        value = _main[key]
        if value is answer:
            value = answer.get("content", "")
        _submit(value)
    _submit(name)


def expression(text):
    """Reports to the host whether a text that a model wrote as the argument of FINAL is code: an f-string, or an expression with at least one
    name, in which every name is bound. A builtin alone is a word: FINAL(all)."""
    _call("rlm.expression", _dumps(_is_expression(text)))


def _is_expression(text):
    try:
        tree = ast.parse("(" + text + "\n)", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    if isinstance(tree, ast.JoinedStr):
        return True
    own, used = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else own).add(node.id)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
    used -= own
    if not used or isinstance(tree, ast.Name) and tree.id not in _main:
        return False
    return all(name in _main or hasattr(builtins, name) for name in used)


def runnable(text):
    """Reports to the host whether a block without a tag is code: it compiles, and is not just words or values."""
    _call("rlm.expression", _dumps(_is_runnable(text)))


def _is_runnable(text):
    try:
        tree = compile(text, "<block>", "exec", ast.PyCF_ONLY_AST)
        compile(tree, "<block>", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) or isinstance(node, ast.stmt) and not isinstance(node, ast.Expr):
            return True
    return any(isinstance(node, ast.Name) and node.id in _main for node in ast.walk(tree))


def SUBMIT(*args, **fields):
    """Submits the answer: one value, or fields by name."""
    if fields and not args:
        _submit(fields)
    _submit(args[0] if len(args) == 1 else list(args))


def _ready(a):
    r = a.get("ready")
    return bool(r) and not (isinstance(r, str) and r.strip().lower() in ("false", "no", "0"))


class _Answer(dict):
    """answer["content"] and answer["ready"]."""

    def _note(self):
        # The code continues. From now on the host has the answer, whatever happens to the code.
        if _ready(self):
            _host_call("rlm.ready", _content(self.get("content", "")))

    def __setitem__(self, key, value):
        dict.__setitem__(self, key, value)
        self._note()

    def update(self, *args, **kwargs):
        dict.update(self, *args, **kwargs)
        self._note()


answer = _Answer(content="", ready=False)


# --- inspection ---

def _describe(value):
    if isinstance(value, (str, bytes, bytearray, list, tuple, dict, set, frozenset, Mapping)):
        try:
            return type(value).__name__, len(value)
        except Exception:
            pass
    return type(value).__name__, None


def _variables():
    out = []
    for name, value in list(_main.items()):
        if name.startswith("_") or value is answer or name in _names and _names[name] is value or isinstance(value, types.ModuleType):
            continue
        kind, size = _describe(value)
        out.append((name, kind, size))
        if len(out) >= VARS_LIMIT:
            break
    return out


def SHOW_VARS():
    """Returns the names and types of the variables that code has defined."""
    lines = ["%s: %s%s" % (n, k, "" if s is None else " of %d" % s) for n, k, s in sorted(_variables())]
    return "\n".join(lines) if lines else "no variables yet"


def chunks(text, size=50000, overlap=0, by=None):
    """Cuts a text into pieces of at most size characters, at line ends if possible. With by="terms", it cuts where a text begins to mention
    another concept of the thesaurus of the run."""
    if size <= 0 or overlap < 0 or overlap >= size:
        raise ValueError("size must be positive, overlap smaller than size")
    if by not in (None, "terms"):
        raise ValueError('by must be "terms", or left out')
    if not isinstance(text, str):
        raise TypeError("chunks cuts a str, not a %s; cut its items one by one" % type(text).__name__)
    places = _concept_places(text) if by else []
    out, at, n, i = [], 0, len(text), 0
    while at < n:
        end = min(at + size, n)
        if end < n:
            while i < len(places) and places[i] <= end:
                i += 1
            cut = text.rfind("\n", at + size // 2, end) + 1
            if i and places[i - 1] > at + max(overlap, size // 4):
                end = places[i - 1]
            elif cut > 0:
                end = cut
        out.append(text[at:end])
        if end >= n:
            break
        at = max(end - overlap, at + 1)
    return out


def _concept_places(text):
    """Returns the places at which a text begins to mention another concept than before: the beginning of the line or sentence of the mention,
    or else the mention itself."""
    out, at, n, concept = [], 0, len(text), ""
    while at < n:
        end = min(at + TERMS_CHARS, n)
        if end < n:
            end = text.rfind("\n", at, end) + 1 or text.rfind(" ", at, end) + 1 or end
        changes = _host_call("rlm.terms", {"text": text[at:end], "concept": concept})
        for last, start in changes["places"]:  # between the last mention of a concept and the first one of another
            line = text.rfind("\n", at + last, at + start) + 1
            out.append(line or text.rfind(". ", at + last, at + start) + 2)
            if out[-1] < 2:
                out[-1] = at + start
        at, concept = end, changes["concept"]
    return out


def rows(text=None, format=None):
    """Returns the rows of a text in JSON Lines or CSV as a list: parsed JSON values, or dicts by the names in the header. format is jsonl, csv
    or tsv; by default it follows from the text."""
    if text is None:
        text = _main.get("context")
    return list(_rows(text, format))


def _rows(text, format):
    if not isinstance(text, str):
        raise TypeError("rows parses a str, not a " + type(text).__name__)
    head = text[:10000].lstrip("\ufeff \t\r\n")
    if format is None:
        format = "jsonl" if head[:1] in ("{", "[") else "csv"
    if format == "jsonl":
        for i, line in enumerate(_lines(text), 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as e:
                raise ValueError("line %d is not JSON: %s" % (i, e)) from None
        return
    if format not in ("csv", "tsv"):
        raise ValueError("format must be jsonl, csv or tsv")
    import csv  # seldom needed
    first = head.split("\n", 1)[0]
    delimiter = "\t" if format == "tsv" else max(",;\t|", key=first.count)
    csv.field_size_limit(1 << 30)
    for row in csv.DictReader(_lines(text), delimiter=delimiter):
        yield row


def _lines(text):
    """Yields the lines of a text, without a copy of the whole text."""
    at = 1 if text[:1] == "\ufeff" else 0
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        yield text[at:end]
        at = end


def search(term, text=None, window=200, limit=20, regex=False):
    """Finds a term, ignoring case. Returns (position, surrounding text) of each match; for a mapping or list, (key, position, text)."""
    if text is None:
        text = _main.get("context")
    pattern = re.compile(term if regex else re.escape(term), re.I)
    out = []

    def places(s):
        for m in pattern.finditer(s):
            yield m.start(), s[max(0, m.start() - window):m.end() + window]

    if isinstance(text, str):
        for p in places(text):
            out.append(p)
            if len(out) >= limit:
                break
        return out
    items = text.items() if isinstance(text, Mapping) else enumerate(text)
    for key, s in items:
        for p in places(s if isinstance(s, str) else _dumps(s)):
            out.append((key,) + p)
            if len(out) >= limit:
                return out
    return out


# --- the context ---

def _map(fd):
    """Maps a file into memory. All pages are read at once: page by page is several times slower in some sandboxes."""
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE | 0x8000, prot=mmap.PROT_READ)  # MAP_POPULATE has a name only since Python 3.10
    except (OSError, ValueError):
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)


def _decode(path, encoding):
    """Returns a file as text and its encoding, without a second copy of its bytes."""
    size = os.path.getsize(path)
    if size == 0:
        return "", "utf-8"
    with open(path, "rb") as f:
        with _map(f.fileno()) as m:
            if encoding:
                return codecs.decode(m, encoding, "replace"), encoding
            try:
                skip = 3 if m[:3] == b"\xef\xbb\xbf" else 0
                with memoryview(m) as whole, whole[skip:] as view:
                    return str(view, "utf-8"), "utf-8"
            except UnicodeDecodeError:
                try:
                    return codecs.decode(m, "cp1252"), "cp1252"
                except UnicodeDecodeError:
                    return codecs.decode(m, "latin-1"), "latin-1"


def _pdf(path):
    import subprocess  # seldom needed
    try:
        done = subprocess.run(["pdftotext", "-enc", "UTF-8", "-layout", path, "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise QueryError("context_binary", "reading a PDF needs pdftotext; install poppler-utils in the sandbox's image, or pass the text of the PDF")
    if done.returncode != 0:
        raise QueryError("context_unreadable", "pdftotext failed: " + done.stderr.decode("utf-8", "replace").strip()[:300])
    return done.stdout.decode("utf-8", "replace")


class Directory(Mapping):
    """A directory as a mapping of paths to texts. Each text is read when it is accessed. A number is the file at that place, and a slice is a
    smaller Directory."""

    def __init__(self, root, files):
        self._root, self._files = root, files

    def __getitem__(self, path):
        if isinstance(path, slice):
            return Directory(self._root, {p: self._files[p] for p in list(self._files)[path]})
        if isinstance(path, int):
            path = list(self._files)[path]
        if path not in self._files:
            raise KeyError("no file %r; paths are the keys, such as %r: use list(context), or context[:3]" % (path, next(iter(self._files), "")))
        entry = self._files[path]
        real = os.path.join(self._root, entry["file"])
        return _pdf(real) if entry.get("kind") == "pdf" else _decode(real, entry.get("encoding"))[0]

    def __iter__(self):
        return iter(self._files)

    def __len__(self):
        return len(self._files)

    def __contains__(self, path):
        return path in self._files

    def size(self, path):
        """Returns the size of a file in bytes, without reading it."""
        return self._files[path]["bytes"]

    def __repr__(self):
        names = ", ".join(map(repr, list(self._files)[:3]))
        return "<Directory of %d files: %s%s>" % (len(self._files), names, ", …" if len(self._files) > 3 else "")


def _load_one(root, entry):
    kind, path = entry["kind"], os.path.join(root, entry["file"])
    if kind == "text":
        return _decode(path, entry.get("encoding"))
    if kind == "pdf":
        return _pdf(path), "pdf"
    if kind in ("json", "messages"):
        text, encoding = _decode(path, entry.get("encoding"))
        try:
            return json.loads(text), encoding
        except ValueError:
            if not entry.get("lenient"):
                raise
            return text, encoding
    if kind == "list":
        with open(path, "rb") as f:
            return [f.read(n).decode("utf-8", "replace") for n in entry["lengths"]], "utf-8"
    if kind == "dir":
        with open(path, encoding="utf-8") as f:
            files = json.load(f)
        return Directory(root, {f["path"]: f for f in files}), "utf-8"
    raise QueryError("context_unreadable", "unknown kind %r" % kind)


def load(root):
    """Loads the contexts of a directory into variables, and reports them to the host."""
    with open(os.path.join(root, "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    notes = []
    for i, entry in enumerate(manifest["contexts"], len(_contexts)):
        try:
            value, encoding = _load_one(root, entry)
        except MemoryError:
            _call("rlm.loaded", _dumps({"error": {"code": "memory", "message": "context %d does not fit into the sandbox's memory" % i}}))
            return
        except QueryError as e:
            _call("rlm.loaded", _dumps({"error": {"code": e.code, "message": "context %d (%s): %s" % (i, entry.get("name", ""), e)}}))
            return
        except (ValueError, OSError) as e:
            _call("rlm.loaded", _dumps({"error": {"code": "context_unreadable", "message": "context %d (%s): %s" % (i, entry.get("name", ""), e)}}))
            return
        _contexts.append(value)
        name = "context_%d" % i
        _names[name] = _main[name] = value
        if i == 0:
            _names["context"] = _main["context"] = value
        note = _note("context" if i == 0 else name, value, encoding, entry.get("format"), min(EXCERPT, EXCERPTS // len(manifest["contexts"])))
        note["variable"], note["encoding"] = name, encoding
        notes.append(note)
    _call("rlm.loaded", _dumps({"contexts": notes}).encode("utf-8", "replace"))


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 100
_short.maxdict = _short.maxlist = 6
_short.maxlevel = 4


def _names_of(value):
    return [str(k)[:80] for _, k in zip(range(NAMES), value)]


def _access(value):
    """Returns an expression, to be appended to that of a value, which accesses a part of it."""
    if isinstance(value, str):
        return "[:1000]"
    if isinstance(value, Mapping) and value:
        key = next(iter(value))
        return "[%r]" % (key,) if len(repr(key)) <= 100 else ""
    return "[0]" if isinstance(value, (list, tuple)) and value else ""


def _note(name, value, encoding, format, excerpt):
    """Describes a context for the prompt. The host adds the lines of a large text if it can count them in the file. format is set for rows of a text; excerpt is the number of characters that are quoted."""
    kind, size = _describe(value)
    note = {"variable": name, "type": kind, "size": size}
    access = _access(value)
    if isinstance(value, str):
        note["chars"] = size
        if size < LINES_CHARS or encoding not in ("utf-8", "cp1252", "latin-1"):
            note["lines"] = value.count("\n") + (not value.endswith("\n"))
        note["head"] = value if size <= 2 * excerpt else value[:excerpt]
        note["tail"] = "" if size <= 2 * excerpt else value[-excerpt:]
        if format:
            try:
                row = next(_rows(value, format))
                note["rows"] = {"format": format, "type": type(row).__name__, "example": "rows(%s)[0]%s" % (name, _access(row))}
                if isinstance(row, dict):
                    note["rows"]["keys"] = _names_of(row)
            except Exception:
                pass  # the text has no rows of this format
    elif isinstance(value, Directory):
        note["bytes"], kinds = 0, {}
        for path, f in value._files.items():
            e = kinds.setdefault(os.path.splitext(path)[1].lower(), {"files": 0, "bytes": 0})
            e["files"] += 1
            e["bytes"] += f["bytes"]
            note["bytes"] += f["bytes"]
        largest = sorted(kinds.items(), key=lambda k: (-k[1]["bytes"], k[0]))
        note["extensions"] = [dict(e, extension=x) for x, e in largest[:NAMES]]
        note["keys"], access = _names_of(value)[:5], access + "[:1000]" if access else ""
    elif isinstance(value, (list, dict)):
        if isinstance(value, list):
            note["chars"] = sum(len(v) if isinstance(v, str) else len(_dumps(v)) for v in value)
        first = next(iter(value if isinstance(value, list) else value.values()), None)
        if value:
            note["item"] = type(first).__name__
            note["head"] = first[:excerpt] if isinstance(first, str) else _short.repr(first)[:excerpt]
            access += _access(first) if access else ""
        if isinstance(value, dict) or isinstance(first, dict):
            note["keys"] = _names_of(value if isinstance(value, dict) else first)
        if isinstance(value, list) and len(value) > 1 and isinstance(value[-1], str):
            note["tail"] = value[-1][-excerpt:]
    note["example"] = name + access
    return note


def set_history(path):
    """Assigns the conversation in a file to the variable history."""
    with open(path, encoding="utf-8") as f:
        _names["history"] = _main["history"] = json.load(f)


# --- after each cell ---

def after():
    """Restores the names of the bridge, and sends the report of a cell to the host. It raises an exception if the host does not answer any
    more, and is then not called again."""
    note, restored = {}, []
    mine = _main.get("answer")
    if mine is not answer and isinstance(mine, dict):
        dict.update(answer, mine)
    _main["answer"] = answer
    for name, value in _names.items():
        if _main.get(name) is not value:
            _main[name] = value
            restored.append(name)
    if _ready(answer):
        note["answer"] = _content(answer.get("content", ""))
    elif answer.get("content") not in ("", None):
        draft = _content(answer["content"])
        if len(draft["content"]) <= DRAFT_LIMIT:
            note["draft"] = draft
    if restored:
        note["restored"] = restored
    note["vars"] = _variables()
    _call("rlm.after", _dumps(note).encode("utf-8", "replace"))
    if "answer" in note:
        dict.__setitem__(answer, "ready", False)


def _register_hook():
    """Registers after() to be called at the end of this cell and all later ones. Returns False if the guest does not support that."""
    if _at_cell_end is None:
        return False
    _at_cell_end(after)
    return True


def tell():
    """Sends the report of a cell. The host runs it in a cell of its own if a cell has not sent its report."""
    if not _register_hook():
        after()


class _Omitted:
    """The default value of an optional parameter: the argument is not sent to the host."""

    def __repr__(self):
        return "..."


_omitted = _Omitted()


def _media(value):
    """Converts media, which the host sends as base64, to a dict with bytes. Other values are returned unchanged."""
    m = value.get("$media") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(m, dict):
        return value
    import base64  # seldom needed
    return dict(m, data=base64.b64decode(m.get("data") or ""))


def _use(name, args, kwargs):
    try:
        value = _host_call("rlm.tool", {"name": name, "args": args, "kwargs": kwargs}).get("value")
    except QueryError as e:
        raise ToolError(e.code, str(e)) from None
    return [_media(v) for v in value] if isinstance(value, list) else _media(value)


def _tool(name, params, more):
    if params is None:
        def tool(*args, **kwargs):
            return _use(name, args, kwargs)
        tool.__name__ = tool.__qualname__ = name
        return tool
    # A function with the parameters of the tool, so that Python reports wrong arguments and help() shows the signature.
    must = [p["name"] for p in params if not p.get("optional")]
    may = [p["name"] for p in params if p.get("optional")]
    head = must + (["*"] if may else []) + [p + "=__omitted" for p in may] + (["**__more"] if more else [])

    def use(given):
        kwargs = {k: v for k, v in given.items() if v is not _omitted and k != "__more"}
        kwargs.update(given.get("__more", {}))
        return _use(name, (), kwargs)

    # Names that no parameter can have. A parameter may, for example, be called locals.
    space = {"__name__": "tools", "__omitted": _omitted, "__use": use, "__locals": locals}
    exec("def %s(%s):\n    return __use(__locals())" % (name, ", ".join(head)), space)
    return space[name]


class _Options:
    error_strings = False


O = _Options()
_contexts = []
_names = {}


def install(main, options):
    """Adds the names of the bridge and the tools to the namespace in which cells run."""
    global _main
    _main = main
    O.error_strings = bool(options.get("error_strings"))
    for f in (llm_query, llm_query_batched, rlm_query, rlm_query_batched, budget, FINAL, FINAL_VAR, SUBMIT, SHOW_VARS, chunks, search, rows):
        _names[f.__name__] = f
    _names["QueryError"], _names["ToolError"], _names["Partial"] = QueryError, ToolError, Partial
    _names.setdefault("history", [])
    for tool in options.get("tools") or ():
        if tool.get("source"):
            space = {"__name__": "tool_" + tool["name"]}
            exec(compile(tool["source"], "<tool %s>" % tool["name"], "exec"), space)
            f = space[tool["name"]]
        else:
            f = _tool(tool["name"], tool.get("params"), tool.get("more"))
        f.__doc__ = tool.get("help") or tool.get("doc") or f.__doc__
        _names[tool["name"]] = f
    _main.update(_names)
    # A borrowed sandbox may still have the answer to an earlier question.
    dict.clear(answer)
    dict.update(answer, content="", ready=False)
    _main["answer"] = answer
    _register_hook()
    _call("rlm.installed", _dumps(_machine()))


def _machine():
    """Describes the interpreter for the prompt. It imports nothing, because it delays the beginning of each run."""
    installed = set()
    for path in sys.path:
        if "-packages" in path and os.path.isdir(path):
            installed.update(os.listdir(path))
    out = {"python": "%d.%d" % sys.version_info[:2], "packages": [p for p in PACKAGES if p in installed]}
    out["earlier"] = ["context_%d" % i for i in range(len(_contexts))] + [n for n, _, _ in _variables()][:NAMES]
    try:
        with open("/proc/net/dev") as f:
            names = [line.split(":")[0].strip() for line in f if ":" in line]
        out["network"] = any(name != "lo" for name in names)
    except OSError:
        pass  # unknown
    return out
