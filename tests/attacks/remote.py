"""Remote runtimes: hostile answers of a service, or of the server inside its sandbox."""

import base64
import json
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final
from unittest.mock import patch

import anyio

from agentflow.errors import AgentFlowError
from runtimes import Fork, InstanceSpec, Limits
from runtimes.remote import RemoteOptions, RemoteRuntime
from runtimes.remote import _instance as remote_instance
from runtimes.remote._calls import SandboxCalls
from runtimes.remote._instance import RemoteInstance
from runtimes.remote._service import RemoteSandbox, SandboxService, ServiceTraits
from runtimes.remote.inside._paths import NO_SERVER, SPOOL
from tests.attacks._table import Attack, attacks

CATEGORY: Final = "remote"
REFUSED: Final = (
    "refused: (RuntimeFailure|InstanceGone|CannotFork|IsolationUnavailable); memory bounded; nothing written"
)
ERROR: Final = (
    "refused: (RuntimeFailure|OSError|FileNotFoundError|ValueError); memory bounded; nothing written"
)
PASSED: Final = "passed on; memory bounded; nothing written"
CONTAINED: Final = f"({REFUSED}|{PASSED})"
_MIB: Final = 1 << 20
_MEMORY: Final = 256 * _MIB
_LIMITS: Final = Limits(wall_seconds=0.1, disk_bytes=8 * _MIB)

Reply = Callable[[int], bytes]
"""Returns the output of a command of the service, by its number."""
Use = Callable[[RemoteInstance], Awaitable[object]]


class HostileBox:
    """Sandbox of a service that answers as the attack says."""

    def __init__(self, reply: Reply, file: bytes = b"") -> None:
        self._reply = reply
        self._file = file
        self._commands = 0

    @property
    def id(self) -> str:
        """Id that a path could be made of."""
        return "../../../tmp/evil"

    async def command(self, command: str, seconds: float) -> bytes:
        """Answer as the attack says."""
        await anyio.lowlevel.checkpoint()
        self._commands += 1
        return self._reply(self._commands)

    async def upload(self, path: str, data: bytes) -> str:
        """Take a file."""
        return path

    async def download(self, path: str) -> bytes:
        """Return the file of the attack."""
        return self._file

    async def renew(self, seconds: int) -> None:
        """Do nothing."""

    async def fork(self, labels: Mapping[str, str], seconds: int) -> RemoteSandbox:
        """Return itself as its copy."""
        return self

    async def end(self) -> None:
        """Do nothing."""


class HostileService(SandboxService):
    """Service with one sandbox."""

    traits = ServiceTraits(live_fork=True)

    def __init__(self, box: HostileBox, servers: Mapping[str, str]) -> None:
        self._box = box
        self._servers = dict(servers)

    async def open(self) -> None:
        """Connect."""

    async def create(self, spec: InstanceSpec, labels: Mapping[str, str]) -> RemoteSandbox:
        """Return the sandbox."""
        return self._box

    async def servers(self, realm: str) -> dict[str, str]:
        """Return what the attack says."""
        return self._servers

    async def end(self, sandbox_id: str) -> None:
        """End no sandbox: those of strangers must stay."""
        raise AssertionError(f"ended {sandbox_id}")

    async def close(self) -> None:
        """Disconnect."""


def _always(text: bytes) -> Reply:
    return lambda number: text


def _says(**reply: object) -> Reply:
    return _always(base64.b64encode(json.dumps(reply).encode()))


def _value(value: object) -> Reply:
    return _says(result={"value": value})


def _error(**error: object) -> Reply:
    return _says(result={"error": {"kind": "OSError", "text": "x", **error}})


async def _run(instance: RemoteInstance) -> object:
    return await instance.run("bash", "true")


async def _exec(instance: RemoteInstance) -> object:
    return await instance.exec(["true"])


async def _read(instance: RemoteInstance) -> object:
    return await instance.read("file")


async def _list(instance: RemoteInstance) -> object:
    return await instance.list()


async def _snapshot(instance: RemoteInstance) -> object:
    return await instance.snapshot()


async def _usage(instance: RemoteInstance) -> object:
    return await instance.usage()


async def _stream(instance: RemoteInstance) -> object:
    async with await instance.open_stream(["true"]) as stream:
        return [piece async for piece in stream.receive()]


_PART: Final = base64.b64encode(bytes(_MIB)).decode()


def _endless_parts(number: int) -> bytes:
    value: object = {"name": "x", "size": 1 << 60} if number == 1 else _PART
    return _value(value)(number)


_RESULT: Final = {"outcome": "ok", "detail": "", "stdout": "", "stderr": "", "exit_code": 0}
_DEEP: Final = base64.b64encode(b'{"result":{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}}")
_ANSWERS: dict[str, tuple[str, Reply, Use, str]] = {
    "reply: no base64": ("send bytes that are no reply", _always(b"\xff\x00<html>"), _run, REFUSED),
    "reply: no JSON": ("send text that is no JSON", _always(base64.b64encode(b"{")), _run, REFUSED),
    "reply: deep": ("exhaust the stack", _always(_DEEP), _run, REFUSED),
    "reply: list": ("send a list", _always(base64.b64encode(b"[]")), _run, REFUSED),
    "reply: many values": ("take memory by many values", _always(base64.b64encode(b"[" + b"0," * 7_000_000 + b"0]")), _run, REFUSED),
    "reply: huge number": ("take time by a number", _always(base64.b64encode(b'{"result":{"value":' + b"9" * 500_000 + b"}}")), _run, REFUSED),
    "reply: no server": ("say that there is no server", _always(NO_SERVER.encode()), _run, REFUSED),
    "reply: lost": ("say that the call is lost", _says(lost=True), _run, REFUSED),
    "file: of the sandbox": ("lead the server to another file", _always(b"@/etc/shadow 10"), _run, REFUSED),
    "file: above": ("lead the server above the spool", _always(f"@{SPOOL}/../../etc/shadow 10".encode()), _run, REFUSED),
    "file: option": ("name an option as a file", _always(b"@-rf 10"), _run, REFUSED),
    "file: command": ("run a command by the name of a file", _always(f"@{SPOOL}/$(touch /tmp/evil) 10".encode()), _run, REFUSED),
    "file: huge": ("claim a file of an exabyte", _always(f"@{SPOOL}/x {1 << 60}".encode()), _run, REFUSED),
    "file: negative": ("claim a file of a negative size", _always(f"@{SPOOL}/x -1".encode()), _run, REFUSED),
    "file: digits of other scripts": ("claim a size in other digits", _always(f"@{SPOOL}/x \u0661\u00b2".encode()), _run, REFUSED),
    "endless: output": ("send output without an end", _says(output=[["stdout", "eHh4"]] * 100), _run, REFUSED),
    "endless: nothing": ("never end a call", _says(), _exec, REFUSED),
    "endless: events of a stream": ("end a stream by other events", _says(output=[["evil", ""]], result={"value": 0}), _stream, CONTAINED),
    "endless: parts of a snapshot": ("send a snapshot without an end", _endless_parts, _snapshot, ERROR),
    "snapshot: negative": ("send a snapshot of a negative size", _value({"name": "x", "size": -1}), _snapshot, CONTAINED),
    "snapshot: name": ("name a file of the server as a snapshot", _value({"name": "../../etc/passwd", "size": 0}), _snapshot, CONTAINED),
    "result: wrong type": ("send a result of another type", _value(7), _run, REFUSED),
    "result: unknown outcome": ("send an outcome that does not exist", _value({**_RESULT, "outcome": "evil"}), _exec, REFUSED),
    "result: huge exit code": ("send an exit code of 100 digits", _value({**_RESULT, "exit_code": 10**100}), _exec, CONTAINED),
    "result: no bytes": ("send text that is no base64", _value("%%%"), _read, REFUSED),
    "result: infinite usage": ("send a usage that is no number", _always(base64.b64encode(b'{"result":{"value":{"memory_bytes":NaN}}}')), _usage, REFUSED),
    "result: paths": ("send paths above in a list of files", _value([{"path": "../../etc/passwd", "kind": "file", "size": -1}]), _list, CONTAINED),
    "error: class": ("raise an exception of another class", _error(kind="SystemExit", text="x"), _run, REFUSED),
    "error: attribute": ("raise an exception by the name of an attribute", _error(kind="__class__", text="x"), _run, REFUSED),
    "error: negative number": ("raise an error with a negative number", _error(errno=-1), _read, REFUSED),
    "error: path": ("raise an error that names a file of the host", _error(errno=2, path="/etc/shadow"), _read, ERROR),
    "error: timeout": ("raise an error that is the server's own", _error(errno=110), _read, "refused: TimeoutError; memory bounded; nothing written"),
}  # fmt: skip
_SERVICES: dict[str, tuple[str, Mapping[str, str], Reply, str]] = {
    "service: server above": ("end a sandbox by a name above", {"x": "../../etc"}, _always(b"no"), REFUSED),
    "service: null": ("end a name by a null", {"x": "a\0b"}, _always(b"no"), REFUSED),
    "service: long name": ("use a name that is too long", {"x": "x" * 10_000}, _always(b"no"), REFUSED),
    "service: empty name": ("use an empty name", {"x": ""}, _always(b"no"), REFUSED),
    "service: name of a stranger": ("end the sandbox of a stranger", {"x": "."}, _always(b"no"), REFUSED),
    "service: lines": ("print many lines", {}, lambda number: b"True" if number == 1 else b"error a\nb\x1b[2J" * 9, REFUSED),
    "service: long error": ("print a long error", {}, lambda number: b"True" if number == 1 else b"error " + b"x" * 10_000_000, REFUSED),
    "service: no text": ("print bytes that are no text", {}, lambda number: b"True" if number == 1 else b"\xff\xfe", REFUSED),
}  # fmt: skip

ATTACKS: Final[list[Attack]] = [
    *(
        attack
        for name, (aim, _, use, seen) in _ANSWERS.items()
        for attack in attacks(CATEGORY, {name: (aim, use.__name__, seen)}, soak=name == "reply: many values")
    ),
    *attacks(CATEGORY, {name: (aim, str(known), seen) for name, (aim, known, _, seen) in _SERVICES.items()}),
]


async def _refuse_forks(parent: RemoteInstance) -> Fork:
    raise AssertionError(parent)


async def _outcome(name: str) -> str:
    try:
        if name in _SERVICES:
            _, known, reply, _ = _SERVICES[name]
            service = HostileService(HostileBox(reply), known)
            async with RemoteRuntime("e2b", RemoteOptions(start_seconds=5), service=service) as runtime:
                await runtime.start()
        else:
            _, reply, use, _ = _ANSWERS[name]
            spec = InstanceSpec(limits=_LIMITS)
            await use(RemoteInstance(SandboxCalls(HostileBox(reply, bytes(100))), spec, {}, _refuse_forks))
    except (AgentFlowError, OSError, ValueError) as error:
        if not str(error).isprintable() or len(str(error)) > 1_000:
            return f"refused with a message that misleads: {str(error)[:300]!r}"
        return f"refused: {type(error).__name__}"
    return "passed on"


async def observe(table: Iterable[Attack]) -> dict[str, str]:
    """Use each sandbox; return the outcomes by id."""
    seen: dict[str, str] = {}
    evil = anyio.Path(tempfile.gettempdir(), "evil")
    tracemalloc.start()
    with patch.object(remote_instance, "_SPARE_SECONDS", 0.1):
        for attack in table:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                with anyio.fail_after(20):
                    outcome = await _outcome(attack.id.removeprefix(f"{CATEGORY}: "))
            except Exception as error:  # boundary: any error of an attack is its outcome
                outcome = f"raised {type(error).__name__}: {error}"
            took = tracemalloc.get_traced_memory()[1] - before
            memory = "memory bounded" if took < _MEMORY else f"{took / _MIB:.0f} MiB taken"
            written = "evil written" if await evil.exists() else "nothing written"
            seen[attack.id] = f"{outcome}; {memory}; {written}"
    tracemalloc.stop()
    return seen
