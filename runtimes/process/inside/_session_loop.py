"""Loop of a Python session inside its sandbox: take a request, run it, reply; and the move of its forks.

Requests are frames of JSON objects on the control socket, replies are frames of messages: everything long is in their
data, and the sizes of its parts in their JSON. The server trusts nothing that this process sends.

A fork moves from its parent's sandbox into its own. Memory is copied by the fork. Everything else that would lead back
to the parent is replaced: open files are reopened by path at their offsets, deleted files and shared memory are copied,
mapped files are mapped anew, pipes and sockets are closed and reported.
"""

import array
import contextlib
import fcntl
import json
import os
import random
import re
import resource
import signal
import stat
import sys
import threading
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from runtimes._framing import pack_message, read_frame, write_frame
from runtimes.process.inside import _memory
from runtimes.process.inside._evaluate import PythonEvaluator, new_stream
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _confine, _seccomp_broker

CONTROL_FD = 3
"""Descriptor of the session's control socket."""

_decode = json.JSONDecoder().decode
_read, _write, _exit, _signal = os.read, os.write, os._exit, signal.signal
_SIGINT = signal.SIGINT
_CHUNK_BYTES = 1 << 20

_HANGS_AFTER_FORK = {"polars": "polars", "grpc": "grpc"}
_HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/full")
_NEW_FLAGS = os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOFOLLOW
_F_DUPFD_QUERY = 1027
_FORK_SAFE_LIBRARY = re.compile(r"/[^/]*(arrow|parquet|duckdb|jemalloc)[^/]*\.so[^/]*$")
_STACK_BYTES = 1 << 14


class SessionLoop:
    """One Python session: its evaluator, its control socket, and its running state."""

    def __init__(self, control: int, evaluator: PythonEvaluator) -> None:
        self._control = control
        self._evaluator = evaluator
        self._running = False
        self._count = 0

    def serve(self) -> NoReturn:
        """Serve requests until the other end closes."""
        _signal(_SIGINT, self._interrupted)
        sys.stdout, sys.stderr = new_stream(1), new_stream(2)
        self._send({"run": 0})
        while True:
            request = self._receive()
            if request["op"] == "run":
                self._send(*_packed(self._run(request["source"]), request["run"]))
            elif request["op"] == "fork":
                self._fork(request["uid"], request["run"])

    def _run(self, source: str) -> dict[str, Any]:
        self._count += 1
        _signal(_SIGINT, self._interrupted)
        self._running = True
        try:
            result: dict[str, Any] = self._evaluator.run(source, f"<cell {self._count}>")
        except KeyboardInterrupt:
            result = {
                "value": None,
                "error": {"type": "KeyboardInterrupt", "message": "", "traceback": ""},
                "displays": [],
            }
        finally:
            self._running = False
        try:
            result["cwd"] = os.getcwd()
        except OSError:
            result["cwd"] = ""
        return result

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._running and self._evaluator.interruptible:
            raise KeyboardInterrupt

    def _fork(self, uid: int, number: int) -> None:
        if obstacle := fork_obstacle():
            self._send({"run": number, "error": obstacle})
            return
        left_behind = unmovable_threads()
        # The standard library reseeds `random` in a fork; this fork must continue its parent's sequence.
        random_state = random.getstate()
        try:
            in_child = fork_copy()
        except OSError as error:
            self._send({"run": number, "error": f"the interpreter can't copy itself: {error.strerror}"})
            return
        if not in_child:
            self._send({"run": number})
            return
        random.setstate(random_state)
        try:
            left_behind += move(uid, self._control)
        except BaseException as error:
            # Boundary of the copy: it must not keep running in its parent's sandbox.
            _write(2, f"the fork could not move: {error!r}\n".encode("utf-8", "replace"))
            _exit(71)
        lines = [_bytes(line) for line in left_behind]
        self._send({"run": 0, "left_behind": [len(line) for line in lines]}, b"".join(lines))

    def _receive(self) -> dict[str, Any]:
        try:
            payload = read_frame(lambda size: _read(self._control, min(size, _CHUNK_BYTES)))
        except (OSError, ValueError):
            _exit(0)
        if payload is None:
            _exit(0)
        return _decode(payload.decode())

    def _send(self, head: dict[str, Any], data: bytes = b"") -> None:
        try:
            write_frame(self._control, pack_message(head, data))
        except OSError:
            _exit(0)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _packed(result: dict[str, Any], number: int) -> tuple[dict[str, Any], bytes]:
    """Return the message with the result of a run."""
    value, error, displays = result["value"], result["error"], result["displays"]
    texts = [_bytes(text) for text in (() if error is None else error.values())]
    head = {
        "run": number,
        "cwd": result["cwd"],
        "value": None if value is None else len(value := _bytes(value)),
        "error": None if error is None else [len(text) for text in texts],
        "displays": [(mime, len(data)) for mime, data in displays],
    }
    return head, b"".join((value or b"", *texts, *(data for _, data in displays)))


class _OpenFile(NamedTuple):
    fd: int
    path: str
    mode: int
    flags: int
    offset: int
    named: bool
    source: int


def fork_obstacle() -> str:
    """Return the reason why this interpreter can't be forked now; empty if it can."""
    for module, name in _HANGS_AFTER_FORK.items():
        if module in sys.modules:
            return f"{name} is imported, and its threads would hang in a fork"
    if unknown := unknown_threads():
        return f"threads of a native library are running ({unknown}), and a fork could hang without them"
    return ""


def unmovable_threads() -> list[str]:
    """Return one line for each Python thread except the main one; a fork does not copy them."""
    return [f"thread {t.name!r}" for t in threading.enumerate() if t is not threading.main_thread()]


def fork_copy() -> bool:
    """Fork a copy that is not a child of this process; return `True` in the copy."""
    copy = sc.fork_sibling() if sc.can_fork_sibling() else _fork_twice()
    if copy:
        os.setsid()
    return copy


def _fork_twice() -> bool:
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        if status:
            raise OSError(os.waitstatus_to_exitcode(status), "no more processes allowed")
        return False
    try:
        if os.fork():
            os._exit(0)
    except OSError as error:
        os._exit(error.errno or 1)
    return True


def move(uid: int, control: int) -> list[str]:
    """Move into the sandbox prepared for this copy; return one line for each thing left behind."""
    folder = os.readlink("/proc/self/cwd")
    fds = map(int, os.listdir("/proc/self/fd"))
    files = [file for fd in fds if fd > 2 and fd != control and (file := _describe(fd))]
    files = [_made_readable(file) for file in files]
    duplicates = _shared_descriptions(files)
    mappings = _memory.mappings_to_replace()
    _enter_new_sandbox(uid)
    null = os.open("/dev/null", os.O_RDWR)
    left_behind = [line for mapping in mappings if (line := _memory.replace(mapping))]
    for fd in (0, 1, 2, control):
        os.dup2(null, fd)
    for file in files:
        if file.fd in duplicates:
            os.dup2(duplicates[file.fd], file.fd, inheritable=os.get_inheritable(file.fd))
        elif line := _reopen(file, null):
            left_behind.append(line)
        if file.source != file.fd:
            os.close(file.source)
    os.close(null)
    try:
        os.chdir(folder)
    except OSError:
        os.chdir("/home/agent")
        left_behind.append(f"the working directory {folder}, which is gone")
    channels = _seccomp_broker.first_channel_fd(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    sc.setns(-1, 0)
    for offset, fd in enumerate((control, 1, 2)):
        os.dup2(channels + offset, fd, inheritable=fd != control)
        os.close(channels + offset)
    return left_behind


def _enter_new_sandbox(uid: int) -> None:
    capabilities = _confine.FORK_CAPABILITIES
    first_fd = _seccomp_broker.first_namespace_fd(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    sc.capset(effective=capabilities, permitted=capabilities)
    for offset, kind in enumerate(_confine.NAMESPACE_KINDS):
        sc.setns(first_fd + offset, kind)
    _confine.enter_root()
    os.closerange(first_fd, first_fd + len(_confine.NAMESPACE_KINDS))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    sc.capset(effective=0, permitted=capabilities)
    sc.prctl(sc.PR_SET_DUMPABLE, 1)


def _describe(fd: int) -> _OpenFile | None:
    try:
        info = os.fstat(fd)
        mode = info.st_mode
        path = os.readlink(f"/proc/self/fd/{fd}")
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    except OSError:
        return None
    if stat.S_ISREG(mode) and not path.startswith("/"):
        # A namespace or process, which has no offset and no content.
        mode = 0
    offset = os.lseek(fd, 0, os.SEEK_CUR) if stat.S_ISREG(mode) else 0
    return _OpenFile(fd, path, mode, flags, offset, info.st_nlink > 0, fd)


def _made_readable(file: _OpenFile) -> _OpenFile:
    """Open a nameless, write-only file for reading while this process is still the user who owns it."""
    if file.named or not stat.S_ISREG(file.mode) or file.flags & os.O_ACCMODE != os.O_WRONLY:
        return file
    return file._replace(source=os.open(f"/proc/self/fd/{file.fd}", os.O_RDONLY | os.O_CLOEXEC))


def _shared_descriptions(files: list[_OpenFile]) -> dict[int, int]:
    """Map each descriptor that shares its open file description with a lower one (by `dup`) to the latter."""
    shared: dict[int, int] = {}
    for number, file in enumerate(files):
        for other in files[:number]:
            # Kernels before 6.10 have no F_DUPFD_QUERY.
            with contextlib.suppress(OSError):
                if (other.path, other.offset) == (file.path, file.offset) and (
                    fcntl.fcntl(other.fd, _F_DUPFD_QUERY, file.fd) == 1
                ):
                    shared[file.fd] = other.fd
                    break
    return shared


def _reopen(file: _OpenFile, null: int) -> str:
    """Replace one descriptor; return a line that describes it if its file could not be copied."""
    inheritable = os.get_inheritable(file.fd)
    new = -1
    if stat.S_ISREG(file.mode):
        new = _open_again(file) if file.named else -1
        if new < 0:
            new = _copy_unnamed(file)
    elif stat.S_ISDIR(file.mode) or file.path in _HARMLESS_DEVICES:
        new = _open_again(file)
    line = ""
    if new < 0:
        line = f"descriptor {file.fd} ({_kind(file)})"
        new = os.dup(null)
    os.dup2(new, file.fd, inheritable=inheritable)
    os.close(new)
    return line


def _open_again(file: _OpenFile) -> int:
    try:
        fd = os.open(file.path, file.flags & ~_NEW_FLAGS)
    except OSError:
        return -1
    if stat.S_IFMT(os.fstat(fd).st_mode) != stat.S_IFMT(file.mode):
        os.close(fd)
        return -1
    if file.offset:
        os.lseek(fd, file.offset, os.SEEK_SET)
    return fd


def _copy_unnamed(file: _OpenFile) -> int:
    """Copy the content of a file without a name (deleted, or opened with O_TMPFILE)."""
    try:
        fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
        position = 0
        while piece := os.pread(file.source, 1 << 20, position):
            position += os.pwrite(fd, piece, position)
        os.lseek(fd, file.offset, os.SEEK_SET)
    except OSError:
        return -1
    if file.flags & os.O_ACCMODE == os.O_RDWR:
        return fd
    narrowed = os.open(f"/proc/self/fd/{fd}", file.flags & ~_NEW_FLAGS & ~getattr(os, "O_TMPFILE", 0))
    os.lseek(narrowed, file.offset, os.SEEK_SET)
    os.close(fd)
    return narrowed


def _kind(file: _OpenFile) -> str:
    kinds = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe", stat.S_IFREG: "a file that is gone"}
    return kinds.get(stat.S_IFMT(file.mode), file.path)


def unknown_threads() -> int:
    """Return the number of threads that neither Python nor a fork-safe library started.

    A fork copies only the calling thread. Some libraries restart their threads when needed; with any other, a lock
    held by a thread would stay locked forever. A thread belongs to a library if its stack holds an address of that
    library's code.
    """
    # The main thread is added by pid: in a forked interpreter Python still reports its parent's id.
    python_threads = {os.getpid(), *(thread.native_id for thread in threading.enumerate())}
    others = [number for number in map(int, os.listdir("/proc/self/task")) if number not in python_threads]
    if not others:
        return 0
    code = _fork_safe_code()
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return sum(not _runs(number, code, memory) for number in others)
    finally:
        os.close(memory)


def _fork_safe_code() -> list[range]:
    code: list[range] = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            addresses, rights, *_, path = line.rstrip("\n").split(" ")
            if "x" in rights and _FORK_SAFE_LIBRARY.search(path):
                start, end = addresses.split("-")
                code.append(range(int(start, 16), int(end, 16)))
    return code


def _runs(number: int, code: list[range], memory: int) -> bool:
    """Return whether the stack of a waiting thread holds an address in `code`."""
    try:
        with open(f"/proc/self/task/{number}/syscall", encoding="ascii") as file:
            stack = int(file.read().split()[-2], 16)
        words = array.array("Q", os.pread(memory, _STACK_BYTES, stack))
    except FileNotFoundError:
        # It has ended meanwhile.
        return True
    except (OSError, IndexError, ValueError):
        return False
    return any(word in part for word in words for part in code)
