"""Server of tasks: sessions over HTTP, and the WebSocket protocol of OpenEnv. See docs/interop.md."""

import hmac
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import anyio
import msgspec
from aiohttp import web
from msgspec import Struct, field

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._loopback import is_loopback
from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError, error_line
from agentflow.http_server import BodyRefusedError, RequestBodies, cross_site, identify, serving
from agentflow.interop._task_host import (
    MAX_WAITING,
    WAIT_SECONDS,
    HostBusy,
    HostFailure,
    TaskHost,
    TaskScore,
    TaskSession,
)
from agentflow.telemetry import get_logger
from agentflow.trace import Task
from runtimes import JsonLimits

logger = get_logger(__name__)

MAX_BODY = 1 << 20
"""Bytes of a request or a message."""
ENVIRONMENT = "agentflow"
"""Name of the environment in OpenEnv's task API."""
_SWEEPS = 8
"""Searches for idle sessions per time limit."""
_ENDED_SESSIONS = 256
"""Sessions without a sandbox whose scores can still be read."""
_RETRY_SECONDS = "5"
"""`Retry-After` of a refusal because all sandboxes are in use."""

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class EnvironmentLimits(Struct, frozen=True, kw_only=True):
    """Limits of a server of tasks. See docs/interop.md."""

    wait_seconds: float = WAIT_SECONDS
    """Seconds for which a session waits for a free sandbox, in order of arrival."""
    waiting: int = MAX_WAITING
    """Maximum number of sessions that wait; a further one is refused at once."""
    idle_seconds: float = 600.0
    """Seconds without a request after which a session over HTTP is closed. One over a WebSocket ends with it."""
    calls: int = 500
    """Maximum number of tool calls of a session."""


class _Open(Struct):
    task: str | None = None
    number: int = 0


class _Call(Struct):
    tool: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


class _Submit(Struct):
    answer: str = ""


class _Split(Struct):
    split: str = "train"
    index: int = 0
    start: int | None = None
    stop: int | None = None


class _Message(Struct):
    type: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])


class _Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Entry:
    """An open session and the time of its last request."""

    def __init__(self, session: TaskSession) -> None:
        self.session = session
        self.used = anyio.current_time()
        self.busy = 0


class EnvironmentServer:
    """Routes of a server of tasks. See docs/interop.md."""

    def __init__(self, host: TaskHost, *, token: str, limits: EnvironmentLimits | None = None) -> None:
        """:param token: token that every request must carry; empty: none."""
        self._host = host
        self._token = token
        self._limits = limits or EnvironmentLimits()
        self._sessions: dict[str, _Entry] = {}
        self._bodies = RequestBodies(JsonLimits(max_bytes=MAX_BODY))

    def app(self, host: str) -> web.Application:
        """Return the application.

        :param host: address that it will listen on. On a loopback address, requests for another host are refused: they
            come from a web page whose name was made to resolve to this machine.
        """
        app = web.Application(middlewares=[self._guard(host)])
        task_api = f"/{ENVIRONMENT}"
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metadata", self._metadata),
                web.get("/schema", self._schema),
                web.get("/list_environments", self._environments),
                web.get(f"{task_api}/splits", self._splits),
                web.post(f"{task_api}/tasks", self._tasks),
                web.post(f"{task_api}/num_tasks", self._number_of_tasks),
                web.post(f"{task_api}/task", self._task),
                web.post(f"{task_api}/task_range", self._task_range),
                web.post("/sessions", self._open),
                web.post("/sessions/{session}/call", self._call),
                web.post("/sessions/{session}/submit", self._submit),
                web.delete("/sessions/{session}", self._close),
                web.get("/ws", self._socket),
            ]
        )
        return app

    async def close_idle(self) -> None:
        """Close sessions whose client has gone, until cancelled."""
        while True:
            await anyio.sleep(self._limits.idle_seconds / _SWEEPS)
            oldest = anyio.current_time() - self._limits.idle_seconds
            for name, entry in list(self._sessions.items()):
                if not entry.busy and entry.used < oldest:
                    del self._sessions[name]
                    await entry.session.close()

    def _guard(self, host: str) -> Any:  # noqa: ANN401 - aiohttp's decorator
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                if reason := cross_site(request, host):
                    raise _Refusal(403, reason)
                if self._token and not self._knows(request.headers):
                    raise _Refusal(401, "the token is missing or wrong; send Authorization: Bearer TOKEN")
                identify(request)
                return await handler(request)
            except _Refusal as refusal:
                return web.json_response({"error": str(refusal)}, status=refusal.status)
            except HostBusy as busy:
                headers = {"Retry-After": _RETRY_SECONDS}
                return web.json_response({"error": str(busy)}, status=503, headers=headers)
            except HostFailure as failure:
                return web.json_response({"error": str(failure)}, status=409)
            except web.HTTPException as error:
                return web.json_response({"error": error.reason}, status=error.status)
            except ConnectionError:
                raise
            except Exception as error:  # The boundary of the server: the client gets one line.
                logger.exception("a request failed", path=request.path)
                return web.json_response({"error": error_line(error)}, status=500)

        return guard

    def _knows(self, headers: Mapping[str, str]) -> bool:
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode(errors="surrogateescape"), self._token.encode()
        )

    async def _read(self, request: web.Request, kind: type[Any]) -> Any:  # noqa: ANN401 - typed by `kind`
        try:
            async with self._bodies.read_request(request.remote or "", request) as body:
                return msgspec.json.decode(body or b"{}", type=kind)
        except BodyRefusedError as refused:
            raise _Refusal(refused.status, str(refused)) from None
        except DECODE_ERRORS as error:
            raise _Refusal(400, f"the body can't be used: {decode_reason(error)}") from None

    # Tasks

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def _metadata(self, request: web.Request) -> web.Response:
        text = f"{len(self._host.tasks)} tasks of {self._host.name} with sandboxes"
        return web.json_response({"name": ENVIRONMENT, "description": text})

    async def _schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": ACTION, "observation": OBSERVATION, "state": STATE})

    async def _environments(self, request: web.Request) -> web.Response:
        return web.json_response([ENVIRONMENT])

    async def _splits(self, request: web.Request) -> web.Response:
        return web.json_response([{"name": "train", "type": "train"}])

    async def _tasks(self, request: web.Request) -> web.Response:
        return web.json_response({"tasks": self._listed(0, None), "env_name": ENVIRONMENT})

    async def _number_of_tasks(self, request: web.Request) -> web.Response:
        return web.json_response({"num_tasks": len(self._host.tasks)})

    async def _task(self, request: web.Request) -> web.Response:
        message = await self._read(request, _Split)
        tasks = self._listed(message.index, message.index + 1) if message.index >= 0 else []
        if not tasks:
            raise _Refusal(404, f"index: there is no task {message.index}")
        return web.json_response({"task": tasks[0]})

    async def _task_range(self, request: web.Request) -> web.Response:
        message = await self._read(request, _Split)
        return web.json_response({"tasks": self._listed(message.start or 0, message.stop)})

    def _listed(self, start: int, stop: int | None) -> list[dict[str, Any]]:
        tasks = list(self._host.tasks.values())[start:stop]
        return [
            {"id": task.id, "question": task.question, "source": task.metadata.get("source", "")}
            for task in tasks
        ]

    # Sessions over HTTP

    async def _open(self, request: web.Request) -> web.Response:
        message = await self._read(request, _Open)
        task = self._host.find(message.task, message.number)
        name = secrets.token_urlsafe(24)
        session = await _opened(self._host, task, self._limits)
        self._sessions[name] = _Entry(session)
        ended = [old for old, entry in self._sessions.items() if entry.session.ended]
        for old in ended[:-_ENDED_SESSIONS]:
            del self._sessions[old]
        return web.json_response(
            {"session": name, "task": task.id, "question": task.question, "tools": session.tools}
        )

    async def _call(self, request: web.Request) -> web.Response:
        message = await self._read(request, _Call)
        async with self._entry(request) as session:
            self._check_calls(session)
            outcome = await session.call(message.tool, message.arguments)
        return web.json_response(msgspec.to_builtins(outcome))

    async def _submit(self, request: web.Request) -> web.Response:
        message = await self._read(request, _Submit)
        async with self._entry(request) as session:
            score = await session.submit(message.answer)
        return web.json_response(msgspec.to_builtins(score))

    async def _close(self, request: web.Request) -> web.Response:
        entry = self._sessions.pop(request.match_info["session"], None)
        if entry is not None:
            await entry.session.close()
        return web.json_response({})

    @asynccontextmanager
    async def _entry(self, request: web.Request) -> AsyncGenerator[TaskSession]:
        entry = self._sessions.get(request.match_info["session"])
        if entry is None:
            raise _Refusal(410, "the session has ended; open another one")
        entry.busy += 1
        try:
            yield entry.session
        finally:
            entry.busy -= 1
            entry.used = anyio.current_time()

    def _check_calls(self, session: TaskSession) -> None:
        if session.calls >= self._limits.calls:
            raise _Refusal(429, f"the session has made {self._limits.calls} calls; submit an answer")

    # OpenEnv

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        # A client that answers no ping for as long is gone.
        socket = web.WebSocketResponse(max_msg_size=MAX_BODY, heartbeat=self._limits.idle_seconds / 2)
        await socket.prepare(request)
        episode = _OpenEnvEpisode(self._host, self._limits)
        send, receive = anyio.create_memory_object_stream[aiohttp.WSMessage](1)

        async def answer() -> None:
            # An answer to a client that has left is lost.
            with suppress(ConnectionError):
                async for message in receive:
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        await socket.send_json(_error("messages are JSON texts", "INVALID_JSON"))
                    elif (reply := await episode.answer(message.data)) is None:
                        break
                    else:
                        await socket.send_json(reply)
            group.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as group, send, receive:
                group.start_soon(answer)
                # Received also while a message is answered: this answers pings, and notices that the client has left.
                async for message in socket:
                    await send.send(message)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await episode.close()
            await socket.close()
        return socket


class _OpenEnvEpisode:
    """Episodes of a WebSocket, one at a time."""

    def __init__(self, host: TaskHost, limits: EnvironmentLimits) -> None:
        self._host = host
        self._limits = limits
        self._session: TaskSession | None = None
        self._id = ""
        self._done = False
        self._resets = 0

    async def answer(self, text: str) -> dict[str, Any] | None:
        """Return the reply to a message; `None`: the client is done."""
        try:
            message = msgspec.json.decode(text.encode(), type=_Message)
        except msgspec.ValidationError as error:
            return _error(f"a message has a type and data: {error}", "VALIDATION_ERROR")
        except DECODE_ERRORS as error:
            return _error(str(error), "INVALID_JSON")
        try:
            match message.type:
                case "reset":
                    return await self._reset(message.data)
                case "step":
                    return await self._step(message.data)
                case "state":
                    return {"type": "state", "data": self._state()}
                case "close":
                    return None
                case _:
                    return _error(f"{message.type[:100]}: send reset, step, state or close", "UNKNOWN_TYPE")
        except HostBusy as busy:
            return _error(str(busy), "CAPACITY_REACHED")
        except (_Refusal, HostFailure) as failure:
            return _error(str(failure), "EXECUTION_ERROR")
        except Exception as error:  # The boundary of the server: the client gets one line.
            logger.exception("an episode failed")
            return _error(error_line(error), "EXECUTION_ERROR")

    async def _reset(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        task, seed = fields.get("task"), fields.get("seed")
        if not isinstance(task, str | None) or not isinstance(seed, int | None):
            raise _Refusal(400, "reset: task is the id of a task, and seed a number")
        next_task = self._host.find(task, self._resets if seed is None else seed)
        await self.close()
        self._session = await _opened(self._host, next_task, self._limits)
        self._resets += 1
        self._done = False
        self._id = str(fields.get("episode_id") or secrets.token_hex(8))
        return _observation({"text": next_task.question, "task": next_task.id, "tools": self._session.tools})

    async def _step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if self._session is None or self._done:
            raise _Refusal(409, "the episode has ended; send reset")
        answer, tool, arguments = action.get("answer"), action.get("tool"), action.get("arguments", {})
        if isinstance(answer, str):
            self._done = True
            return _scored(await self._session.submit(answer))
        if not isinstance(tool, str) or not is_object(arguments):
            raise _Refusal(400, 'an action is {"tool": NAME, "arguments": {…}} or {"answer": TEXT}')
        if self._session.calls >= self._limits.calls:
            raise _Refusal(429, f"the session has made {self._limits.calls} calls; send an answer")
        outcome = await self._session.call(tool, arguments)
        return _observation(msgspec.to_builtins(outcome))

    def _state(self) -> dict[str, Any]:
        session = self._session
        return {
            "episode_id": self._id or None,
            "step_count": 0 if session is None else session.calls + self._done,
            "task": None if session is None else session.task.id,
        }

    async def close(self) -> None:
        """Close the sandbox of the episode."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def _opened(host: TaskHost, task: Task, limits: EnvironmentLimits) -> TaskSession:
    return await host.open(task, wait_seconds=limits.wait_seconds, max_waiting=limits.waiting)


def _observation(observation: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": dict(observation), "reward": None, "done": False}}


def _scored(score: TaskScore) -> dict[str, Any]:
    text = score.failure or "; ".join(score.reasons) or "done"
    observation = {"text": text, "failed": bool(score.failure)}
    return {"type": "observation", "data": {"observation": observation, "reward": score.reward, "done": True}}


def _error(message: str, code: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}


def _schema(title: str, required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "type": "object", "properties": properties, "required": required}


_TEXT = {"type": "string"}
ACTION = _schema(
    "TaskAction",
    [],
    tool={**_TEXT, "description": "Name of a tool to call."},
    arguments={"type": "object", "description": "Its arguments."},
    answer={**_TEXT, "description": "The answer instead of a call; it ends the episode."},
)
OBSERVATION = _schema(
    "TaskObservation",
    ["text"],
    text={**_TEXT, "description": "The task, the result of a call, or the reasons of the reward."},
    failed={"type": "boolean", "description": "The call failed."},
    images={"type": "array", "description": "Images of a result: `mime`, and `data` in base64."},
    task={**_TEXT, "description": "Id of the task, after a reset."},
    tools={"type": "array", "description": "Tools in the format of chat completions, after a reset."},
)
STATE = _schema("TaskState", [], episode_id=_TEXT, step_count={"type": "integer"}, task=_TEXT)


@asynccontextmanager
async def serve_tasks(
    host: TaskHost,
    *,
    address: str = "127.0.0.1",
    port: int = 0,
    token: str,
    limits: EnvironmentLimits | None = None,
) -> AsyncGenerator[str]:
    """Serve tasks with their sandboxes, and yield the URL. See docs/interop.md.

    :param token: token that every request must carry; empty: none, if only this machine can connect.
    :raises ConfigurationError: if the address can't be used.
    """
    if not token and not is_loopback(address):
        raise ConfigurationError(f"host: {address} is reachable from other machines; set a token")
    server = EnvironmentServer(host, token=token, limits=limits)
    async with AsyncExitStack() as stack:
        try:
            url = await stack.enter_async_context(
                serving(server.app(address), address, port, name="serve-env")
            )
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"host: {address}:{port} can't be used: {error_line(error)}; choose another port"
            ) from None
        # An error of the caller stays what it is, without a group around it.
        raised: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(server.close_idle)
            try:
                yield url
            except Exception as error:  # Raised again below.
                raised = error
            group.cancel_scope.cancel()
        if raised is not None:
            raise raised


def verifiers_package() -> Path:
    """Return the folder of the package `agentflow-tasks`, to install beside verifiers. See docs/interop.md."""
    return Path(__file__).parent / "_inside"
