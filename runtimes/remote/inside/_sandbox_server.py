"""Server of one remote sandbox: executes the calls of `runtimes.remote` in its sessions, over a Unix socket.

Every request is a JSON object on one connection. A call has an id that the caller chose, so that a request may be
repeated, and its result is kept until the caller acknowledges it.
"""

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from agentflow.errors import CannotFork, InstanceGone, RuntimeFailure
from runtimes._protocol import InstanceSpec, Limits
from runtimes.docker._instance import ContainerInstance
from runtimes.process._channel import RequestChannel
from runtimes.process._command import CommandStream
from runtimes.process._instance import environment
from runtimes.process.trusted import _wire
from runtimes.remote.inside import _paths

_MAX_BUFFERED = 4 << 20
_MAX_ENDED = 1000
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Arguments = dict[str, Any]


class _Sandbox:
    """The whole machine: nothing has to be removed, as the platform ends it."""

    async def failed(self) -> str:
        """Never return."""
        await asyncio.Event().wait()
        return ""

    async def layer(self) -> str | None:
        """Return `None`: there are no images."""
        return None

    async def commit(self, image: str) -> None:
        """Refuse."""
        raise RuntimeFailure(f"a remote sandbox can't be saved as {image!r}")

    async def end(self) -> None:
        """Do nothing."""


class AgentInstance(ContainerInstance):
    """Sessions, commands and files of this sandbox."""

    async def pack_to(self, path: str, most: int | None) -> None:
        """Write a snapshot to a file."""
        with await asyncio.to_thread(open, path, "wb") as file:
            await self.save(file, max_bytes=most)

    async def unpack_from(self, path: str) -> None:
        """Restore a snapshot from a file."""
        with await asyncio.to_thread(open, path, "rb") as file:
            await self.load(file)

    async def dump_shell(self) -> dict[str, Any]:
        """Return the shell's state and a line for each thing that a fork leaves behind.

        :raises CannotFork: if there is a live interpreter.
        """
        if self._python.used:
            raise CannotFork(
                "a live interpreter cannot be copied into another sandbox of this platform: repeat its runs there"
            )
        async with self._shell.lock:
            state, left = await self._shell.dump() if self._shell.alive else (None, [])
        names = (await self._client.ask("events", sandbox=self._id)).fields["others"]
        lines = [f"the shell's {line}" for line in left] + [
            f"the background process {name}" for name in names
        ]
        return {"state": state, "left": lines}

    async def restore_shell(self, state: bytes) -> None:
        """Restore the shell's state."""
        async with self._shell.lock:
            await self._shell.restore(state)


class _Call:
    """One call, its buffered output and its result."""

    def __init__(self) -> None:
        self.output: list[tuple[str, bytes]] = []
        self.first = 0
        """Number of the first piece that is still buffered."""
        self.buffered = 0
        self.result: dict[str, Any] | None = None
        self.task: asyncio.Task[None] | None = None
        self.stream: CommandStream | None = None
        self.changed = asyncio.Event()
        self.room = asyncio.Event()

    def add(self, name: str, data: bytes) -> None:
        """Buffer output."""
        self.output.append((name, data))
        self.buffered += len(data)
        self.changed.set()

    def forget(self, seen: int) -> None:
        """Drop the pieces before that number: the caller has them."""
        count = max(0, seen - self.first)
        self.buffered -= sum(len(data) for _, data in self.output[:count])
        del self.output[:count]
        self.first += count
        self.room.set()

    def finish(self, result: dict[str, Any]) -> None:
        """Set the result."""
        self.result = result
        self.changed.set()


class SandboxServer:
    """Calls of one sandbox."""

    def __init__(self, instance: AgentInstance) -> None:
        self._instance = instance
        self._calls: dict[str, _Call] = {}
        self._ended: dict[str, None] = {}
        self._methods: dict[str, Callable[[_Call, Arguments], Awaitable[object]]] = {
            "run": self._run,
            "exec": self._exec,
            "stream": self._stream,
            "stream_send": lambda call, a: self._stream_of(a).send(_bytes(a["data"])),
            "stream_close": lambda call, a: self._stream_of(a).close_stdin(),
            "send_input": lambda call, a: instance.send_input(a["language"], _bytes(a["data"])),
            "interrupt": lambda call, a: instance.interrupt(a["language"]),
            "warm": lambda call, a: instance.warm(frozenset(a["languages"])),
            "read": lambda call, a: instance.read(a["path"], offset=a["offset"], length=a["length"]),
            "write": self._write,
            "list": lambda call, a: instance.list(a["path"], recursive=a["recursive"]),
            "stat": lambda call, a: instance.stat(a["path"]),
            "make_directory": lambda call, a: instance.make_directory(a["path"]),
            "remove": lambda call, a: instance.remove(a["path"], recursive=a["recursive"]),
            "move": lambda call, a: instance.move(a["source"], a["destination"], replace=a["replace"]),
            "pack": self._pack,
            "unpack": lambda call, a: instance.unpack_from(_spooled(a["name"])),
            "part": lambda call, a: asyncio.to_thread(_part, a["name"], a["offset"], a["length"]),
            "add": lambda call, a: asyncio.to_thread(_add, a["name"], a["offset"], _bytes(a["data"])),
            "drop": lambda call, a: asyncio.to_thread(_drop, a["name"]),
            "dump_shell": lambda call, a: instance.dump_shell(),
            "restore_shell": lambda call, a: instance.restore_shell(_bytes(a["state"])),
            "usage": lambda call, a: instance.usage(),
        }

    async def answer(self, request: Arguments) -> dict[str, Any]:
        """Answer one request: start a call, wait for its output or result, or end calls."""
        for name in request.get("ended", ()):
            await self._end(name)
        if request.get("forget_others"):
            # In a fork: nobody waits for the calls of the parent.
            for name in list(self._calls):
                await self._end(name)
        if "id" not in request:
            return {"ready": True}
        call = self._calls.get(request["id"])
        if call is None:
            if "method" not in request or request["id"] in self._ended:
                return {"lost": True}
            call = self._calls[request["id"]] = _Call()
            call.task = asyncio.get_running_loop().create_task(self._work(call, request))
        call.forget(request["seen"])
        await self._wait(call, request["wait"])
        return {"output": call.output, "result": call.result}

    async def _wait(self, call: _Call, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while call.result is None and not call.output:
                    call.changed.clear()
                    await call.changed.wait()

    async def _work(self, call: _Call, request: Arguments) -> None:
        try:
            value = await self._methods[request["method"]](call, request["args"])
            call.finish({"value": value})
        except Exception as error:
            # Boundary: whatever a call raises is its result.
            call.finish(_error_result(error))

    async def _end(self, name: str) -> None:
        # A late request must not start it again.
        self._ended[name] = None
        while len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        call = self._calls.pop(name, None)
        if call is None or call.task is None:
            return
        if not call.task.done():
            call.task.cancel()
            await asyncio.wait([call.task])
        if call.result is None:
            # A request may still wait for it.
            call.finish(_error_result(RuntimeFailure("the call was cancelled")))

    def _sink(self, call: _Call, live: bool) -> Callable[[str, bytes], None] | None:
        return call.add if live else None

    async def _run(self, call: _Call, args: Arguments) -> object:
        return await self._instance.run(
            args["language"],
            args["source"],
            timeout=args["timeout"],
            on_output=self._sink(call, args["live"]),
            stdin_open=args["stdin_open"],
        )

    async def _exec(self, call: _Call, args: Arguments) -> object:
        return await self._instance.exec(
            args["argv"],
            input=_bytes(args["input"]),
            cwd=args["cwd"],
            env=args["env"],
            user=args["user"],
            timeout=args["timeout"],
            on_output=self._sink(call, args["live"]),
        )

    async def _stream(self, call: _Call, args: Arguments) -> int:
        stream = await self._instance.open_stream(args["argv"], cwd=args["cwd"], env=args["env"])
        async with stream:
            call.stream = stream
            # An empty piece reports the start.
            call.add("started", b"")
            async for name, data in stream.receive():
                call.add(name, data)
                while call.buffered > _MAX_BUFFERED:
                    call.room.clear()
                    await call.room.wait()
            call.add("closed", b"")
            return await stream.wait()

    def _stream_of(self, args: Arguments) -> CommandStream:
        call = self._calls.get(args["stream"])
        if call is None or call.stream is None:
            raise BrokenPipeError(32, "Broken pipe")
        return call.stream

    async def _write(self, call: _Call, args: Arguments) -> None:
        await self._instance.write(
            args["path"], _bytes(args["data"]), append=args["append"], executable=args["executable"]
        )

    async def _pack(self, call: _Call, args: Arguments) -> dict[str, Any]:
        name = secrets.token_hex(8)
        try:
            await self._instance.pack_to(_spooled(name), args["most"])
        except BaseException:
            _drop(name)
            raise
        return {"name": name, "size": _size(name)}


def _part(name: str, offset: int, length: int) -> bytes:
    with open(_spooled(name), "rb") as file:
        file.seek(offset)
        return file.read(length)


def _add(name: str, offset: int, data: bytes) -> None:
    with open(_spooled(name), "r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(data)


def _drop(name: str) -> None:
    Path(_spooled(name)).unlink(missing_ok=True)


def _size(name: str) -> int:
    return os.path.getsize(_spooled(name))


def _spooled(name: str) -> str:
    return f"{_paths.SPOOL}/{os.path.basename(name)}"


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _error_result(error: Exception) -> dict[str, Any]:
    kinds = (InstanceGone, CannotFork, RuntimeFailure, OSError, ValueError)
    kind = next((kind.__name__ for kind in kinds if isinstance(error, kind)), "RuntimeFailure")
    fields: dict[str, Any] = {"kind": kind, "text": str(error) or type(error).__name__}
    if isinstance(error, OSError) and error.errno is not None:
        fields |= {"errno": error.errno, "reason": error.strerror, "path": error.filename}
    return {"error": fields}


def _plain(value: object) -> object:
    """Return what JSON can express."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(type(value).__name__)


async def _connected(
    server: SandboxServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        request = json.loads(await reader.read())
        reply = json.dumps(await server.answer(request), default=_plain)
        writer.write(reply.encode("ascii"))
        await writer.drain()
    except (ConnectionError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"refused a request: {type(error).__name__}\n")
    finally:
        writer.close()


async def serve(
    channel_socket: socket.socket,
    spec_fields: Mapping[str, Any],
    init_settings: Mapping[str, Any],
    ready: asyncio.Event,
) -> None:
    """Serve until the process is killed."""
    channel = RequestChannel("the sandbox has ended")
    _wire.send(channel_socket, dict(init_settings))
    await channel.open(channel_socket)
    if not channel.facts.get("started"):
        raise RuntimeFailure(str(channel.facts.get("error")))
    spec = InstanceSpec(limits=Limits(**spec_fields["limits"]), env=spec_fields["env"])
    path = f"/home/agent/.local/bin:{os.environ.get('PATH', _USUAL_PATH)}"
    env = {**environment({"PATH": path}), **spec.env}

    async def refuse(spec: InstanceSpec, *, image: str | None) -> ContainerInstance:
        raise CannotFork("a remote sandbox is forked from outside")

    instance = AgentInstance(channel, "sandbox", spec, {}, env, _Sandbox(), refuse)
    await instance.begin()
    server = SandboxServer(instance)
    listener = await asyncio.start_unix_server(
        lambda reader, writer: _connected(server, reader, writer), _paths.SOCKET + ".new", limit=1 << 26
    )
    os.chmod(_paths.SOCKET + ".new", 0o600)
    os.rename(_paths.SOCKET + ".new", _paths.SOCKET)
    ready.set()
    async with listener:
        await asyncio.Event().wait()
