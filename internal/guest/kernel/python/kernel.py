# The kernel of Python: the program that runs cells in a live interpreter. The guest starts it (see package kernel) and
# communicates with it in frames. Standard library only; Python 3.8 and later.
#
# It must withstand the code that it runs: that code may replace sys.stdout, delete builtins, fork, install signal
# handlers or patch the modules used here. So this program has its own builtins, holds references to everything it
# needs, keeps nothing in the user's namespace, and restores the environment after every cell.

import ast
import builtins
import fcntl
import io
import json
import linecache
import mmap
import os
import re
import signal
import sys
import threading
import time
import traceback
import types
import warnings

try:
    import resource
except ImportError:  # a Python without this module reports no CPU time
    resource = None

FIONREAD = 0x541B
FLUSH_BYTES = 8192      # buffered output of this size is sent at once
FLUSH_SECONDS = 0.004   # a line that follows the previous one sooner than this is buffered
FLUSH_LATEST = 0.03     # the longest time that output is buffered
TIMER_IDLE = 1.0        # how long the timer thread waits for work before it ends
ORDER_WAIT = 2.0        # how long our output waits for earlier output of children
ORDER_WAIT_BUSY = 0.05  # the same if they go on writing
CHUNK = 1 << 20
REPR_LIMIT = 1 << 20
JSON_LIMIT = 256 << 10
KEEP_SOURCES = 1000

_read, _write, _close, _getpid, _exit = os.read, os.write, os.close, os.getpid, os._exit
_monotonic, _sleep = time.monotonic, time.sleep
_ioctl = fcntl.ioctl
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=True).encode
_loads = json.JSONDecoder().decode
_getsignal, _signal, _SIGINT = signal.getsignal, signal.signal, signal.SIGINT
_default_int = signal.default_int_handler
_environ = os.environ
_main_thread = threading.get_ident()
_get_ident = threading.get_ident
_saved_builtins = dict(vars(builtins))
_saved_names = _saved_builtins.keys()
_rusage = resource.getrusage if resource else None
_SELF = resource.RUSAGE_SELF if resource else 0
_CHILDREN = resource.RUSAGE_CHILDREN if resource else 0
_TracebackException = traceback.TracebackException
_showwarning = warnings.showwarning
_ALLOW_AWAIT = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)
_ONLY_AST = ast.PyCF_ONLY_AST
_NOTEBOOK_SYNTAX = re.compile(r"^\s*[%!?]|\?\s*$|=\s*[%!]", re.M).search
_ASYNC_WORDS = re.compile(r"\b(asyncio|create_task|ensure_future|get_running_loop|TaskGroup)\b").search
_FUTURES = 0
for _name in __import__("__future__").all_feature_names:
    _FUTURES |= getattr(__import__("__future__"), _name).compiler_flag


def _high(fd):
    """Moves a descriptor to a high number, which ordinary code does not use."""
    for base in (200, 64, 10):
        try:
            new = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, base)
        except OSError:
            continue
        _close(fd)
        return new
    os.set_inheritable(fd, False)
    return fd


class _State:
    """The mutable state of the kernel."""

    pid = _getpid()
    child = False       # this process is a fork of the interpreter and must not send frames to the guest
    running = False     # user code is running and can be interrupted
    critical = 0        # depth of critical sections of the main thread, which must not be interrupted
    pending = False     # an interrupt came during a critical section
    cell = 0
    spawned = 0         # children started by this cell
    children = False    # children were started at some time: they may write to fds 1 and 2
    flags = 0           # __future__ features that the code has enabled
    loop = None         # the event loop, which lives as long as the interpreter
    idle = False        # tasks run between two cells
    ipython = None
    magics = False      # magics.py was run
    charts = False      # charts.py was run
    user_site = False   # packages that code installs are found
    hook = None         # function to call when a cell has ended


def _page(fd):
    """Maps the page to which we write the number of a cell when we reach its first line.

    The guest reads the page when we have died."""
    # mmap makes its own copy of fd, with the lowest free number. Find that number and close the copy: ordinary code
    # expects low numbers for its own files.
    kept = os.dup(fd)
    _close(kept)
    page = mmap.mmap(fd, mmap.PAGESIZE)
    _close(kept)
    _close(fd)
    return page


S = _State()
_in = _high(3)
_out = _high(4)
_begun = _page(5)


# --- interrupts ---

def _on_interrupt(signum, frame):
    if not (S.running or S.idle) or S.child:
        return
    if S.critical:
        S.pending = True
        return
    raise KeyboardInterrupt


class _Critical:
    """A critical section. An interrupt during it is raised at its end."""

    def __enter__(self):
        if _get_ident() == _main_thread:
            S.critical += 1

    def __exit__(self, *exc):
        if _get_ident() == _main_thread:
            S.critical -= 1
            if S.pending and not S.critical and S.running:
                S.pending = False
                if exc[0] is None:
                    raise KeyboardInterrupt


_critical = _Critical()


# --- frames ---

_write_lock = threading.RLock()


def _frame(kind, *parts):
    size = 1
    for p in parts:
        size += len(p)
    return b"".join((size.to_bytes(4, "little"), kind) + parts)


def _headed(kind, header, body):
    h = _dumps(header).encode("utf-8", "backslashreplace")
    return _frame(kind, len(h).to_bytes(4, "little"), h, body)


def _send(data):
    if S.child:
        return
    with _critical:
        with _write_lock:
            view = memoryview(data)
            while view:
                view = view[_write(_out, view):]


# --- output ---

class _OutputBuffer:
    """A buffer for the output of both streams, in the order of the writes."""

    def __init__(self):
        self.lock = threading.RLock()
        self.parts = []
        self.size = 0
        self.last = 0.0
        self.timer = None

    def write(self, stream, data):
        if S.child:
            view = memoryview(data)
            while view:
                view = view[_write(stream, view):]
            return
        flush = False
        with _critical:
            with self.lock:
                if self.parts and self.parts[-1][0] == stream:
                    self.parts[-1][1].append(data)
                else:
                    self.parts.append((stream, [data]))
                self.size += len(data)
                if self.size >= FLUSH_BYTES:
                    flush = True
                else:
                    now = _monotonic()
                    if now - self.last > FLUSH_SECONDS and data.endswith(b"\n"):
                        flush = True
                    elif self.timer is None or not self.timer.armed:
                        flush = not self.arm()
        if flush:
            self.flush()

    def arm(self):
        """Starts the timer that sends the buffer. Returns False if no thread can be started."""
        if self.timer is None:
            try:
                self.timer = _Timer(self)
            except RuntimeError:
                return False    # the process limit is reached, or the interpreter is shutting down
        self.timer.armed = True
        self.timer.wake.set()
        return True

    def take(self):
        """Empties the buffer and returns its content as frames."""
        with self.lock:
            parts, self.parts, self.size = self.parts, [], 0
            self.last = _monotonic()
        out = []
        cell = S.cell.to_bytes(4, "little")
        for stream, pieces in parts:
            data = b"".join(pieces)
            for at in range(0, len(data), CHUNK):
                out.append(_frame(b"O", cell, bytes((stream,)), data[at:at + CHUNK]))
        return b"".join(out)

    def flush(self):
        with _critical:
            with self.lock:
                if self.parts and not S.child:
                    _await_child_output()
                    _send(self.take())


class _Timer:
    """A thread that sends buffered output which no later write has sent. Started when first needed."""

    def __init__(self, buffer):
        self.armed = False
        self.wake = threading.Event()
        self.buffer = buffer
        t = threading.Thread(target=self.run, name="recluse-output", daemon=True)
        t.start()

    def run(self):
        while not S.child:
            if not self.wake.wait(TIMER_IDLE):
                # Idle threads end: the guest treats an interpreter with a single thread as idle.
                with self.buffer.lock:
                    if not self.armed:
                        self.buffer.timer = None
                        return
            self.wake.clear()
            _sleep(FLUSH_LATEST)
            self.armed = False
            try:
                self.buffer.flush()
            except Exception:
                return


def _unread(fd):
    try:
        return int.from_bytes(_ioctl(fd, FIONREAD, b"\0\0\0\0"), "little")
    except OSError:
        return 0


def _await_child_output():
    """Waits until the guest has read what children wrote to fds 1 and 2 before our output."""
    if not S.children:
        return
    began, pause, wait, least = _monotonic(), 0.0001, ORDER_WAIT, None
    while (unread := _unread(1) + _unread(2)) and _monotonic() < began + wait:
        if least is not None and unread > least:
            wait = ORDER_WAIT_BUSY
        least = unread if least is None else min(least, unread)
        _sleep(pause)
        pause = min(pause * 2, 0.002)


_out_buffer = _OutputBuffer()


def _bytes_of(text):
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


class _Raw(io.RawIOBase):
    """sys.stdout.buffer and sys.stderr.buffer."""

    def __init__(self, stream):
        self._stream = stream
        self.name = "<stdout>" if stream == 1 else "<stderr>"
        self.mode = "wb"

    def writable(self):
        return True

    def write(self, data):
        data = bytes(data)
        if data:
            _out_buffer.write(self._stream, data)
        return len(data)

    def fileno(self):
        return self._stream

    def flush(self):
        _out_buffer.flush()

    def close(self):
        pass


class _Text(io.TextIOBase):
    """sys.stdout and sys.stderr."""

    def __init__(self, stream):
        self._stream = stream
        self._raw = _Raw(stream)
        self.name = self._raw.name
        self.mode = "w"

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None
    line_buffering = True
    write_through = False
    closed = False

    @property
    def buffer(self):
        return self._raw

    def writable(self):
        return True

    def isatty(self):
        return False

    def fileno(self):
        return self._stream

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not " + type(text).__name__)
        if text:
            _out_buffer.write(self._stream, _bytes_of(text))
        return len(text)

    def flush(self):
        _out_buffer.flush()

    def reconfigure(self, **kwargs):
        pass

    def close(self):
        pass


_stdout, _stderr = _Text(1), _Text(2)


class _NoInput(io.TextIOBase):
    """sys.stdin of a cell without input."""

    name = "<stdin>"
    mode = "r"
    encoding = "utf-8"

    def readable(self):
        return True

    def fileno(self):
        return 0

    def isatty(self):
        return False

    def read(self, size=-1):
        return ""

    def readline(self, size=-1):
        return ""

    @property
    def buffer(self):
        return io.BytesIO()


_no_input = _NoInput()


def _input(prompt=""):
    """input() with a clearer error for a cell without input."""
    if prompt:
        sys.stdout.write(str(prompt))
    _out_buffer.flush()
    line = sys.stdin.readline()
    if not line:
        if sys.stdin is _no_input:
            raise EOFError("this cell has no input: pass input with the call, or assign the value to a variable")
        raise EOFError("EOF when reading a line")
    return line[:-1] if line.endswith("\n") else line


# --- children ---

def _audit(event, args):
    if S.child:
        return
    if event in _SPAWNS:
        S.spawned += 1
        S.children = True
    elif event not in _ENDS and event[:7] != "ctypes.":
        return
    if _out_buffer.parts:
        _out_buffer.flush()


_SPAWNS = frozenset(("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.spawn", "pty.spawn"))
# Events that may end the process. Buffered output would be lost.
_ENDS = frozenset(("os.kill", "os.killpg", "signal.pthread_kill", "faulthandler._sigsegv"))


def _flushed(end):
    """Returns a version of end, which ends the process, that sends the output first."""
    def leave(*args, **kwargs):
        if not S.child and _getpid() == S.pid:
            _out_buffer.flush()
        return end(*args, **kwargs)
    leave.__name__ = end.__name__
    leave.__doc__ = end.__doc__
    return leave


def _after_fork():
    """Runs in a forked child, which is no longer the interpreter."""
    global _write_lock
    S.child = True
    _out_buffer.lock = threading.RLock()
    _out_buffer.parts, _out_buffer.size = [], 0
    _write_lock = threading.RLock()
    for fd in (_in, _out):
        try:
            _close(fd)
        except OSError:
            pass
    _signal(_SIGINT, _default_int)


# --- calls to the host ---

class CallError(Exception):
    """A call to the host failed; .code is the error code."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class _Inbox:
    """Frames from the guest. A thread that waits for a frame reads, and stores frames for the others."""

    def __init__(self):
        self.buf = bytearray()
        self.frames = []            # for the main loop
        self.replies = {}
        self.waiting = set()
        self.reader = threading.Lock()
        self.cond = threading.Condition()
        self.calls = 0

    def pull(self, interruptible):
        """Reads once and stores complete frames. The caller holds the reader lock."""
        if interruptible:
            # An interrupt may come while we wait, but not between reading and storing.
            _poll(_in)
        with _critical:
            data = _read(_in, 1 << 16)
            if not data:
                _exit(0)  # the guest has gone
            self.buf += data
            while len(self.buf) >= 4:
                size = int.from_bytes(self.buf[:4], "little")
                if len(self.buf) < 4 + size:
                    if size > 1 << 16:
                        self.read_rest(4 + size)
                        continue
                    break
                frame = bytes(self.buf[4:4 + size])
                del self.buf[:4 + size]
                self.store(frame)

    def read_rest(self, need):
        """Reads a large frame to its end without copying it repeatedly."""
        while len(self.buf) < need:
            data = _read(_in, min(need - len(self.buf), 1 << 20))
            if not data:
                _exit(0)
            self.buf += data

    def store(self, frame):
        if frame[:1] != b"R":
            self.frames.append(frame)
            return
        header, body = _split(frame)
        call = header.get("call")
        if call in self.waiting:
            self.replies[call] = (header, body)

    def next(self):
        """Returns the next frame for the main loop."""
        while True:
            if self.frames:
                return self.frames.pop(0)
            if self.reader.acquire(False):
                try:
                    if not self.frames:
                        if S.loop is not None:
                            _run_tasks()
                        self.pull(False)
                finally:
                    self.reader.release()
                if self.waiting:
                    with self.cond:
                        self.cond.notify_all()
            else:
                with self.cond:
                    if not self.frames:
                        self.cond.wait(0.05)

    def call(self, name, payload):
        main = _get_ident() == _main_thread
        with self.cond:
            self.calls += 1
            call = self.calls
            self.waiting.add(call)
        try:
            _out_buffer.flush()
            _send(_headed(b"C", {"id": S.cell, "call": call, "name": name}, payload))
            while True:
                with self.cond:
                    if call in self.replies:
                        return self.replies.pop(call)
                if self.reader.acquire(False):
                    try:
                        if call not in self.replies:
                            self.pull(main)
                    finally:
                        self.reader.release()
                    with self.cond:
                        self.cond.notify_all()
                else:
                    with self.cond:
                        if call not in self.replies:
                            self.cond.wait(0.05)
        finally:
            with self.cond:
                self.waiting.discard(call)
                self.replies.pop(call, None)


def _poll(fd):
    import select
    p = select.poll()
    p.register(fd, select.POLLIN)
    p.poll()


def _split(frame):
    n = int.from_bytes(frame[1:5], "little")
    return _loads(frame[5:5 + n].decode("utf-8", "replace")), frame[5 + n:]


_inbox = _Inbox()


def call(name, payload=b""):
    """Calls a function of the host and returns its reply as bytes.

    The payload is bytes, text, or any value that can be encoded as JSON."""
    if S.child:
        raise CallError("forked", "a forked process cannot call the host")
    if isinstance(payload, str):
        payload = payload.encode("utf-8", "surrogateescape")
    elif not isinstance(payload, (bytes, bytearray, memoryview)):
        payload = json.dumps(payload).encode()
    header, body = _inbox.call(str(name), bytes(payload))
    if not header.get("ok"):
        error = header.get("error") or {}
        raise CallError(error.get("code", "failed"), error.get("message", "the call failed"))
    return body


# --- showing values ---

_FORMATS = (
    ("_repr_html_", "text/html"), ("_repr_markdown_", "text/markdown"), ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"), ("_repr_jpeg_", "image/jpeg"), ("_repr_latex_", "text/latex"), ("_repr_json_", "application/json"),
    ("_repr_pdf_", "application/pdf"), ("_repr_javascript_", "application/javascript"),
)


def _text_of(value):
    try:
        text = repr(value)
        if not isinstance(text, str):
            raise TypeError("__repr__ did not return a string")
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        return "<%s object whose repr failed: %s>" % (type(value).__name__, type(e).__name__)
    if len(text) > REPR_LIMIT:
        half = REPR_LIMIT // 2
        text = "%s\n[... %d of %d characters cut ...]\n%s" % (text[:half], len(text) - 2 * half, len(text), text[-half:])
    return text


def _bundle(value):
    """Returns a value in all the formats that it supports."""
    data, metadata = {}, {}
    if not isinstance(value, type):
        method = getattr(type(value), "_repr_mimebundle_", None)
        if method is not None:
            try:
                got = method(value)
                if isinstance(got, tuple):
                    got, metadata = got
                data.update(got or {})
            except Exception:
                pass
        for name, mime in _FORMATS:
            method = getattr(type(value), name, None)
            if method is None or mime in data:
                continue
            try:
                got = method(value)
            except Exception:
                continue
            if isinstance(got, tuple):
                got = got[0]
            if got is not None:
                data[mime] = got
    for mime, got in list(data.items()):
        if isinstance(got, (bytes, bytearray)):
            import base64
            data[mime] = base64.b64encode(got).decode()
    if isinstance(value, (dict, list)) and "application/json" not in data:
        try:
            if len(value) <= JSON_LIMIT // 2:
                text = _dumps(value)
                if len(text) <= JSON_LIMIT and "NaN" not in text and "Infinity" not in text:
                    data["application/json"] = value
        except Exception:
            pass
    if type(value).__name__ == "DataFrame" and type(value).__module__.startswith("pandas."):
        _describe_as(data, "table", value)
    if "text/plain" not in data:
        data["text/plain"] = _text_of(value)
    return data, metadata


def _describe_as(data, kind, value):
    """Adds a description of a figure (chart) or a data frame (table) to its formats, if one can be made."""
    try:
        if not S.charts:
            exec(compile(_charts_source, "<recluse>", "exec"), globals())
            S.charts = True
        shown = (_chart_of if kind == "chart" else _table_of)(value)
    except Exception:   # of a library whose figures have another structure
        return
    if shown is not None:
        data["application/vnd.recluse.%s+json" % kind] = shown


def _show(kind, data, metadata):
    try:
        body = _dumps({"data": data, "metadata": metadata})
    except Exception:
        body = _dumps({"data": {"text/plain": str(data.get("text/plain", ""))}, "metadata": {}})
    return _headed(b"D", {"id": S.cell, "kind": kind}, body.encode("utf-8", "backslashreplace"))


def display(*values, **options):
    """Shows values in rich formats, as a notebook does."""
    for value in values:
        if options.get("raw"):
            data, metadata = dict(value), {}
        else:
            data, metadata = _bundle(value)
        if S.child:
            _out_buffer.write(1, _bytes_of(data.get("text/plain", "") + "\n"))
            continue
        _out_buffer.flush()
        _send(_show("display", data, metadata))


def _figures():
    """Shows and closes the figures that a cell has drawn."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None:
        return
    for number in plt.get_fignums():
        figure = plt.figure(number)
        png = io.BytesIO()
        figure.savefig(png, format="png", bbox_inches="tight")
        import base64
        _out_buffer.flush()
        data = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": repr(figure)}
        _describe_as(data, "chart", figure)
        _send(_show("display", data, {}))
        plt.close(number)


# --- IPython, if it is installed and enabled ---

def _use_ipython():
    """Returns the shell of IPython with the same namespace, or None."""
    if S.ipython is not None or _environ.get("RECLUSE_IPYTHON") == "0":
        return S.ipython or None
    S.ipython = False
    try:
        from traitlets.config import Config
        from IPython.core.interactiveshell import InteractiveShell
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        config.InteractiveShell.autocall = 0
        config.InteractiveShell.cache_size = 0
        shell = InteractiveShell.instance(config=config, user_module=_main, user_ns=_main.__dict__)

        def publish(data, metadata=None, **kwargs):
            _out_buffer.flush()
            _send(_show("display", _encoded(data), metadata or {}))

        shell.display_pub.publish = publish
        shell.system = shell.system_raw
        for name in ("exit", "quit", "_ih", "_oh", "_dh", "In", "Out"):
            _main.__dict__.pop(name, None)
        S.ipython = shell
    except Exception:
        S.ipython = False
    finally:
        _restore()
    return S.ipython or None


def _encoded(data):
    import base64
    return {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in data.items()}


# --- running cells ---

_main = types.ModuleType("__main__")
_main.__dict__["__builtins__"] = builtins
_sources = []


def _parse(source, filename):
    flags = _ONLY_AST | _ALLOW_AWAIT | S.flags
    try:
        return compile(source, filename, "exec", flags, True)
    except SyntaxError:
        if not _NOTEBOOK_SYNTAX(source):
            raise
        _use_magics()
        changed = _python_of(source)
        if changed == source:
            raise
        return compile(changed, filename, "exec", flags, True)


def _use_magics():
    """Loads magics.py when a cell first uses notebook syntax."""
    if not S.magics:
        exec(compile(_magics_source, "<recluse>", "exec"), globals())
        S.magics = True
    _install_magics()


# --- the event loop ---

def _use_loop():
    """Returns the event loop of the interpreter. Patches asyncio.run and others so that they work beside it."""
    import asyncio
    if S.loop is None:
        for owner, name in ((asyncio, "run"), (asyncio.runners, "run"), (getattr(asyncio, "Runner", None), "run"),
                            (asyncio.BaseEventLoop, "run_until_complete"), (asyncio.BaseEventLoop, "run_forever")):
            if owner is not None:
                setattr(owner, name, _allow_nested(getattr(owner, name)))
    if S.loop is None or S.loop.is_closed():
        S.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(S.loop)
    return S.loop


def _allow_nested(run):
    """Returns a version of run that also works while the loop of the interpreter is set as running."""
    import functools
    from asyncio import events

    @functools.wraps(run)
    def outside(*args, **kwargs):
        running = events._get_running_loop()
        if running is None or running is not S.loop or running.is_running():
            return run(*args, **kwargs)
        events._set_running_loop(None)
        try:
            return run(*args, **kwargs)
        finally:
            events._set_running_loop(S.loop)
            events.set_event_loop(S.loop)  # asyncio.run leaves no current loop
    return outside


def _tasks():
    """Returns the tasks of the loop that have not ended."""
    import asyncio
    return asyncio.all_tasks(S.loop) if S.loop is not None and not S.loop.is_closed() else ()


def _run_tasks():
    """Runs tasks of earlier cells until there is a frame to read or no task is left."""
    if not _tasks():
        return
    idle = S.loop.create_task(_idle(S.loop))
    try:
        S.idle = True
        S.loop.run_until_complete(idle)
    except BaseException:  # a task that did not yield was interrupted, or a task has closed the loop
        idle.cancel()
        if not S.loop.is_closed():
            S.loop.remove_reader(_in)
    finally:
        S.idle = False
        _restore()


async def _idle(loop):
    import asyncio
    frame = loop.create_future()
    loop.add_reader(_in, lambda: frame.done() or frame.set_result(None))
    try:
        while not frame.done():
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            if not tasks:
                break
            await asyncio.wait([frame] + tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(_in)


def _await(coroutine):
    task = _use_loop().create_task(coroutine)
    try:
        return S.loop.run_until_complete(task)
    except (KeyboardInterrupt, SystemExit):
        if not task.done():
            task.cancel()
            try:
                S.loop.run_until_complete(task)
            except BaseException:
                pass
        raise


async def _run_async(codes):
    """Runs the parts of a cell with top-level await, all on the same running loop."""
    value = None
    for code in codes:
        value = eval(code, _main.__dict__)
        if code.co_flags & 0x80 and type(value) is types.CoroutineType:  # CO_COROUTINE: top-level await
            value = await value
    return value


def _run_codes(codes, asynchronous):
    """Runs the parts of a cell and returns the value of the last one."""
    if not S.child:
        _begun[:4] = S.cell.to_bytes(4, "little")
    if any(code.co_flags & 0x80 for code in codes):
        return _await(_run_async(codes))
    value = None
    if not asynchronous:
        for code in codes:
            value = eval(code, _main.__dict__)
        return value
    # As in a notebook, the loop is set as running: code can start tasks without await.
    _use_loop()
    from asyncio import events
    events._set_running_loop(S.loop)
    try:
        for code in codes:
            value = eval(code, _main.__dict__)
    finally:
        events._set_running_loop(None)
    return value


def _execute(source, filename):
    """Runs a cell and returns the value of its last expression."""
    if "get_ipython" in source or S.ipython is None and "IPython" in source:
        if _use_ipython() is None:
            _use_magics()
            vars(builtins)["get_ipython"] = lambda: _shell_object
    if not S.user_site:  # for every cell, even without an import statement: functions and libraries import, too
        _find_installed()
    # Each line ends with a newline, as in a file: otherwise tracebacks underline the wrong part of the last line.
    linecache.cache[filename] = (len(source), None, [line + "\n" for line in source.split("\n")], filename)
    tree = _parse(source, filename)
    _sources.append(filename)
    if len(_sources) > KEEP_SOURCES:
        linecache.cache.pop(_sources.pop(0), None)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    codes = []
    if tree.body:
        code = compile(tree, filename, "exec", _ALLOW_AWAIT | S.flags, True)
        S.flags |= code.co_flags & _FUTURES
        codes.append(code)
    if last is not None:
        codes.append(compile(last, filename, "eval", _ALLOW_AWAIT | S.flags, True))
    value = _run_codes(codes, _ASYNC_WORDS(source) is not None or bool(S.loop is not None and _tasks()))
    return value if last is not None else None


def _find_installed():
    """Makes packages importable that were installed for this user.

    Python looks for their directory only when it starts."""
    import site
    path = site.getusersitepackages()
    if path in sys.path:
        S.user_site = True
    elif site.ENABLE_USER_SITE and os.path.isdir(path):
        site.addsitedir(path)
        S.user_site = True
    if S.user_site:
        import importlib
        importlib.invalidate_caches()


# --- warnings and errors ---

def _show_warning(message, category, filename, lineno, file=None, line=None):
    """Shows a warning. If it was raised in this program, the location is omitted, because the cause is elsewhere."""
    if filename == "<recluse>":
        sys.stderr.write("%s: %s\n" % (category.__name__, message))
        return
    _showwarning(message, category, filename, lineno, file, line)


def _strip(tb, seen):
    """Removes the frames of this program from a formatted exception and its causes."""
    while tb is not None and id(tb) not in seen:
        seen.add(id(tb))
        frames = [f for f in tb.stack if f.filename != "<recluse>" and not f.filename.endswith("/asyncio/base_events.py")]
        tb.stack[:] = frames
        for inner in getattr(tb, "exceptions", None) or ():
            _strip(inner, seen)
        if tb.__context__ is not None:
            _strip(tb.__context__, seen)
        tb = tb.__cause__


def _describe(error, filename):
    kind = type(error)
    name = kind.__name__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__name__
    try:
        value = str(error)
    except BaseException:
        value = "<str() of the exception failed>"
    line = None
    try:
        formatted = _TracebackException(kind, error, error.__traceback__)
        _strip(formatted, set())
        # An error in a magic is shown in one line, as in notebooks, because its frames belong to this program.
        text = "".join(formatted.format_exception_only() if getattr(kind, "recluse_one_line", False) else formatted.format())
        if isinstance(error, SyntaxError) and error.filename == filename:
            line = error.lineno
        else:
            for f in formatted.stack:
                if f.filename == filename:
                    line = f.lineno
    except BaseException:
        text = "%s: %s\n" % (name, value)
    return {"name": name, "value": value, "traceback": text, "line": line}


def _exit_code(error):
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    _out_buffer.write(2, _bytes_of(str(code) + "\n"))
    return 1


# --- before and after a cell ---

def _restore():
    """Restores everything that a cell may have replaced or removed."""
    sys.stdout, sys.stderr = _stdout, _stderr
    sys.__stdout__, sys.__stderr__ = _stdout, _stderr
    sys.stdin = _no_input
    if _getsignal(_SIGINT) is not _on_interrupt:
        _signal(_SIGINT, _on_interrupt)
    have = vars(builtins)
    if not _saved_names <= have.keys():
        for k, v in _saved_builtins.items():
            have.setdefault(k, v)
    have["input"], have["display"] = _input, display
    if sys.modules.get("__main__") is not _main:
        sys.modules["__main__"] = _main


def _open_input(path):
    fd = os.open(path, os.O_RDONLY)
    os.dup2(fd, 0)
    _close(fd)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding="utf-8", errors="surrogateescape")


def _close_input():
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    if null != 0:
        _close(null)


def at_cell_end(function):
    """Sets a function that is called at the end of each cell, as part of the cell.

    None removes it. A function that fails is removed, too."""
    S.hook = function


def _run_hook():
    """Calls the function of at_cell_end. The result of the cell is already final."""
    try:
        try:
            S.running = True
            S.hook()
        finally:
            S.running = False
    except BaseException:
        S.hook = None
    S.pending = False
    _restore()


def _set_env(env, before):
    """Sets the environment variables of a cell, and stores their previous values in before."""
    for name, value in env.items():
        was = _environ.get(name)
        _environ[name] = value
        before.setdefault(name, was)


def _restore_env(env, before):
    """Restores the variables, except those that the code itself has changed."""
    try:
        for name, value in before.items():
            if _environ.get(name) != env[name]:
                continue
            if value is None:
                del _environ[name]
            else:
                _environ[name] = value
    except Exception:
        pass


# --- the main loop ---

def _cell(header, body):
    S.cell = header["id"]
    S.spawned = 0
    filename = "<cell %d>" % S.cell
    if header.get("argv"):
        sys.argv = [str(a) for a in header["argv"]]
    env, trace, before_env = header.get("env") or {}, header.get("trace") or {}, {}
    stdin = header.get("stdin")
    before = _rusage(_SELF) if _rusage else None
    end = {"id": S.cell, "status": "ok", "exit_code": None, "error": None, "cpu_ns": 0, "maxrss": 0, "result": False, "spawned": 0}
    shown = b""
    S.pending = False
    try:
        try:
            if env:
                _set_env(env, before_env)  # fails for names and values that are invalid in an environment
            if trace:
                try:
                    _set_env(trace, before_env)
                except Exception:  # code has replaced os.environ: continue without the trace
                    pass
            if stdin:
                _open_input(stdin)
            try:
                source = body.decode("utf-8")
            except UnicodeDecodeError as e:
                raise SyntaxError("the code is not valid UTF-8: byte 0x%02x at position %d" % (body[e.start], e.start)) from None
            if "\0" in source:
                raise SyntaxError("the code contains a NUL character")
            S.running = True
            value = _execute(source, filename)
            if value is not None and not S.child:
                vars(builtins)["_"] = value
                data, metadata = _bundle(value)
                shown = _show("result", data, metadata)
                end["result"] = True
            if "matplotlib.pyplot" in sys.modules and not S.child:
                _figures()
            S.running = False
        finally:
            S.running = False
    except SystemExit as e:
        end["status"], end["exit_code"] = "exit", _exit_code(e)
    except KeyboardInterrupt as e:
        end["status"], end["error"] = "interrupted", _describe(e, filename)
    except BaseException as e:
        end["status"], end["error"] = "error", _describe(e, filename)
    S.pending = False
    if S.child or _getpid() != S.pid:
        if end["error"]:
            _out_buffer.write(2, _bytes_of(end["error"]["traceback"]))
        _exit(end["exit_code"] or (1 if end["error"] else 0))
    if end["status"] != "ok":
        shown, end["result"] = b"", False
    _restore()
    if S.hook is not None and end["status"] != "interrupted":
        _run_hook()
    if before_env:
        _restore_env(dict(env, **trace), before_env)
    if stdin:
        _close_input()
    if before is not None:
        after = _rusage(_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if S.spawned:
            kids = _rusage(_CHILDREN)
            total = kids.ru_utime + kids.ru_stime
            cpu += total - S.kids
            S.kids = total
        end["cpu_ns"], end["maxrss"] = int(cpu * 1e9), after.ru_maxrss * 1024
    end["spawned"] = S.spawned
    with _out_buffer.lock:
        if _out_buffer.parts:
            _await_child_output()
        _send(_out_buffer.take() + shown + _frame(b"E", _dumps(end).encode("utf-8", "backslashreplace")))
    S.cell = 0


S.kids = 0.0


def _renew(header):
    """Sets the environment and new random seeds, after the sandbox was copied."""
    for k in header.get("unset") or ():
        _environ.pop(k, None)
    _environ.update(header.get("env") or {})
    if header.get("reseed"):
        entropy = bytes.fromhex(header.get("entropy") or "") + os.urandom(32)
        module = sys.modules.get("random")
        if module is not None:
            try:
                module.seed(entropy)
            except Exception:
                pass
        module = sys.modules.get("numpy")
        if module is not None:
            try:
                module.random.seed(int.from_bytes(os.urandom(4), "little"))
            except Exception:
                pass
        module = sys.modules.get("ssl")
        if module is not None:
            try:
                module.RAND_add(entropy, 32.0)
            except Exception:
                pass
        module = sys.modules.get("tempfile")
        if module is not None:
            module._name_sequence = None
    _send(_frame(b"A", b'{"ok":true}'))


def _start():
    _signal(_SIGINT, _on_interrupt)
    os.register_at_fork(after_in_child=_after_fork)
    sys.addaudithook(_audit)
    os._exit, os.abort = _flushed(os._exit), _flushed(os.abort)
    warnings.showwarning = _show_warning
    sys.argv = [""]
    sys.path[:] = [""] + [p for p in sys.path if p]
    _environ.setdefault("MPLBACKEND", "Agg")
    module = types.ModuleType("recluse", "Functions of the host for code in this sandbox.")
    module.call, module.CallError, module.display, module.at_cell_end = call, CallError, display, at_cell_end
    CallError.__module__ = "recluse"
    sys.modules["recluse"] = module
    _restore()
    version = ".".join(str(n) for n in sys.version_info[:3])
    _send(_frame(b"H", _dumps({"version": version}).encode()))
    while True:
        frame = _inbox.next()
        kind = frame[:1]
        if kind == b"X":
            header, body = _split(frame)
            _cell(header, body)
        elif kind == b"P":
            header, _ = _split(frame)
            _renew(header)


_start()
