"""Environment service: the client of a server that offers tasks, plays them and scores them, and the reader of its tasks.

Each operation is a `POST` of one JSON object: `get_env_profile`, `get_info`, `create`, `step`, `evaluate`, `release`.
"""

import math
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import anyio
import msgspec
from msgspec import Struct, field

from agentflow._http_client import AnswerRefused, open_session, read_answer
from agentflow._typeguards import is_list, is_object
from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import AgentFlowError, ConfigurationError, error_line
from agentflow.readers._reading import Located, refuse_options, take_option
from agentflow.readers._settings import ParsedSource, ReaderSettings
from agentflow.runs import run_sync
from agentflow.trace import Task
from runtimes import FrameError, decode_untrusted

if TYPE_CHECKING:
    import aiohttp

SOURCE: Final = "environment"
"""`source` of tasks of a service, and the field that names their environment."""
_MAX_ANSWER_BYTES: Final = 16 << 20
"""Maximum size of an answer, in bytes."""
_EMPTY: Final[Mapping[str, object]] = {
    "env_type": "default",
    "task_id": None,
    "instance_id": None,
    "messages": dict[str, Any](),
    "params": dict[str, Any](),
}
"""Fields of a request."""
_OPTIONS: Final = ("env_type", "split", "questions", "timeout", "tries", "params")
_REPEATABLE: Final = frozenset({"get_env_profile", "get_info", "create", "evaluate", "release"})
"""Operations that may be repeated after a lost answer; a step may not."""


class EnvironmentFailure(AgentFlowError):
    """An environment service can't be reached, or gave an unusable answer."""


class EnvironmentState(Struct, frozen=True, kw_only=True):
    """Observation of an environment after its creation or a step."""

    messages: tuple[dict[str, Any], ...] = ()
    """Messages for the agent, in the chat format."""
    reward: float = 0.0
    """Reward of the step."""
    done: bool = False
    """The task has ended."""
    info: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further facts."""

    @property
    def text(self) -> str:
        """Texts of the messages."""
        return "\n\n".join(str(message.get("content") or "") for message in self.messages)


class EnvironmentService:
    """Client of an environment service. See docs/readers.md.

    Example::

        async with EnvironmentService("http://127.0.0.1:8000") as service:
            async with service.open(task) as world:
                state = await world.step({"role": "assistant", "content": "look"})
                reward = await world.evaluate()
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 300.0,
        tries: int = 3,
        token: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Configure it; `async with` opens its connections.

        :param timeout: time limit of a request, in seconds.
        :param tries: maximum number of requests for an operation. A step is repeated only if it did not arrive.
        :param token: sent as a bearer token, if the service wants one.
        :raises ConfigurationError: if the URL or a number can't be used.
        """
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"environment:{url}: no URL with a scheme; write http://HOST:PORT")
        if timeout <= 0 or tries < 1:
            raise ConfigurationError(f"environment:{url}: timeout and tries must be above 0")
        self.url = url.rstrip("/")
        """Its address."""
        self._timeout = timeout
        self._tries = tries
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        import aiohttp

        session = open_session(cookie_jar=aiohttp.DummyCookieJar(), headers=self._headers)
        self._session = await self._open.enter_async_context(session)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._open.aclose()

    async def task_ids(
        self, env_type: str, *, split: str = "train", params: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Return the ids of the tasks of an environment.

        :raises EnvironmentFailure: if the service fails, or the ids are no distinct texts.
        """
        ids = await self._ask("get_env_profile", env_type=env_type, params={"split": split, **(params or {})})
        if not is_list(ids) or not all(isinstance(id, str) and id for id in ids):
            raise self._refusal("get_env_profile", "gave no list of task ids")
        return list(ids)

    async def create(
        self, env_type: str, task_id: str, *, instance: str = "", params: Mapping[str, Any] | None = None
    ) -> tuple[str, EnvironmentState]:
        """Create an instance of a task; return its id and its first observation.

        :param instance: id of the instance; empty: a random one.
        :raises EnvironmentFailure: if the service fails.
        """
        wanted = instance or uuid4().hex
        made = await self._ask(
            "create", env_type=env_type, task_id=task_id, instance_id=wanted, params=params
        )
        state = self._state("create", made)
        instance_id: object = state.info.get("instance_id")
        return (instance_id if isinstance(instance_id, str) and instance_id else wanted), state

    async def info(
        self, instance: str, *, messages: object = None, params: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 - JSON
        """Return the service's facts about an instance, such as its tools.

        :raises EnvironmentFailure: if the service fails.
        """
        return await self._ask("get_info", instance_id=instance, messages=messages, params=params)

    async def step(
        self, instance: str, action: Mapping[str, Any], *, params: Mapping[str, Any] | None = None
    ) -> EnvironmentState:
        """Send an action, in the form of a message, and return the observation.

        :raises EnvironmentFailure: if the service fails.
        """
        return self._state(
            "step", await self._ask("step", instance_id=instance, messages=action, params=params)
        )

    async def evaluate(
        self, instance: str, *, messages: object = None, params: Mapping[str, Any] | None = None
    ) -> float:
        """Return the reward of an instance.

        :raises EnvironmentFailure: if the service fails, or gives no finite number.
        """
        reward = await self._ask("evaluate", instance_id=instance, messages=messages, params=params)
        return self._number("evaluate", reward)

    async def release(self, instance: str) -> None:
        """End an instance.

        :raises EnvironmentFailure: if the service fails.
        """
        await self._ask("release", instance_id=instance)

    @asynccontextmanager
    async def open(self, task: Task, *, keep: bool = False) -> AsyncGenerator["EnvironmentInstance"]:
        """Create an instance of a task and release it with the block.

        :param keep: leave it open, unless the block raises: a judge evaluates it later.
        :raises EnvironmentFailure: if the service fails, or the task is of another source.
        """
        origin: object = task.metadata.get(SOURCE)
        if not is_object(origin) or not all(
            isinstance(origin.get(name), str) for name in ("env_type", "task_id")
        ):
            raise EnvironmentFailure(
                f"{task.id} is not a task of an environment service; read it with environment:URL"
            )
        made, state = await self.create(origin["env_type"], origin["task_id"])
        done = False
        try:
            yield EnvironmentInstance(self, made, state)
            done = True
        finally:
            if not (keep and done):
                # The service ends forgotten instances by itself.
                with anyio.CancelScope(shield=True), suppress(EnvironmentFailure):
                    await self.release(made)

    async def _ask(self, operation: str, **request: object) -> Any:  # noqa: ANN401 - JSON
        fields = {name: value for name, value in request.items() if value is not None}
        body = msgspec.json.encode({**_EMPTY, **fields})
        problem = ""
        for attempt in range(self._tries):
            if attempt:
                await self._clock.sleep(2.0 ** (attempt - 1))
            status, payload, problem, repeatable = await self._request(operation, body)
            if not problem:
                return await self._data(operation, status, payload)
            if not repeatable:
                break
        raise self._refusal(operation, problem)

    async def _request(self, operation: str, body: bytes) -> tuple[int, bytes, str, bool]:
        """Return the status and the answer, or the problem and whether the operation may be repeated."""
        import aiohttp

        if self._session is None:
            raise self._refusal(operation, "its client is not open; use async with")
        try:
            async with self._session.post(
                f"{self.url}/{operation}",
                data=body,
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self._timeout),
            ) as answer:
                payload = await read_answer(answer, _MAX_ANSWER_BYTES)
                if answer.status in (429, 502, 503, 504):
                    return 0, b"", f"it answered {answer.status}", True
                return answer.status, payload, "", False
        except TimeoutError:
            return 0, b"", f"it did not answer within {self._timeout:g} s", operation in _REPEATABLE
        except aiohttp.ClientConnectorError as error:
            return 0, b"", f"it can't be reached ({error_line(error)})", True
        except AnswerRefused as refused:
            return 0, b"", str(refused), False
        except aiohttp.ClientError as error:
            return 0, b"", error_line(error), operation in _REPEATABLE

    async def _data(self, operation: str, status: int, payload: bytes) -> Any:  # noqa: ANN401 - JSON
        try:
            read: object = await decode_untrusted(payload, msgspec.json.decode)
        except FrameError as error:
            raise self._refusal(operation, f"its answer is unusable: {error}") from None
        if not is_object(read):
            raise self._refusal(operation, "its answer is no JSON object")
        if status != 200 or read.get("success") is False:
            problem: object = (
                read.get("error") or read.get("detail") or read.get("message") or read.get("data")
            )
            raise self._refusal(operation, f"it answered {status}: {' '.join(str(problem).split())[:300]}")
        return read.get("data", read.get("task_ids"))

    def _state(self, operation: str, payload: object) -> EnvironmentState:
        if not is_object(payload):
            raise self._refusal(operation, "gave no state")
        state: object = payload.get("state")
        messages = state if is_list(state) else [state] if state is not None else []
        observed = tuple(message for message in messages if is_object(message))
        if len(observed) < len(messages):
            raise self._refusal(operation, "gave a state that is no list of messages")
        reward = payload.get("reward")
        info: object = payload.get("info")
        return EnvironmentState(
            messages=observed,
            reward=0.0 if reward is None else self._number(operation, reward),
            done=payload.get("is_terminated") is True,
            info=info if is_object(info) else {},
        )

    def _number(self, operation: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._refusal(operation, f"gave {str(value)[:80]} as a reward, not a finite number")
        return float(value)

    def _refusal(self, operation: str, problem: str) -> EnvironmentFailure:
        return EnvironmentFailure(f"environment:{self.url}: {operation}: {problem}")


class EnvironmentInstance:
    """An open instance of a task."""

    def __init__(self, service: EnvironmentService, id: str, state: EnvironmentState) -> None:
        self.id = id
        """Its id."""
        self.state = state
        """Its last observation."""
        self._service = service

    async def step(self, action: Mapping[str, Any]) -> EnvironmentState:
        """Send an action, in the form of a message, and return the observation.

        :raises EnvironmentFailure: if the service fails.
        """
        self.state = await self._service.step(self.id, action)
        return self.state

    async def info(self) -> Any:  # noqa: ANN401 - JSON
        """Return the service's facts about the instance, such as its tools.

        :raises EnvironmentFailure: if the service fails.
        """
        return await self._service.info(self.id)

    async def evaluate(self, messages: object = None) -> float:
        """Return the reward.

        :raises EnvironmentFailure: if the service fails, or gives no finite number.
        """
        return await self._service.evaluate(self.id, messages=messages)


def read_environment(source: ParsedSource, settings: ReaderSettings) -> Iterator[Located]:
    """Iterate over the tasks of a service: `environment:URL?env_type=NAME&split=train`.

    With `questions=true`, an instance of each task is created and released to read its first observation.

    :raises ConfigurationError: one line, if the service fails or an option is unknown.
    """
    env_type = take_option(source, "env_type", str, "default")
    split = take_option(source, "split", str, "train")
    asks = take_option(source, "questions", bool, False)
    params = take_option(source, "params", dict[str, Any], {})
    timeout, tries = take_option(source, "timeout", float, 300.0), take_option(source, "tries", int, 3)
    refuse_options(source, _OPTIONS)

    async def ids() -> list[str]:
        async with EnvironmentService(source.target, timeout=timeout, tries=tries) as service:
            return await service.task_ids(env_type, split=split, params=params)

    async def question(id: str) -> str:
        async with EnvironmentService(source.target, timeout=timeout, tries=tries) as service:
            instance, state = await service.create(env_type, id)
            await service.release(instance)
            return state.text

    try:
        for number, id in enumerate(run_sync(ids), 1):
            text = run_sync(question, id).strip() if asks else ""
            origin = {"env_type": env_type, "task_id": id, "split": split}
            task = Task(index=0, id=id, question=text or id, metadata={"source": SOURCE, SOURCE: origin})
            yield f"environment:{source.target}: task {number}", task
    except EnvironmentFailure as error:
        raise ConfigurationError(str(error)) from None
