"""Forks: channels that code opens before a fork to reach its sibling afterwards."""

import ast
from collections.abc import Iterable
from pathlib import Path

import anyio

from runtimes import Instance
from runtimes.process import ProcessRuntime
from tests.attacks._table import Attack, attacks

CATEGORY = "forks"
GONE = "((OS|Value|BlockingIO|ConnectionRefused|FileNotFound|Permission|ProcessLookup)Error.*|EPERM|None|b'')"
_START = """
import ctypes, errno, fcntl, mmap, os, resource, select, signal, socket, struct, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(function, *arguments):
    try:
        return function(*arguments)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
parent = os.getpid()
"""

# aim, code before the fork, code in the parent after it, expression in the fork
_TABLE: dict[str, tuple[str, str, str, str, str]] = {
    "pipe": ("read what the parent writes to a pipe", "pipe = os.pipe()\nos.set_blocking(pipe[0], False)", "attempt(os.write, pipe[1], b'secret')", "attempt(os.read, pipe[0], 9)", GONE),
    "named pipe": ("read what the parent writes to a named pipe", "os.mkfifo('fifo')\nfifo = os.open('fifo', os.O_RDWR | os.O_NONBLOCK)", "attempt(os.write, fifo, b'secret')", "attempt(os.read, os.open('fifo', os.O_RDWR | os.O_NONBLOCK), 9)", GONE),
    "named pipe by its descriptor": ("read a named pipe that was open", "", "attempt(os.write, fifo, b'secret')", "attempt(os.read, fifo, 9)", GONE),
    "socket pair": ("read from a socket pair", "pair = socket.socketpair()\npair[0].setblocking(False)", "attempt(pair[1].send, b'secret')", "attempt(pair[0].recv, 9)", GONE),
    "loopback": ("connect to the parent's server", "server = socket.create_server(('127.0.0.1', 0))\nport = server.getsockname()[1]", "None", "attempt(socket.create_connection, ('127.0.0.1', port), 5)", GONE),
    "datagrams": ("send a datagram to the parent", "udp = socket.socket(2, 2)\nudp.bind(('127.0.0.1', 0))\nudp_at = udp.getsockname()", "attempt(udp.settimeout, 0)", "attempt(socket.socket(2, 2).connect, ('127.0.0.1', 1)) and None", GONE),
    "abstract socket": ("connect to the parent's abstract socket", "abstract = socket.socket(1)\nabstract.bind('\\0battery')\nabstract.listen()", "None", "attempt(socket.socket(1).connect, '\\0battery')", GONE),
    "socket file": ("connect to the parent's socket file", "named = socket.socket(1)\nnamed.bind('named.sock')\nnamed.listen()", "None", "attempt(socket.socket(1).connect, 'named.sock')", GONE),
    "file": ("read what the parent writes to a file", "open('shared.txt', 'w').write('before')", "open('shared.txt', 'w').write('secret')", "open('shared.txt').read()", "before"),
    "open file": ("read what the parent writes to an open file", "kept = os.open('kept.txt', os.O_RDWR | os.O_CREAT)\nos.write(kept, b'before')", "os.pwrite(kept, b'secret', 0)", "os.pread(kept, 9, 0)", "b'before'"),
    "offset": ("see the parent move in a file", "moved = os.open('moved.txt', os.O_RDWR | os.O_CREAT)\nos.write(moved, b'12345')", "os.lseek(moved, 1, 0)", "os.lseek(moved, 0, 1)", "5"),
    "deleted file": ("read what the parent writes to a deleted file", "deleted = os.open('deleted', os.O_RDWR | os.O_CREAT)\nos.write(deleted, b'before')\nos.unlink('deleted')", "os.pwrite(deleted, b'secret', 0)", "os.pread(deleted, 9, 0)", "b'before'"),
    "memfd": ("read what the parent writes to memory in a file", "try:\n    memory = os.memfd_create('m')\nexcept OSError:\n    memory = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)\nos.write(memory, b'before')", "attempt(os.pwrite, memory, b'secret', 0)", "attempt(os.pread, memory, 9, 0)", "b'before'|" + GONE),
    "lock": ("see the parent's lock", "locked = os.open('lock', os.O_RDWR | os.O_CREAT)", "fcntl.flock(locked, fcntl.LOCK_EX)", "attempt(fcntl.flock, os.open('lock', os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)", "None"),
    "shared mapping": ("see the parent write to shared memory", "shared = mmap.mmap(-1, 4096)\nshared[:6] = b'before'", "shared.__setitem__(slice(0, 6), b'secret')", "shared[:6]", "b'before'"),
    "shared mapping of a file": ("see the parent write to a mapped file", "mapped_fd = os.open('mapped', os.O_RDWR | os.O_CREAT)\nos.ftruncate(mapped_fd, 4096)\nmapped = mmap.mmap(mapped_fd, 4096)\nmapped[:6] = b'before'", "mapped.__setitem__(slice(0, 6), b'secret')", "mapped[:6]", "b'before'"),
    "private mapping of a file": ("see the parent write to a privately mapped file", "private_fd = os.open('private', os.O_RDWR | os.O_CREAT)\nos.write(private_fd, b'before' * 700)\nprivate = mmap.mmap(private_fd, 4096, flags=mmap.MAP_PRIVATE)", "os.pwrite(private_fd, b'secret', 0)", "private[:6]", "b'before'"),
    "memory": ("see the parent change a variable", "value = ['before']", "value.__setitem__(0, 'secret')", "value[0]", "before"),
    "environment": ("see the parent change its environment", "os.environ['BATTERY'] = 'before'", "os.environ.__setitem__('BATTERY', 'secret')", "os.environ['BATTERY']", "before"),
    "event": ("see the parent's event", "event = os.eventfd(0, os.EFD_NONBLOCK)", "attempt(os.eventfd_write, event, 7)", "attempt(os.eventfd_read, event)", GONE),
    "inotify": ("watch the parent's files", "watch = libc.inotify_init1(os.O_NONBLOCK)\nlibc.inotify_add_watch(watch, b'.', 0xFFF)", "open('watched', 'w').close()", "attempt(os.read, watch, 4096)", GONE),
    "epoll": ("wait for the parent's descriptors", "poll = select.epoll()\npoll_pipe = os.pipe()\npoll.register(poll_pipe[0], 1)", "attempt(os.write, poll_pipe[1], b'x')", "attempt(poll.poll, 0)", r"\[\]|" + GONE),
    "folder": ("open the parent's files by a folder", "folder = os.open('.', os.O_RDONLY)", "open('only-parent', 'w').write('secret')", "attempt(lambda: os.open('only-parent', 0, dir_fd=folder))", GONE),
    "working directory": ("open the parent's files by the working directory", "None", "open('only-parent-2', 'w').write('secret')", "attempt(open, 'only-parent-2')", GONE),
    "root": ("open the parent's files by its root", "None", "None", "attempt(open, f'/proc/{parent}/root/home/agent/only-parent')", GONE),
    "namespaces": ("enter the namespaces of the parent", "None", "None", "attempt(os.open, f'/proc/{parent}/ns/net', 0)", GONE),
    "pidfd": ("signal the parent by a descriptor", "pidfd = os.pidfd_open(parent)", "None", "attempt(signal.pidfd_send_signal, pidfd, 0)", GONE),
    "signal": ("signal the parent", "None", "None", "attempt(os.kill, parent, 0)", GONE),
    "signal to its group": ("signal the parent's group", "group = os.getpgrp()", "None", "attempt(os.killpg, group, 0) if group != os.getpgrp() else 'EPERM'", GONE),
    "memory of the parent": ("read the parent's memory", "None", "None", "attempt(open, f'/proc/{parent}/mem')", GONE),
    "descriptors of the parent": ("see the parent's descriptors", "None", "None", "attempt(os.listdir, f'/proc/{parent}/fd')", GONE),
    "system V memory": ("attach the parent's shared memory", "segment = libc.shmget(4711, 4096, 0o1666)", "None", "libc.shmget(4711, 4096, 0o666)", "-1"),
    "system V queue": ("read the parent's messages", "queue = libc.msgget(4711, 0o1666)", "None", "libc.msgget(4711, 0o666)", "-1"),
    "system V semaphore": ("use the parent's semaphore", "semaphore = libc.semget(4711, 1, 0o1666)", "None", "libc.semget(4711, 1, 0o666)", "-1"),
    "message queue": ("open the parent's message queue", "queue_fd = libc.syscall(ctypes.c_long(240), b'battery', 0o102, 0o666, None)", "None", "libc.syscall(ctypes.c_long(240), b'battery', 2, 0, None)", "-1"),
    "shared memory folder": ("read the parent's shared memory files", "open('/dev/shm/battery', 'w').write('before')", "open('/dev/shm/battery', 'w').write('secret')", "open('/dev/shm/battery').read()", "before"),
    "temporary folder": ("read the parent's temporary files", "open('/tmp/battery', 'w').write('before')", "open('/tmp/battery', 'w').write('secret')", "open('/tmp/battery').read()", "before"),
    "terminal": ("read the parent's terminal", "terminal = os.openpty()", "attempt(os.write, terminal[1], b'secret')", "attempt(os.set_blocking, terminal[0], False) or attempt(os.read, terminal[0], 9)", GONE),
    "descriptor in flight": ("receive a descriptor that the parent sent itself", "flight = socket.socketpair()\nflight_pipe = os.pipe()\nsocket.send_fds(flight[0], [b'x'], [flight_pipe[0]])", "None", "attempt(socket.recv_fds, flight[1], 9, 1)", GONE),
    "limits": ("change the parent's limits", "None", "None", "attempt(resource.prlimit, parent, resource.RLIMIT_CPU, (1, 1))", GONE),
    "priority": ("change the parent's priority", "None", "None", "attempt(os.setpriority, os.PRIO_PROCESS, parent, 19)", GONE),
    "thread": ("run code in the parent by a thread", "import threading\ntold = []\nthread = threading.Thread(target=lambda: None)\nthread.start()\nthread.join()", "told.append('secret')", "told", r"\[\]"),
    "identity": ("be the parent's user", "uid = os.getuid()", "None", "os.getuid() == uid", "False"),
    "control channel": ("answer for the parent", "channel = os.fstat(3).st_ino", "None", "os.fstat(3).st_ino == channel", "False"),
    "output": ("write to the parent's output", "output = os.fstat(1).st_ino", "None", "os.fstat(1).st_ino == output", "False"),
}  # fmt: skip
_MARK = "\n# next\n"

ATTACKS: list[Attack] = attacks(
    CATEGORY,
    {
        name: (aim, _MARK.join((before, parent, fork)), seen)
        for name, (aim, before, parent, fork, seen) in _TABLE.items()
    },
)


async def _run(instance: Instance, source: str) -> str:
    done = await instance.run("python", source)
    if done.error is not None:
        return done.error.message
    return str(ast.literal_eval(done.value)) if done.value and done.value[0] in "'\"" else str(done.value)


async def observe(runtime: ProcessRuntime, table: Iterable[Attack], folder: Path) -> dict[str, str]:
    """Open all channels, fork, use them in the parent and look in the fork; return the outcomes by id."""
    if runtime.capabilities.fork == "none":
        return {}
    parts = {attack.id: attack.code.split(_MARK) for attack in table}
    instance = await runtime.start()
    with anyio.fail_after(120):
        await _run(instance, _START)
        for before, _, _ in parts.values():
            await _run(instance, before)
        fork = (await instance.fork()).instance
        for _, parent, _ in parts.values():
            await _run(instance, parent)
        seen = {id: await _run(fork, f"str(attempt(lambda: {look}))") for id, (_, _, look) in parts.items()}
        await fork.stop()
        await instance.stop()
    return seen
