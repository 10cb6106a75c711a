"""Environment service of our own: any environment in Python behind the six operations."""

import hmac
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Protocol

import anyio
import msgspec
from aiohttp import web
from anyio import to_thread
from msgspec import Struct, field

from agentflow._decoding import DECODE_ERRORS
from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import error_line
from agentflow.http_server import BodyRefusedError, RequestBodies, cross_site, identify, serving
from agentflow.readers._environments import EnvironmentState
from runtimes import JsonLimits

_MAX_REQUEST_BYTES: Final = 4 << 20
"""Maximum size of a request, in bytes."""


class HostedEnvironment(Protocol):
    """A task that is being played. Its methods run in threads, one call at a time."""

    def start(self) -> EnvironmentState:
        """Return the first observation."""
        ...

    def step(self, action: Mapping[str, Any]) -> EnvironmentState:
        """Take an action and return the observation."""
        ...

    def info(self) -> object:
        """Return facts about the environment, such as its tools."""
        ...

    def evaluate(self) -> float:
        """Return the reward."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class EnvironmentType(Struct, frozen=True, kw_only=True):
    """A type of environment that a service offers."""

    tasks: Callable[[str], Sequence[str]]
    """Returns the ids of the tasks of a split."""
    make: Callable[[str], HostedEnvironment]
    """Makes the environment of a task."""


class _Request(Struct, frozen=True):
    env_type: str = "default"
    task_id: str | None = None
    instance_id: str | None = None
    messages: dict[str, Any] | list[Any] = field(default_factory=dict[str, Any])
    params: dict[str, Any] = field(default_factory=dict[str, Any])


class _Instance:
    """An open instance, which counts before it is made."""

    def __init__(self, used: float) -> None:
        self.hosted: HostedEnvironment | None = None
        self.first = EnvironmentState()
        self.lock = anyio.Lock()
        self.used = used


class _Refused(Exception):
    """A request can't be answered; status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _EnvironmentHost:
    def __init__(
        self,
        types: Mapping[str, EnvironmentType],
        *,
        address: str,
        token: str,
        most: int,
        idle_seconds: float,
        clock: Clock,
    ) -> None:
        self._types = types
        self._address = address
        self._token = token.encode()
        self._most = most
        self._idle = idle_seconds
        self._clock = clock
        self._bodies = RequestBodies(JsonLimits(max_bytes=_MAX_REQUEST_BYTES))
        self._instances: dict[str, _Instance] = {}

    async def answer(self, operation: str, request: web.Request) -> web.Response:
        try:
            if reason := cross_site(request, self._address):
                raise _Refused(403, reason)
            authorization = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            token = authorization.removeprefix(b"Bearer ")
            if self._token and not hmac.compare_digest(token, self._token):
                raise _Refused(401, "the token is missing or wrong")
            identify(request)
            try:
                async with self._bodies.read_request(request.remote or "", request) as body:
                    message = msgspec.json.decode(body, type=_Request)
            except BodyRefusedError as refused:
                raise _Refused(refused.status, str(refused)) from None
            except DECODE_ERRORS as error:
                raise _Refused(400, error_line(error)) from None
            data = await getattr(self, f"_{operation}")(message)
            return web.json_response({"success": True, "data": data})
        except _Refused as error:
            return web.json_response({"success": False, "error": str(error)}, status=error.status)
        except Exception as error:  # boundary: an environment may raise anything
            return web.json_response({"success": False, "error": error_line(error)}, status=500)

    async def close(self) -> None:
        """End all instances."""
        for id in list(self._instances):
            await self._end(id)

    async def _get_env_profile(self, message: _Request) -> list[str]:
        return list(
            await to_thread.run_sync(self._type(message).tasks, str(message.params.get("split", "train")))
        )

    async def _create(self, message: _Request) -> dict[str, Any]:
        kind = self._type(message)
        if not message.task_id or not message.instance_id:
            raise _Refused(400, "task_id and instance_id are needed")
        await self._expire()
        if message.instance_id in self._instances:
            # The answer to the first request was lost.
            async with self._used(message):
                return _described(self._instances[message.instance_id].first, message.instance_id)
        if len(self._instances) >= self._most:
            raise _Refused(503, f"{self._most} instances are open; release one")
        instance = self._instances[message.instance_id] = _Instance(self._clock.now())
        try:
            async with instance.lock:
                instance.hosted = await to_thread.run_sync(kind.make, message.task_id)
                instance.first = await to_thread.run_sync(instance.hosted.start)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._end(message.instance_id)
            raise
        return _described(instance.first, message.instance_id)

    async def _get_info(self, message: _Request) -> object:
        async with self._used(message) as hosted:
            return await to_thread.run_sync(hosted.info)

    async def _step(self, message: _Request) -> dict[str, Any]:
        if not isinstance(message.messages, dict):
            raise _Refused(400, "messages: write the action as one message")
        async with self._used(message) as hosted:
            state = await to_thread.run_sync(hosted.step, message.messages)
        return _described(state, message.instance_id or "")

    async def _evaluate(self, message: _Request) -> float:
        async with self._used(message) as hosted:
            reward = await to_thread.run_sync(hosted.evaluate)
        if not math.isfinite(reward):
            raise _Refused(500, f"the environment gave {reward} as a reward")
        return float(reward)

    async def _release(self, message: _Request) -> bool:
        await self._end(message.instance_id or "")
        return True

    async def _end(self, id: str) -> None:
        instance = self._instances.pop(id, None)
        if instance is not None:
            async with instance.lock:
                if instance.hosted is not None:
                    hosted, instance.hosted = instance.hosted, None
                    await to_thread.run_sync(hosted.close)

    async def _expire(self) -> None:
        before = self._clock.now() - self._idle
        for id in [id for id, instance in self._instances.items() if instance.used < before]:
            await self._end(id)

    def _type(self, message: _Request) -> EnvironmentType:
        if message.env_type not in self._types:
            raise _Refused(
                404, f"there is no environment {message.env_type}; known here: {', '.join(self._types)}"
            )
        return self._types[message.env_type]

    @asynccontextmanager
    async def _used(self, message: _Request) -> AsyncGenerator[HostedEnvironment]:
        instance = self._instances.get(message.instance_id or "")
        if instance is not None:
            instance.used = self._clock.now()
            async with instance.lock:
                if instance.hosted is not None:
                    yield instance.hosted
                    return
        raise _Refused(404, f"there is no instance {message.instance_id}; it was released or expired")


@asynccontextmanager
async def serve_environments(
    types: Mapping[str, EnvironmentType],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str = "",
    max_instances: int = 256,
    idle_seconds: float = 3600.0,
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncGenerator[str]:
    """Serve environments and yield the address. See docs/readers.md.

    :param types: environments by the name that a client gives as `env_type`.
    :param token: bearer token that clients must send; empty: none.
    :param max_instances: maximum number of open instances.
    :param idle_seconds: time after which an unused instance may be ended.
    """
    service = _EnvironmentHost(
        types, address=host, token=token, most=max_instances, idle_seconds=idle_seconds, clock=clock
    )
    app = web.Application()
    for operation in ("get_env_profile", "get_info", "create", "step", "evaluate", "release"):
        app.router.add_post(f"/{operation}", partial(service.answer, operation))
    async with serving(app, host, port, name="environment server") as url:
        try:
            yield url
        finally:
            with anyio.CancelScope(shield=True):
                await service.close()


def _described(state: EnvironmentState, instance: str) -> dict[str, Any]:
    return {
        "state": list(state.messages),
        "reward": state.reward,
        "is_terminated": state.done,
        "info": {**state.info, "instance_id": instance},
    }
