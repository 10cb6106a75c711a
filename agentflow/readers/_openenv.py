"""OpenEnv environments: a client of their WebSocket protocol, and a reader of their tasks."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import anyio
from msgspec import Struct

from agentflow._decoding import JsonError, decode_json
from agentflow._http_client import MAX_ANSWER_BYTES, open_session, read_answer
from agentflow._typeguards import is_list, is_object
from agentflow.errors import AgentFlowError, ConfigurationError, error_line
from agentflow.readers._reading import Located, take_option
from agentflow.readers._settings import ParsedSource, ReaderSettings
from agentflow.runs import run_sync
from agentflow.trace import Task

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

SOURCE: Final = "openenv"
"""`source` of these tasks, and the field with the environment and the arguments of its reset."""
_SECONDS: Final = 30.0
_REASON_CHARS: Final = 500
_TIMEOUT: Final = aiohttp.ClientTimeout(total=_SECONDS)


class OpenEnvFailure(AgentFlowError):
    """An OpenEnv environment can't be reached, or refused a request. One line."""


class OpenEnvStep(Struct, frozen=True):
    """Observation after a reset or a step."""

    observation: dict[str, Any]
    """Observation."""
    reward: float | None
    """Reward of the last action; `None`: none."""
    done: bool
    """The episode has ended."""


class OpenEnvClient:
    """Client of an OpenEnv environment: one episode at a time over one WebSocket, whose end frees the environment.

    Example::

        async with OpenEnvClient("http://127.0.0.1:8000") as environment:
            step = await environment.reset(seed=1)
            step = await environment.step({"message": "hello"})
    """

    def __init__(self, url: str, *, token: str = "", seconds: float = 300.0) -> None:
        """Describe it; nothing is connected yet.

        :param token: token that the server asks for; empty: none.
        :param seconds: time limit of a step.
        """
        self.url = url.rstrip("/")
        """Address of the environment."""
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._seconds = seconds
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._asking = anyio.Lock()
        self._group: TaskGroup
        self._received: MemoryObjectReceiveStream[str]
        self._interrupted = False

    async def __aenter__(self) -> Self:
        """Connect.

        :raises OpenEnvFailure: if the environment can't be reached.
        """
        self._session = open_session(headers=self._headers)
        try:
            with anyio.fail_after(_SECONDS):
                self._socket = await self._session.ws_connect(
                    f"{self.url}/ws", max_msg_size=MAX_ANSWER_BYTES, heartbeat=30.0
                )
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            await self._session.close()
            raise OpenEnvFailure(f"openenv:{self.url}: can't be reached: {error_line(error)}") from None
        # Read all the time: a server closes a connection whose pings nobody answers while the model thinks.
        received, self._received = anyio.create_memory_object_stream[str](1)
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self._read, self._socket, received)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the episode and disconnect."""
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        self._received.close()
        with anyio.CancelScope(shield=True):
            if self._socket is not None:
                await self._socket.close()
            if self._session is not None:
                await self._session.close()

    async def _read(
        self, socket: aiohttp.ClientWebSocketResponse, received: "MemoryObjectSendStream[str]"
    ) -> None:
        async with received:
            # A lost connection ends the stream; the pending request reports it.
            with suppress(aiohttp.ClientError, ConnectionError):
                while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
                    await received.send(message.data)

    async def schema(self) -> dict[str, Any]:
        """Return the JSON schema of actions.

        :raises OpenEnvFailure: if the environment does not give it.
        """
        assert self._session is not None, "entered before"
        try:
            async with self._session.get(f"{self.url}/schema", timeout=_TIMEOUT) as response:
                decoded: object = decode_json(await read_answer(response))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise OpenEnvFailure(f"openenv:{self.url}: no schema: {error_line(error)}") from None
        action = decoded.get("action") if is_object(decoded) else None
        if not is_object(action):
            raise OpenEnvFailure(f"openenv:{self.url}: /schema has no schema of actions")
        return action

    async def reset(self, **arguments: object) -> OpenEnvStep:
        """Begin an episode; the arguments are those of the environment, often `seed`.

        :raises OpenEnvFailure: if the environment refuses.
        """
        return _step(self.url, await self._ask({"type": "reset", "data": arguments}))

    async def step(self, action: Mapping[str, object]) -> OpenEnvStep:
        """Do an action.

        :raises OpenEnvFailure: if the environment refuses.
        """
        return _step(self.url, await self._ask({"type": "step", "data": dict(action)}))

    async def state(self) -> dict[str, Any]:
        """Return the state of the episode, such as the number of its steps.

        :raises OpenEnvFailure: if the environment refuses.
        """
        return await self._ask({"type": "state"})

    async def _ask(self, message: Mapping[str, object]) -> dict[str, Any]:
        assert self._socket is not None, "entered before"
        async with self._asking:
            if self._interrupted:
                # Its late answer would be taken for that of this one.
                raise OpenEnvFailure(f"openenv:{self.url}: an earlier request was interrupted; connect again")
            self._interrupted = True
            try:
                with anyio.fail_after(self._seconds):
                    await self._socket.send_json(message)
                    received = await self._received.receive()
            except TimeoutError:
                raise OpenEnvFailure(
                    f"openenv:{self.url}: no answer to {message['type']} within {self._seconds:g} seconds"
                ) from None
            except anyio.EndOfStream:
                raise OpenEnvFailure(f"openenv:{self.url}: the environment closed the connection") from None
            except (aiohttp.ClientError, ConnectionError) as error:
                raise OpenEnvFailure(f"openenv:{self.url}: {error_line(error)}") from None
            self._interrupted = False
        try:
            answer: object = decode_json(received)
        except JsonError as error:
            raise OpenEnvFailure(f"openenv:{self.url}: the answer is {error}") from None
        data = answer.get("data") if is_object(answer) else None
        if not is_object(answer) or not is_object(data):
            raise OpenEnvFailure(f"openenv:{self.url}: the answer has no data")
        if answer.get("type") == "error":
            reason = " ".join(str(data.get("message", "refused")).split())[:_REASON_CHARS]
            raise OpenEnvFailure(f"openenv:{self.url}: {reason}")
        return data


def _step(url: str, data: dict[str, Any]) -> OpenEnvStep:
    observation, reward = data.get("observation"), data.get("reward")
    if not is_object(observation) or not isinstance(reward, int | float | None):
        raise OpenEnvFailure(f"openenv:{url}: the answer is no observation with a reward")
    return OpenEnvStep(observation, None if reward is None else float(reward), bool(data.get("done")))


def read_openenv(source: ParsedSource, settings: ReaderSettings) -> Iterator[Located]:
    """Iterate over the tasks of an environment: `openenv:URL`, or over seeds: `openenv:URL?size=100&seed=1`.

    Without `size` the environment must list its tasks. `token_env` names the environment variable with its token; other
    options are arguments of its reset.

    :raises ConfigurationError: one line, if it can't be reached, or lists no tasks.
    """
    url = source.target.rstrip("/")
    size, seed = take_option(source, "size", int, 0), take_option(source, "seed", int, 0)
    variable = take_option(source, "token_env", str, "")
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"openenv:{url}: no URL with a scheme; write http://HOST:PORT")
    if size:
        for number in range(size):
            reset = {"seed": seed + number, **source.options}
            yield _task(url, variable, f"seed/{seed + number}", "", reset)
        return
    split = take_option(source, "split", str, "train")
    for name in _texts(_get(url, variable, "/list_environments"), url):
        listed = _get(url, variable, f"/{name}/tasks", {"split": split})
        tasks = listed.get("tasks") if is_object(listed) else None
        for number, task in enumerate(tasks if is_list(tasks) else []):
            row = task if is_object(task) else {}
            identifier = str(row.get("id", number))
            reset = {"task": row.get("id", number), **source.options}
            yield _task(url, variable, identifier, str(row.get("question", "")), reset)


def open_openenv(task: Task) -> OpenEnvClient:
    """Return the client of the environment of a task. See docs/interop.md.

    :raises OpenEnvFailure: if the task is of another reader.
    """
    origin = task.metadata.get(SOURCE)
    if not is_object(origin):
        raise OpenEnvFailure(f"{task.id} is not a task of OpenEnv; read it with openenv:URL")
    return OpenEnvClient(str(origin["url"]), token=_token(str(origin.get("token_env", ""))))


def _token(variable: str) -> str:
    return os.environ.get(variable, "") if variable else ""


def _task(url: str, variable: str, identifier: str, question: str, reset: dict[str, Any]) -> Located:
    return (
        f"openenv:{url}: task {identifier}",
        Task(
            index=0,
            id=identifier,
            question=question or f"An episode of {url}",
            metadata={"source": SOURCE, SOURCE: {"url": url, "token_env": variable, "reset": reset}},
        ),
    )


def _texts(task_names: object, url: str) -> list[str]:
    if not is_list(task_names) or not task_names:
        raise ConfigurationError(f"openenv:{url}: the environment lists no tasks; set size to play by seeds")
    return [str(name) for name in task_names]


def _get(url: str, variable: str, path: str, body: Mapping[str, object] | None = None) -> object:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if token := _token(variable):
        headers["Authorization"] = f"Bearer {token}"

    async def answer() -> tuple[int, bytes]:
        method = "GET" if data is None else "POST"
        async with (
            open_session(headers=headers, timeout=_TIMEOUT) as session,
            session.request(method, url + path, data=data) as response,
        ):
            return response.status, await read_answer(response)

    try:
        status, content = run_sync(answer)
        if status < 400:
            return decode_json(content)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ConfigurationError(f"openenv:{url}: can't be read: {error_line(error)}") from None
    if status == 404:
        return []
    raise ConfigurationError(f"openenv:{url}: {path}: status {status}")
