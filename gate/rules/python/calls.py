"""What calls return, where reading can determine it."""


class Calls:
    def eval_Call(self, e):
        funcs = self.eval(e.func)
        positional = []
        for a in e.args:
            if isinstance(a, ast.Starred):
                values = self.eval(a.value)
                if len(values) == 1 and isinstance(values[0], list):
                    positional.extend(spread(v) for v in values[0])
                else:
                    positional.append([UNKNOWN])
                continue
            positional.append(self.eval(a))
        keywords = {}
        for k in e.keywords:
            values = self.eval(k.value)
            if k.arg is not None:
                keywords[k.arg] = values
                for v in values:
                    if isinstance(v, str) and HOLE not in v:
                        self.fact("text", k.value, k.arg + "=" + v[:4096])
        out = []
        for f in funcs:
            out.extend(self.call(f, positional, keywords, e))
        # A function that is passed on may be called by its receiver.
        for values in positional:
            for v in values:
                if isinstance(v, Ref) and not isinstance(v, Result) and "." in v.name and not v.name.startswith("?"):
                    rest = [x for p in positional for x in p if isinstance(x, list)]
                    targets = [y for x in rest for y in x] or [UNKNOWN]
                    for t in targets[:MOST]:
                        self.fact("call", e, v.name, [shown(t)])
        return unique(out) or [UNKNOWN]

    def call(self, f, positional, keywords, e):
        if isinstance(f, Func):
            informed = any(v is not UNKNOWN for p in positional for v in p) or keywords
            if informed and self.depth < DEPTH and f.seen < 64:
                f.seen += 1
                return self.enter(f, (positional, keywords))
            return [UNKNOWN]
        if isinstance(f, Method):
            return self.method(f, positional, keywords, e)
        if not isinstance(f, Ref):
            return [UNKNOWN]
        name = f.name.removeprefix("builtins.").removeprefix("__builtins__.")
        known = self.builtin(name, positional, keywords, e)
        if name not in LOADS or not positional or not self.own(positional[0]):
            # Earlier code may have written a file that this code only loads.
            doubt = name in LOADS and bool(positional) and all(isinstance(v, File) and v.path not in self.foreign for v in positional[0])
            self.emit(name, positional, keywords, e, doubt)
        return known if known is not None else [Result(name)]

    def own(self, values):
        """Reports whether the code itself has made what it loads. Two unknown paths may be different files."""
        mine = {path for path in self.dumped - self.foreign if HOLE not in path}
        return all(v.path in mine if isinstance(v, File) else isinstance(v, Ref) and v.name in DUMPS for v in values)

    def emit(self, name, positional, keywords, e, doubt=False):
        combos = [[]]
        for values in positional[:32]:
            if len(combos) * len(values) > MOST:
                values = [UNKNOWN]
            combos = [c + [shown(v)] for c in combos for v in values]
        given = {k: shown(v[0]) if len(v) == 1 else HOLE for k, v in keywords.items()}
        for c in combos:
            self.fact("call", e, name, c, given, doubt)

    def write(self, path, args):
        """Remembers what the code writes into a file: objects that it dumps, or anything."""
        (self.dumped if args and isinstance(args[0], Ref) and args[0].name in DUMPS else self.foreign).add(path)

    def method(self, f, positional, keywords, e):
        b, name = f.base, f.name
        args = [p[0] if len(p) == 1 else UNKNOWN for p in positional]
        if isinstance(b, File):
            if name == "write":
                self.write(b.path, args)
            return [b]
        if isinstance(b, PathText):
            if name in ("joinpath",):
                out = str(b)
                for a in args:
                    out = text(a) if text(a).startswith("/") else out.rstrip("/") + "/" + text(a)
                return [PathText(out)]
            if name in ("resolve", "absolute", "expanduser", "as_posix", "__str__"):
                return [b]
            self.emit("pathlib.Path." + name, [[b]] + positional, keywords, e)
            if name in ("glob", "rglob", "iterdir"):
                return [[PathText(entries(str(b), text(args[0]) if args else "*"))]]
            if name == "walk":
                return [[[PathText(entries(str(b))), [EACH], [EACH]]]]
            if name in ("open", "read_bytes"):
                return [File(str(b))]
            if name == "write_bytes":
                self.write(str(b), args)
            return [UNKNOWN]
        if isinstance(b, list):
            if name in ("append", "extend") and len(b) < 1000 and len(args) == 1:
                b.extend(args[0] if name == "extend" and isinstance(args[0], list) else [args[0]])
            return [UNKNOWN]
        try:
            return [self.textmethod(b, name, args)]
        except (ValueError, TypeError, UnicodeError, LookupError, AttributeError):
            return [UNKNOWN]

    def textmethod(self, b, name, args):
        if isinstance(b, bytes):
            return b.decode("utf-8", "replace") if name == "decode" and not args else UNKNOWN
        if name == "format":
            return HOLE if not args else brace(b, args)
        if name == "join" and len(args) == 1 and isinstance(args[0], list):
            out = b.join(text(v) for v in args[0])
            return out if len(out) < LONGEST else UNKNOWN
        if name == "encode":
            return b.encode() if HOLE not in b else UNKNOWN
        if name in ("split", "splitlines", "rsplit") and HOLE not in b:
            return getattr(b, name)(*args)[:1000]
        if name in ("strip", "lstrip", "rstrip", "lower", "upper", "removeprefix", "removesuffix", "title") and all(isinstance(a, str) for a in args):
            return getattr(b, name)(*args)
        if name == "replace" and len(args) >= 2 and all(isinstance(a, str) for a in args[:2]) and len(b) * (1 + len(args[1])) < LONGEST * 4:
            return b.replace(args[0], args[1])
        return UNKNOWN

    def builtin(self, name, positional, keywords, e):
        """Returns the values of the few calls that assemble names, texts and paths."""
        args = [p[0] if len(p) == 1 else UNKNOWN for p in positional]
        try:
            if name in ("__import__", "importlib.import_module") and args:
                if isinstance(args[0], str) and HOLE not in args[0]:
                    self.fact("import", e, args[0])
                    return [Ref(args[0])]
                self.fact("opaque", e, "the imported module cannot be determined from the code")
                return [UNKNOWN]
            if name == "getattr" and len(args) >= 2:
                if isinstance(args[0], Ref) and isinstance(args[1], str) and HOLE not in args[1]:
                    return [Ref(args[0].name + "." + args[1])]
                if isinstance(args[0], Ref) and args[0].name in SENSITIVE:
                    self.fact("opaque", e, "the function of " + args[0].name + " that is used cannot be determined from the code")
                return [UNKNOWN]
            if name in ("str", "os.fspath", "shlex.quote") and len(args) == 1:
                return [text(args[0])]
            if name in ("list", "tuple", "sorted", "reversed", "set", "iter") and len(args) == 1 and isinstance(args[0], list):
                return [list(reversed(args[0])) if name == "reversed" else args[0]]
            if name in ("os.path.join", "posixpath.join") and args:
                out = text(args[0])
                for a in args[1:]:
                    t = text(a)
                    out = t if t.startswith("/") else out.rstrip("/") + "/" + t if out else t
                return [out]
            if name in ("open", "io.open") and args:
                return [File(text(args[0]))]
            if name == "io.BytesIO" and not args:
                return [File("buffer of line %d" % e.lineno)]
            if name in DUMPS_TO and len(args) > 1 and isinstance(args[1], File):
                self.dumped.add(args[1].path)
            if name == "urllib.request.urlretrieve" and len(args) > 1:
                self.foreign.add(text(args[1]))
            if name in ("os.walk", "os.listdir", "os.scandir"):
                top = text(args[0]) if args else "."
                if name == "os.listdir":
                    return [[EACH]]
                if name == "os.scandir":
                    return [[PathText(entries(top))]]
                return [[[entries(top), [EACH], [EACH]]]]
            if name in ("glob.glob", "glob.iglob") and args:
                directory, slash, last = text(args[0]).rpartition("/")
                directory = (directory + slash).removesuffix("**/")
                return [[entries(directory.replace("*", HOLE), last)]]
            if name in ("os.path.dirname", "posixpath.dirname") and args and isinstance(args[0], str) and HOLE not in args[0]:
                head = args[0].rpartition("/")
                return [head[0] or head[1]]
            if name in ("os.path.expanduser", "os.path.abspath", "os.path.realpath", "os.path.normpath") and args:
                return [text(args[0])]
            if name in ("pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath"):
                out = text(args[0]) if args else "."
                for a in args[1:]:
                    out = out.rstrip("/") + "/" + text(a)
                return [PathText(out)]
            if name == "pathlib.Path.home":
                return [PathText("~")]
            if name in ("os.getenv", "os.environ.get") and args:
                if args[0] == "HOME":
                    return ["~"]
                return [HOLE] + (positional[1] if len(positional) > 1 else [])
            if name in ("tempfile.mkdtemp", "tempfile.gettempdir", "tempfile.mktemp"):
                return ["/tmp/" + HOLE]
            if name == "shlex.split" and args and isinstance(args[0], str):
                return [args[0].split()]
        except (ValueError, TypeError, OverflowError, UnicodeError, LookupError):
            return [UNKNOWN]
        return None
