"""Calls to the server inside a remote sandbox, through commands and files of the service.

A call is repeated by its id until it has a result, so a lost answer costs nothing. Everything that comes from inside is
untrusted.
"""

import base64
import errno
import json
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

import anyio
import msgspec

from agentflow.errors import CannotFork, InstanceGone, RuntimeFailure
from runtimes._framing import FrameError, JsonLimits
from runtimes._protocol import OutputSink
from runtimes._untrusted import decode_untrusted
from runtimes.remote._bundle import program_command
from runtimes.remote._service import RemoteSandbox
from runtimes.remote.inside._paths import INLINE_BYTES, NO_SERVER, SPOOL

T = TypeVar("T")

_WAIT_SECONDS = 20.0
_GRACE_SECONDS = 40.0
_END_SECONDS = 30.0
_TRIES = 3
_MAX_REPLY = 160 << 20
_LIMITS = JsonLimits(max_bytes=_MAX_REPLY, max_values=6_000_000)


class RemoteOutput(msgspec.Struct, frozen=True, array_like=True):
    """Piece of output of a call."""

    name: str
    """`stdout` or `stderr`; for a stream also `started` and `closed`."""
    data: bytes
    """Output."""


class _RemoteError(msgspec.Struct, frozen=True):
    kind: str
    text: str
    errno: int | None = None
    reason: str | None = None
    path: str | None = None


class _CallResult(msgspec.Struct, frozen=True):
    value: Any = None
    error: _RemoteError | None = None


class _CallReply(msgspec.Struct, frozen=True):
    output: list[RemoteOutput] = []
    result: _CallResult | None = None
    ready: bool = False
    lost: bool = False


class RemoteCall:
    """Call in progress."""

    def __init__(self, calls: "SandboxCalls", method: str, arguments: Mapping[str, object]) -> None:
        self._calls = calls
        self._first: dict[str, object] = {"method": method, "args": arguments}
        self._seen = 0
        self.id = secrets.token_hex(8)
        """Id, unique in its sandbox."""

    async def events(self) -> AsyncIterator[RemoteOutput | _CallResult]:
        """Yield its output as it arrives, and its result at the end.

        :raises RuntimeFailure: if the service fails.
        """
        while True:
            request = {"id": self.id, "seen": self._seen, "wait": _WAIT_SECONDS, **self._first}
            reply = await self._poll(request)
            self._first = {}
            if reply.lost:
                raise RuntimeFailure("the sandbox's server has lost a call: it was started again")
            self._seen += len(reply.output)
            for piece in reply.output:
                yield piece
            if reply.result is not None:
                yield reply.result
                return

    async def _poll(self, request: Mapping[str, object]) -> _CallReply:
        """Send a request and wait for the reply. A cancellation ends the call inside, which ends the request."""
        outcome: list[_CallReply | RuntimeFailure] = []
        done = anyio.Event()

        async def ask() -> None:
            try:
                with anyio.CancelScope(shield=True):
                    outcome.append(await self._calls.request(request))
            except RuntimeFailure as error:
                outcome.append(error)
            finally:
                done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            try:
                await done.wait()
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await self._calls.end_now(self.id)
                raise
        if isinstance(outcome[0], RuntimeFailure):
            raise outcome[0]
        return outcome[0]


class SandboxCalls:
    """Calls to one sandbox."""

    def __init__(self, sandbox: RemoteSandbox) -> None:
        self.sandbox = sandbox
        """Sandbox that is called."""
        self._ended: list[str] = []

    async def program(self, program: str, argument: str, seconds: float) -> str:
        """Run a program of `runtimes.remote.inside._start`; return what it printed."""
        output = await self.sandbox.command(program_command(program, argument), seconds)
        return output.decode("utf-8", "replace").strip()

    async def request(self, fields: Mapping[str, object]) -> _CallReply:
        """Send one request and return the reply, repeating it if the service fails."""
        ended, self._ended = self._ended, []
        payload = json.dumps({**fields, "ended": ended}).encode("ascii")
        for attempt in range(_TRIES):
            try:
                return await self._request_once(payload)
            except InstanceGone:
                raise
            except RuntimeFailure:
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    async def _request_once(self, payload: bytes) -> _CallReply:
        if len(payload) <= INLINE_BYTES:
            argument = base64.b64encode(payload).decode("ascii")
        else:
            argument = "@" + await self.sandbox.upload(f"{SPOOL}/{secrets.token_hex(8)}", payload)
        text = await self.program("ask", argument, _WAIT_SECONDS + _GRACE_SECONDS)
        try:
            return await decode_untrusted(await self._reply(text), _decode, _LIMITS)
        except (FrameError, ValueError) as error:
            raise RuntimeFailure(f"the sandbox's server sent a malformed reply: {error}") from None

    async def _reply(self, text: str) -> bytes:
        if text == NO_SERVER:
            raise InstanceGone("the sandbox's server has ended")
        if not text.startswith("@"):
            return base64.b64decode(text, validate=True)
        path, _, size = text[1:].partition(" ")
        if os.path.dirname(path) != SPOOL or not size.isdecimal() or int(size) > _MAX_REPLY:
            raise ValueError("its file is not one of the spool, or too large")
        data = await self.sandbox.download(path)
        await self.program("drop", path, _END_SECONDS)
        return data

    async def call(
        self,
        method: str,
        kind: type[T],
        *,
        on_output: OutputSink | None = None,
        **arguments: object,
    ) -> T:
        """Call a method and return its result, converted to that type."""
        async with self.open(method, **arguments) as call:
            async for event in call.events():
                if isinstance(event, _CallResult):
                    return result_of(event, kind)
                name = stream_name(event.name)
                if on_output is not None and name is not None:
                    on_output(name, event.data)
        raise AssertionError("unreachable: the last event is the result")

    @asynccontextmanager
    async def open(self, method: str, **arguments: object) -> AsyncGenerator[RemoteCall]:
        """Prepare a call; leaving the context ends it inside, with the next request."""
        call = RemoteCall(self, method, arguments)
        try:
            yield call
        finally:
            # The next request carries it.
            self._ended.append(call.id)

    async def end_now(self, name: str) -> None:
        """End a call inside."""
        try:
            self._ended.append(name)
            await self.request({})
        except RuntimeFailure:
            # The sandbox is gone, or ends with its lifetime.
            return


def stream_name(name: str) -> Literal["stdout", "stderr"] | None:
    """Return the name of an output stream, or `None`."""
    return "stdout" if name == "stdout" else "stderr" if name == "stderr" else None


def result_of(result: _CallResult, kind: type[T]) -> T:
    """Return the value of a result.

    :raises Exception: the error that the call raised inside.
    """
    if result.error is not None:
        raise _error_of(result.error)
    try:
        return msgspec.convert(result.value, kind)
    except msgspec.ValidationError as error:
        raise RuntimeFailure(f"the sandbox's server sent a malformed result: {error}") from None


def _decode(payload: bytes) -> _CallReply:
    # Not msgspec's own decoder: names of files may contain lone surrogates.
    return msgspec.convert(json.loads(payload), _CallReply)


_KINDS: Mapping[str, Callable[[str], Exception]] = {
    "CannotFork": CannotFork,
    "InstanceGone": InstanceGone,
    "RuntimeFailure": RuntimeFailure,
    "ValueError": ValueError,
}


def _error_of(error: _RemoteError) -> Exception:
    if error.errno is not None and error.errno in errno.errorcode:
        reason = error.reason or os.strerror(error.errno)
        return (
            OSError(error.errno, reason) if error.path is None else OSError(error.errno, reason, error.path)
        )
    return _KINDS.get(error.kind, RuntimeFailure)(error.text)
