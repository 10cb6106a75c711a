"""Zygote: a warm interpreter that becomes Python sessions by forking, and the client that talks to it.

It has imported the modules that sessions commonly need and has run nothing untrusted. Each session is a fork of it
that drops all its rights before its first line runs.

A session can read all memory that it inherits. So no zygote is a copy of the sandbox init process as it is after its first
request, with names and paths of sandboxes in its memory: each is a copy of the zygote starter, which was forked before.
"""

import contextlib
import fcntl
import functools
import gc
import importlib
import linecache
import os
import random
import select
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Generator
from typing import Any, NoReturn

from runtimes.process.inside import _memory, _session_loop
from runtimes.process.inside._evaluate import PythonEvaluator
from runtimes.process.linux import _cgroups
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _confine, _namespaces, _wire
from runtimes.process.trusted._reactor import (
    Reactor,
    SandboxRequestError,
    check_report,
    child_exit_wakeup,
    ended_children,
)
from runtimes.process.trusted._spawn import RuntimeConfig, run_child

_FIRST_USE = {"pandas": "import pandas\npandas.DataFrame({'a': [1, 2, 3]})['a'].sum()"}
_ROOT_BYTES = 64 << 20
_ROOT_FILES = 10_000
_LOWEST_FD = _session_loop.CONTROL_FD + 1
_MT19937_WORDS = 624
_OWN = ("runtimes", "agentflow", "mcp_servers")


class _Zygote:
    def __init__(self, init: socket.socket, config: RuntimeConfig) -> None:
        self._init_socket = init
        self._config = config
        self._loaded: list[str] | None = None
        self._evaluator: PythonEvaluator
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def serve(self) -> NoReturn:
        wake_read = child_exit_wakeup()
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        poll.register(self._init_socket, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
            # Always: a message that arrives while this process waits for a CPU can hide an earlier signal.
            for pid, status in ended_children():
                _wire.send(self._init_socket, {"exited": pid, "status": status})
            if self._init_socket.fileno() in ready:
                message = _wire.receive(self._init_socket)
                if message is None:
                    os._exit(0)
                self._handle(message)

    def _handle(self, message: _wire.WireMessage) -> None:
        request, fds = message
        try:
            self._warm()
            if request["op"] == "warm":
                _wire.send(self._init_socket, {"n": request["n"], "preloaded": self._loaded})
                return
            pid = self._fork(request, fds)
        except OSError as error:
            _wire.send(self._init_socket, {"n": request["n"], "error": f"no Python session: {error}"})
        else:
            _wire.send(self._init_socket, {"n": request["n"], "pid": pid})
        finally:
            for fd in fds:
                os.close(fd)

    def _warm(self) -> None:
        """Import the modules that sessions share, once, before the first session."""
        if self._loaded is not None:
            return
        self._loaded = []
        for name in self._config.preload:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
                self._loaded.append(name)
        _rehearse(self._loaded)
        if len(os.listdir("/proc/self/task")) > 1:
            raise OSError("a preloaded module started threads: " + ", ".join(self._loaded))
        self._evaluator = PythonEvaluator()
        _memory.skip_present_mappings()
        forget_own_modules()
        gc.collect()
        gc.freeze()

    def _fork(self, request: dict[str, Any], fds: list[int]) -> int:
        sc.setns(fds[0], sc.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            run_child(lambda: self._become_session(request, fds))
        sc.setns(self._own_pid_namespace, sc.CLONE_NEWPID)
        return pid

    def _become_session(self, request: dict[str, Any], fds: list[int]) -> None:
        namespaces, (control, stdout, stderr, payload), members = fds[1:5], fds[5:9], fds[9:]
        env = _wire.read_payload(payload)["env"]
        _cgroups.attach(_cgroups.Cgroup(members, -1, -1, -1, -1))
        live = bool(request["live"])
        identity = _confine.Identity(request["uid"], not live)
        _confine.begin_session(idle=self._config.idle)
        _confine.enter(namespaces, identity)
        _confine.set_limits(request["rlimits"])
        _confine.drop_privileges(identity, keep_for_fork=live)
        _confine.reset_process_state(idle=self._config.idle, python=True)
        _confine.set_standard_streams(None, stdout, stderr)
        os.dup2(control, _session_loop.CONTROL_FD)
        listener = _confine.restrict(self._config.restrictions, notify=live)
        if listener is not None:
            _wire.send(self._init_socket, {"listener": True}, [listener])
        self._init_socket.close()
        _confine.close_from(3, keep=[_session_loop.CONTROL_FD])
        _confine.open_to_user()
        os.chdir("/home/agent")
        os.environ.clear()
        os.environ.update(env)
        reseed()
        _session_loop.SessionLoop(_session_loop.CONTROL_FD, self._evaluator).serve()


def _rehearse(loaded: list[str]) -> None:
    """Run typical first statements once, so that sessions share the memory that these initialize."""
    evaluator = PythonEvaluator()
    sources = ["1 + 1", "raise ValueError", *(_FIRST_USE[name] for name in loaded if name in _FIRST_USE)]
    for number, source in enumerate(sources):
        evaluator.run(source, f"<rehearsal {number}>")
    linecache.cache.clear()


def reseed() -> None:
    """Reseed the random generators, so that sessions draw different numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        # Unlike `seed`, this touches few of the pages that sessions share: it saves 0.2 MiB of each.
        key = memoryview(os.urandom(4 * _MT19937_WORDS)).cast("I")
        numpy_random.set_state(("MT19937", key, _MT19937_WORDS))


def forget_own_modules() -> None:
    """Remove the project's modules from `sys.modules`; running code keeps its references."""
    for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
        del sys.modules[name]


def main(init: socket.socket, config: RuntimeConfig, plan: _namespaces.NamespacePlan) -> NoReturn:
    """Run as a child of the zygote starter."""
    for fd in _namespaces.build(plan, None, []):
        os.close(fd)
    _confine.enter_root()
    _confine.close_from(3, keep=[fd for fd in (init.fileno(), config.restrictions.ruleset) if fd is not None])
    os.environ.update(_confine.LIBRARY_SETTINGS, HOME="/home/agent", LANG="C.UTF-8", PATH="/usr/bin:/bin")
    os.chdir("/home/agent")
    with contextlib.suppress(ConnectionError):
        _Zygote(init, config).serve()
    # The sandbox init process is gone.
    os._exit(0)


def _serve_starts(
    requests: socket.socket, config: RuntimeConfig, plan: _namespaces.NamespacePlan
) -> NoReturn:
    """Run as the zygote starter: fork a zygote for each socket that arrives."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _confine.close_from(
        3, keep=[fd for fd in (requests.fileno(), config.restrictions.ruleset) if fd is not None]
    )
    with open("/proc/self/comm", "r+", encoding="utf-8") as file:
        name = file.read().strip()
        file.write("zygote-starter")
    while (message := _wire.receive(requests)) is not None:
        if os.fork() == 0:
            requests.close()
            with open("/proc/self/comm", "w", encoding="utf-8") as file:
                file.write(name)
            # A session puts its control socket at a low number, where this one must not be.
            init = socket.socket(fileno=fcntl.fcntl(message.fds[0], fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD))
            run_child(functools.partial(main, init, config, plan))
        os.close(message.fds[0])
    os._exit(0)


class ZygoteClient:
    """Connection of the sandbox init process to the zygote, which is started on first use and again if it dies."""

    def __init__(self, reactor: Reactor, config: RuntimeConfig, on_exit: Callable[[int], None]) -> None:
        """Start the zygote starter. Called before the first request, whose data it must not contain."""
        self._reactor = reactor
        self._on_exit = on_exit
        self._socket: socket.socket | None = None
        self._waiting: dict[int, tuple[socket.socket, socket.socket]] = {}
        paths = config.tree_paths
        plan = _namespaces.NamespacePlan(0, 0, _ROOT_BYTES, _ROOT_FILES, paths, locked_etc=False)
        self._starter, requests = _wire.socket_pair()
        reactor.fork(lambda: _serve_starts(requests, config, plan))
        requests.close()

    def ask(
        self, fields: _wire.Fields, fds: list[int]
    ) -> Generator[socket.socket, _wire.WireMessage | None, _wire.Fields]:
        """Send a request and wait for the reply.

        :raises SandboxRequestError: if it fails, or the zygote dies.
        """
        try:
            _wire.send(self._socket or self._start(), fields, fds)
        except ConnectionError:
            # It died, and that has not been noticed yet.
            self.died()
            _wire.send(self._start(), fields, fds)
        ours, theirs = _wire.socket_pair()
        self._waiting[fields["n"]] = ours, theirs
        answer = yield ours
        ours.close()
        check_report(answer, "the template interpreter died")
        assert answer is not None
        return answer.fields

    def _start(self) -> socket.socket:
        ours, theirs = _wire.socket_pair()
        with theirs:
            try:
                _wire.send(self._starter, {}, [theirs.fileno()])
            except ConnectionError:
                ours.close()
                # A copy of this process, instead, would show data of all sandboxes to each session.
                raise SandboxRequestError("the zygote starter process died: restart the runtime") from None
        self._socket = ours
        self._reactor.selector.register(ours, selectors.EVENT_READ, lambda: self._receive(ours))
        return ours

    def _receive(self, sock: socket.socket) -> None:
        if sock is not self._socket:
            # The end of this zygote has just been noticed by a request.
            return
        message = _wire.receive(sock)
        if message is None:
            self.died()
            return
        fields = message.fields
        if "listener" in fields:
            self._reactor.broker.add(message.fds[0])
        elif "exited" in fields:
            self._on_exit(fields["exited"])
            self._reactor.notify({"event": "exit", "pid": fields["exited"], "status": fields["status"]})
        else:
            ours, theirs = self._waiting.pop(fields["n"])
            with theirs:
                _wire.send(theirs, fields)
            # At once: the next message may report the end of this session, which must not overtake its start.
            self._reactor.selector.get_key(ours).data()

    def died(self) -> None:
        """Handle the zygote's death: fail pending requests; the next request starts another one."""
        if self._socket is None:
            return
        self._reactor.selector.unregister(self._socket)
        self._socket.close()
        self._socket = None
        for _, theirs in self._waiting.values():
            theirs.close()
        self._waiting.clear()
