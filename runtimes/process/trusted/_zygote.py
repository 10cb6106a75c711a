"""The zygote: a warm interpreter that becomes Python sessions by forking.

It has imported what sessions commonly need and has run nothing untrusted. Each session is a fork of it that
goes through the one-way door before its first line runs.
"""

import contextlib
import gc
import importlib
import linecache
import os
import random
import select
import signal
import socket
import sys
from types import FrameType
from typing import Any, NoReturn

from runtimes.process.inside import _guest
from runtimes.process.inside._evaluate import Evaluator
from runtimes.process.linux import _cgroups
from runtimes.process.linux import _syscalls as sc
from runtimes.process.trusted import _confine, _namespaces, _wire
from runtimes.process.trusted._spawn import World, run_child

_SETTINGS = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MPLBACKEND": "Agg",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_FIRST_USE = {"pandas": "import pandas\npandas.DataFrame({'a': [1, 2, 3]})['a'].sum()"}
_OWN = ("runtimes", "agentflow", "mcp_servers")


class _Zygote:
    def __init__(self, mason: socket.socket, world: World) -> None:
        self._sandbox_init = mason
        self._world = world
        self._loaded: list[str] | None = None
        self._evaluator: Evaluator
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def serve(self) -> NoReturn:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        poll.register(self._sandbox_init, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
            # Always: a message that came while this process waited for a processor hides the signal that came before it.
            self._reap()
            if self._sandbox_init.fileno() in ready:
                message = _wire.receive(self._sandbox_init)
                if message is None:
                    os._exit(0)
                self._handle(message)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            _wire.send(self._sandbox_init, {"exited": pid, "status": os.waitstatus_to_exitcode(status)})

    def _handle(self, message: _wire.Message) -> None:
        request, fds = message
        try:
            self._warm()
            if request["op"] == "warm":
                _wire.send(self._sandbox_init, {"n": request["n"], "preloaded": self._loaded})
                return
            pid = self._fork(request, fds)
        except OSError as error:
            _wire.send(self._sandbox_init, {"n": request["n"], "error": f"no Python session: {error}"})
        else:
            _wire.send(self._sandbox_init, {"n": request["n"], "pid": pid})
        finally:
            for fd in fds:
                os.close(fd)

    def _warm(self) -> None:
        """Import what sessions share, once, before the first of them."""
        if self._loaded is not None:
            return
        self._loaded = []
        for name in self._world.preload:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
                self._loaded.append(name)
        _rehearse(self._loaded)
        if len(os.listdir("/proc/self/task")) > 1:
            raise OSError("a preloaded module started threads: " + ", ".join(self._loaded))
        self._evaluator = Evaluator()
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
        namespaces, (control, stdout, stderr, letter), members = fds[1:5], fds[5:9], fds[9:]
        env = _wire.open_letter(letter)["env"]
        _cgroups.attach(_cgroups.Group(members, -1, -1, -1, -1))
        live = bool(request["live"])
        identity = _confine.Identity(request["uid"], not live)
        _confine.begin_session(idle=self._world.idle)
        _confine.enter(namespaces, identity)
        _confine.set_limits(request["rlimits"])
        _confine.become(identity, keep_for_fork=live)
        _confine.settle(idle=self._world.idle, python=True)
        _confine.take_standard_streams(None, stdout, stderr)
        os.dup2(control, _guest.CONTROL_FD)
        listener = _confine.lock(self._world.locks, gated=live)
        if listener is not None:
            _wire.send(self._sandbox_init, {"listener": True}, [listener])
        self._sandbox_init.close()
        _confine.close_from(3, keep=[_guest.CONTROL_FD])
        os.chdir("/home/agent")
        os.environ.clear()
        os.environ.update(env)
        reseed()
        _guest.Guest(_guest.CONTROL_FD, self._evaluator).serve()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Nothing: the wake-up descriptor tells."""


def _rehearse(loaded: list[str]) -> None:
    """Do once what sessions do first: what becomes warm by it, they share instead of each making its own."""
    evaluator = Evaluator()
    sources = ["1 + 1", "raise ValueError", *(_FIRST_USE[name] for name in loaded if name in _FIRST_USE)]
    for number, source in enumerate(sources):
        evaluator.run(source, f"<rehearsal {number}>")
    linecache.cache.clear()


def reseed() -> None:
    """Draw other random numbers than the template would."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def forget_own_modules() -> None:
    """Leave no trace of the project among the importable modules; what runs keeps its own references."""
    for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
        del sys.modules[name]


def main(mason: socket.socket, world: World, plan: _namespaces.RoomPlan) -> NoReturn:
    """Serve, as a child of the mason."""
    for fd in _namespaces.build(plan, None, []):
        os.close(fd)
    _confine.enter_root()
    _confine.close_from(3, keep=[fd for fd in (mason.fileno(), world.locks.ruleset) if fd is not None])
    os.environ.update(_SETTINGS, HOME="/home/agent", LANG="C.UTF-8", PATH="/usr/bin:/bin")
    os.chdir("/home/agent")
    with contextlib.suppress(ConnectionError):
        _Zygote(mason, world).serve()
    # The mason is gone.
    os._exit(0)
