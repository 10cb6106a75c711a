"""Ray cluster of two machines: two network namespaces of this one, each with a raylet of one CPU.

Services on this machine's loopback are reached from them at the address of the bridge.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.behaviour._tree import ROOT

HEAD, MEMBER = "head", "member"
_PORT = 6379
_TUNING = {
    # A machine that is away is noticed after 1.2 seconds, not 15.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A head would ask for the token that a Ray may have left in the user's home, which others do not send.
    "RAY_AUTH_MODE": "disabled",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}

_SLOW = ("root", "tbf", "rate", "240kbit", "burst", "4kb", "latency", "60s")


class Cluster:
    """Machines with their addresses, and the raylets that run."""

    def __init__(self, mark: str, folder: Path) -> None:
        self._mark = mark
        self._folder = folder
        self._number = os.getpid() % 200 + 20
        self.bridge = f"10.77.{self._number}.1"
        """Address of this machine for both."""
        self.addresses = {HEAD: f"10.77.{self._number}.2", MEMBER: f"10.77.{self._number}.3"}
        """Addresses of the machines."""

    @property
    def address(self) -> str:
        """Address of the cluster."""
        return f"{self.addresses[HEAD]}:{_PORT}"

    def namespace(self, machine: str) -> str:
        """Return the network namespace of a machine."""
        return f"{self._mark}-{machine}"

    def make(self, stack: ExitStack) -> None:
        """Make the namespaces, joined by a bridge."""
        bridge = f"{self._mark}b"
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{self.bridge}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for machine, address in self.addresses.items():
            space, link = self.namespace(machine), self._link(machine)
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", link, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "eth0", "up")

    def start(self, machine: str) -> None:
        """Start the raylet of a machine; that of the head starts the cluster."""
        joins = (
            ["--head", f"--port={_PORT}", "--include-dashboard=false", "--ray-client-server-port=10001"]
            if machine == HEAD
            else [f"--address={self.address}"]
        )
        command = [
            *("ip", "netns", "exec", self.namespace(machine)),
            *(sys.executable, "-m", "ray.scripts.scripts", "start", *joins),
            f"--node-ip-address={self.addresses[machine]}",
            *("--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats"),
            *((f"--temp-dir={self._folder}",) if machine == HEAD else ()),
        ]
        done = subprocess.run(
            command,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @contextmanager
    def cut(self, machine: str) -> Generator[None]:
        """Cut a machine off the network while a block runs."""
        _ip("link", "set", self._link(machine), "down")
        try:
            yield
        finally:
            _ip("link", "set", self._link(machine), "up")

    @contextmanager
    def slow(self, machine: str) -> Generator[None]:
        """Let a machine send and receive only 30 kB a second while a block runs."""
        ends = (("dev", self._link(machine)), ("dev", "eth0"))
        inside = ((), ("-n", self.namespace(machine)))
        for end, where in zip(ends, inside, strict=True):
            _run("tc", *where, "qdisc", "add", *end, *_SLOW)
        try:
            yield
        finally:
            for end, where in zip(ends, inside, strict=True):
                _run("tc", *where, "qdisc", "del", *end, "root")

    def losses(self) -> int:
        """Return how many times Ray has noticed that a machine does not answer."""
        log = (self._folder / "session_latest/logs/gcs_server.out").read_text(
            encoding="utf-8", errors="replace"
        )
        return log.count("health check failed")

    def rejoin(self, machine: str) -> None:
        """Start the raylet of a machine again once it has ended, because Ray had given the machine up."""
        while any(_is_raylet(process) for process in self.processes(machine)):
            psutil.wait_procs(self.processes(machine), timeout=0.1)
        self.clear(machine)
        self.start(machine)

    def environment(self) -> dict[str, str]:
        """Return the variables of its programs."""
        told = ("AGENTFLOW_", "OPENAI_", "RAY_", "PYTEST_")
        ours = {name: value for name, value in os.environ.items() if not name.startswith(told)}
        # Ray finds its other programs beside the interpreter.
        path = f"{Path(sys.executable).parent}:{ours.get('PATH', '')}"
        return ours | _TUNING | {"PATH": path, "PYTHONPATH": str(ROOT)}

    def processes(self, machine: str) -> list[psutil.Process]:
        """Return the processes in the namespace of a machine."""
        wanted = os.stat(f"/run/netns/{self.namespace(machine)}").st_ino
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if os.stat(f"/proc/{process.pid}/ns/net").st_ino == wanted:
                    found.append(process)
        return found

    def kill(self, machine: str) -> None:
        """Kill the raylet of a machine, as a crash does, and wait until nothing of the machine is left."""
        for process in self.processes(machine):
            if _is_raylet(process):
                with suppress(psutil.Error):
                    process.kill()
        self.clear(machine)

    def kill_server_of_client(self) -> bool:
        """Kill a process that Ray starts on the head for a client; return whether there was one."""
        for process in self.processes(HEAD):
            with suppress(psutil.Error):
                if "--mode=specific-server" in process.cmdline():
                    process.kill()
                    return True
        return False

    def _link(self, machine: str) -> str:
        return f"{self._mark}{machine[0]}"

    def clear(self, machine: str) -> None:
        """End what is left on a machine: Ray leaves its monitors, and workers take a moment to notice."""
        while left := self.processes(machine):
            for process in left:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(left, timeout=1)


@contextmanager
def cluster() -> Generator[Cluster]:
    """Make the machines; the caller starts them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="agentflow-ray-", dir="/tmp")))
        made = Cluster(f"af{os.getpid() % 100000}", folder)
        made.make(stack)
        for machine in (MEMBER, HEAD):
            stack.callback(made.clear, machine)
        yield made


@contextmanager
def relayed(address: str, port: int) -> Generator[int]:
    """Relay connections at an address to a port of this machine's loopback; yield the port."""
    with socket.create_server((address, 0)) as server:
        thread = threading.Thread(target=_accept, args=(server, port), daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _accept(server: socket.socket, port: int) -> None:
    pairs: list[threading.Thread] = []
    with suppress(OSError):
        while True:
            near, _ = server.accept()
            pairs.append(threading.Thread(target=_join, args=(near, port), daemon=True))
            pairs[-1].start()
    for pair in pairs:
        pair.join()


def _join(near: socket.socket, port: int) -> None:
    with near, suppress(OSError), socket.create_connection(("127.0.0.1", port)) as far:
        back = threading.Thread(target=_copy, args=(far, near), daemon=True)
        back.start()
        _copy(near, far)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _is_raylet(process: psutil.Process) -> bool:
    try:
        return process.name() == "raylet"
    except psutil.Error:
        return False


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
