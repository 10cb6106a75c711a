"""Resources of a run: models with their budgets, prompts and unusable answers, and a pool of sandboxes, opened by its supervisor."""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from hashlib import sha256
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

import anyio
import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from agentflow.actors import ChildSpec, Context, ExitReason, StartFailed, Supervisor
from agentflow.errors import (
    AgentFlowError,
    ErrorKind,
    ModelFailure,
    ModelFailureKind,
    RunStopped,
    StopCause,
    ToolFailure,
    WorkPostponed,
    unwrap_group,
)
from agentflow.journal import Page, Run
from agentflow.models import (
    Accounts,
    Call,
    Completion,
    ImagePart,
    Message,
    Model,
    ModelEndpoints,
    ModelSettings,
    ModelWrapper,
    OpenModel,
    Part,
    Prices,
    RateLimiter,
    Statistics,
    TextPart,
    ToolReply,
    make_model,
)
from agentflow.runs._config import RunConfig
from agentflow.sandbox import Sandbox, Tool
from agentflow.trace import Blob, Failure, Seed, Usage

T = TypeVar("T")

CLOSE_SECONDS = 30.0
"""Time to close: a server ends its sessions, a journal writes its queue."""


class _Resource(Generic[T]):
    """Child that keeps a context manager open until it is stopped."""

    def __init__(self, opens: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._opens = opens
        self.value: T

    async def run(self, context: Context) -> None:
        """Open it, wait for the stop request, close it."""
        stop = anyio.Event()
        context.on_stop(stop.set)
        async with self._opens() as self.value:
            context.ready()
            await stop.wait()


async def open_supervised(
    supervisor: Supervisor, id: str, opens: Callable[[], AbstractAsyncContextManager[T]]
) -> T:
    """Open a resource as a child of the supervisor and return it.

    :raises AgentFlowError: the error raised while opening it.
    """
    child = _Resource(opens)
    spec = ChildSpec(id=id, start=lambda: child, shutdown=CLOSE_SECONDS, start_timeout=CLOSE_SECONDS * 4)
    await start_child(supervisor, spec)
    return child.value


async def start_child(supervisor: Supervisor, spec: ChildSpec) -> None:
    """Start a child; if it fails with an `AgentFlowError`, raise that instead of `StartFailed`.

    :raises AgentFlowError: the reason that it did not start.
    """
    try:
        await supervisor.start_child(spec)
    except StartFailed as failed:
        raise _cause(failed) from failed


def _cause(failed: StartFailed) -> AgentFlowError:
    error: Exception = failed
    while (
        isinstance(error, StartFailed) and isinstance(error.why, ExitReason) and error.why.error is not None
    ):
        error = unwrap_group(error.why.error)
    return error if isinstance(error, AgentFlowError) else failed


REFUSALS = 3
"""Number of refused calls, or of seeds without a usable answer, after which a run ends that has none of that role yet."""


class PostponingModel(ModelWrapper):
    """Model of a run: a call that may succeed later postpones its seed, instead of becoming part of its result.

    So does a refused call as long as none of its role was answered: the settings are wrong, not the call.
    """

    def __init__(self, model: OpenModel, accounts: Accounts) -> None:
        super().__init__(model)
        self._open = model
        self._accounts = accounts
        self._refused = 0

    async def __aenter__(self) -> Self:
        await self._open.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    def statistics(self) -> Statistics:
        """Return the counters and limits of the model."""
        return self._open.statistics()

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call.

        :raises WorkPostponed: if it fails for the moment.
        """
        try:
            completion = await self._open.complete(call)
        except ModelFailure as failure:
            if (stopped := self._stopped_by(failure, call.role)) is not None:
                raise stopped from failure
            raise
        except AgentFlowError:
            raise
        except Exception as error:  # boundary: a model may be anyone's code
            message = f"{self.name} crashed: {type(error).__name__}: {error}"
            raise WorkPostponed(StopCause.MODEL, message, kind=ModelFailureKind.UNAVAILABLE) from error
        self._accounts.answered.add(call.role)
        return completion

    def _stopped_by(self, failure: ModelFailure, role: str) -> RunStopped | None:
        message = f"{self.name}: {failure.message}"
        if failure.kind.is_temporary:
            return WorkPostponed(StopCause.MODEL, message, kind=failure.kind)
        sent = failure.kind is ModelFailureKind.BAD_REQUEST and failure.attempts > 0
        if not sent or role in self._accounts.by_role:
            return None
        self._refused += 1
        if self._refused < REFUSALS:
            return WorkPostponed(StopCause.MODEL, message, kind=failure.kind)
        remedy = "correct the settings, then run the same command to resume"
        return RunStopped(StopCause.MODEL, f"{self.name} refuses every call: {failure.message}; {remedy}")


def prices_of(models: Mapping[str, ModelSettings]) -> dict[str, Prices]:
    """Return the prices by role, of models that have prices."""
    prices_by_role = {role: settings.known_prices for role, settings in models.items()}
    return {role: prices for role, prices in prices_by_role.items() if prices is not None}


async def open_accounts(run: Run, config: RunConfig, models: Mapping[str, ModelSettings]) -> Accounts:
    """Return the budgets of a run, with the usage of its earlier processes."""
    used = await run.load_usage()
    return Accounts(
        max_tokens=config.max_total_tokens,
        max_cost=config.max_cost,
        max_seconds=config.max_seconds,
        already=used,
        already_cost=_cost(used, models),
    )


async def share_accounts(run: Run, accounts: Accounts, models: Mapping[str, ModelSettings]) -> None:
    """Store the usage of this process, and count that of the others towards its budgets."""
    await run.save_usage(accounts.by_role)
    used = await run.load_usage()
    accounts.share(used, _cost(used, models))


def _cost(used: Mapping[str, Usage], models: Mapping[str, ModelSettings]) -> float:
    return sum(price.cost(used[role]) for role, price in prices_of(models).items() if role in used)


async def open_models(
    supervisor: Supervisor,
    models: Mapping[str, ModelSettings],
    accounts: Accounts,
    rates: RateLimiter | None = None,
) -> dict[str, OpenModel]:
    """Open an engine per role as children of the supervisor; roles with equal settings share one.

    A call that fails for the moment raises `WorkPostponed`.

    :param rates: slots under rate limits that other processes share.
    """
    endpoints = ModelEndpoints(rates=rates)

    def make(settings: ModelSettings) -> OpenModel:
        return PostponingModel(make_model(settings, accounts, endpoints=endpoints), accounts)

    opened: dict[str, OpenModel] = {}
    for role, settings in models.items():
        twin = next((other for other in opened if models[other] == settings), None)
        if twin is not None:
            opened[role] = opened[twin]
            continue
        opened[role] = await open_supervised(supervisor, f"model of the {role}", partial(make, settings))
    return opened


class SandboxPool:
    """Child of the run's supervisor that forks sandboxes in advance. If no tool has state, the base is shared instead."""

    def __init__(self, base: Sandbox, tools: Sequence[Tool], *, most: int, ahead: int, wanted: int) -> None:
        """Describe it; the caller closes the base.

        :param most: maximum number of sandboxes alive.
        :param ahead: number of sandboxes made before they are requested.
        :param wanted: expected number of requests; requests beyond it are served on demand.
        """
        self._base = base
        self._backends = sorted({tool.backend for tool in tools if tool.stateful})
        self._free = anyio.Semaphore(most)
        self._ahead = ahead
        self._wanted = wanted
        self._requested = 0
        self._made = 0
        self._more = anyio.Event()
        self._ready: deque[Sandbox | ToolFailure] = deque()
        self._available = anyio.Semaphore(0)

    async def run(self, context: Context) -> None:
        """Make sandboxes until stopped."""
        context.ready()
        if not self._backends:
            return
        try:
            async with anyio.create_task_group() as tasks:
                context.on_stop(tasks.cancel_scope.cancel)
                while True:
                    while self._made < max(self._requested, min(self._wanted, self._requested + self._ahead)):
                        await self._free.acquire()
                        self._made += 1
                        tasks.start_soon(self._make)
                    await self._more.wait()
                    self._more = anyio.Event()
        finally:
            with anyio.CancelScope(shield=True):
                while self._ready:
                    await _close(self._ready.popleft())

    @asynccontextmanager
    async def fresh(self) -> AsyncGenerator[Sandbox]:
        """Yield an unused sandbox and close it at the end of the block.

        :raises ToolFailure: if it can't be made.
        """
        if not self._backends:
            yield self._base
            return
        self._requested += 1
        self._more.set()
        try:
            await self._available.acquire()
        except BaseException:
            self._requested -= 1
            raise
        made = self._ready.popleft()
        try:
            if isinstance(made, ToolFailure):
                raise made
            yield made
        finally:
            with anyio.CancelScope(shield=True):
                await _close(made)
            self._free.release()

    async def _make(self) -> None:
        made: Sandbox | ToolFailure | None = None
        try:
            made = await self._base.fork()
            await made.create_session(self._backends)
        except Exception as error:  # boundary: the waiting task gets the error, whatever it is
            await _close(made)
            made = error if isinstance(error, ToolFailure) else ToolFailure(ErrorKind.FAILED, str(error))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _close(made)
            raise
        self._ready.append(made)
        self._available.release()


async def _close(made: Sandbox | ToolFailure | None) -> None:
    if isinstance(made, Sandbox):
        # It may have ended on its own.
        with suppress(ToolFailure):
            await made.close()


RUN_MODELS: Final = "models"
"""Key of `RunModels`."""


class RunModels(Struct, frozen=True, kw_only=True):
    """Models of a run by role."""

    names: dict[str, str]
    """Names."""
    prices: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Prices of a million prompt tokens and of a million generated tokens, if they are known."""

    def priced(self) -> dict[str, Prices]:
        """Return the prices by role."""
        return {role: Prices(input=read, output=written) for role, (read, written) in self.prices.items()}


def models_of(models: Mapping[str, ModelSettings]) -> RunModels:
    """Describe the models of a run."""
    return RunModels(
        names={role: settings.name for role, settings in models.items()},
        prices={role: (price.input, price.output) for role, price in prices_of(models).items()},
    )


_REMEMBERED: Final = 8_192
_MAX_PROMPT: Final = 64 << 20


class StoredMessage(Struct, frozen=True):
    """A message of a prompt as it is stored."""

    before: str
    """Hash of the message before it; empty: it is the first."""
    message: Message
    """The message; the data of an image is the hash of its blob."""


class PromptStore:
    """Stores prompts of a run. Messages that were stored lately are not written again."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[str, None] = {}

    def add(self, messages: Sequence[Message]) -> str:
        """Store the messages that are new with the next entry of the journal, and return the hash of the last message."""
        hash = ""
        images: dict[str, bytes] = {}
        texts: dict[str, bytes] = {}
        for message in messages:
            text = msgspec.json.encode(StoredMessage(hash, _without_images(message, images)))
            hash = sha256(text).hexdigest()
            if hash not in self._known:
                texts[hash] = text
        if texts:
            self._run.attach_blobs(images, json=False)
            self._run.attach_blobs(texts, json=True)
            self._known |= dict.fromkeys(texts)
            while len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
        return hash


def _without_images(message: Message, blobs: dict[str, bytes]) -> Message:
    """Replace the data of images by their hashes, and add the data to the blobs."""
    if all(isinstance(part, TextPart) for part in message.parts):
        return message
    return replace(message, parts=tuple(_stored(part, blobs) for part in message.parts))


def _stored(part: Part, blobs: dict[str, bytes]) -> Part:
    # A function inside `_without_images` that calls itself would keep all images until the next collection of cycles.
    if isinstance(part, ImagePart):
        hash = Blob.of(part.data, part.mime).hash
        blobs[hash] = part.data
        return ImagePart(hash.encode(), part.mime)
    if isinstance(part, ToolReply):
        return replace(part, parts=tuple(_stored(inner, blobs) for inner in part.parts))
    return part


class PromptStoringModel(ModelWrapper):
    """Model whose prompts are stored with its answers."""

    def __init__(self, model: Model, prompts: PromptStore) -> None:
        super().__init__(model)
        self._prompts = prompts

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call."""
        prompt = self._prompts.add(call.messages)
        try:
            completion = await self._model.complete(call)
        except ModelFailure as failure:
            failure.prompt = prompt
            raise
        return replace(completion, prompt=prompt)


def read_prompt(read: Callable[[str], bytes], hash: str) -> list[Message]:
    """Return the messages of a stored prompt; the data of an image is the hash of its blob.

    See docs/journal.md.

    :param read: returns the JSON with a hash (`JournalReader.json`).
    :param hash: hash of the last message.
    :raises KeyError: if a message is missing.
    :raises ValueError: if one is damaged.
    """
    messages: dict[str, Message] = {}
    left = _MAX_PROMPT
    while hash:
        text = read(hash)
        left -= len(text)
        # The journal may come from elsewhere.
        if hash in messages or left < 0:
            raise ValueError(f"a message follows itself, or all have more than {_MAX_PROMPT:,} bytes")
        stored = msgspec.json.decode(text, type=StoredMessage)
        messages[hash] = stored.message
        hash = stored.before
    return list(messages.values())[::-1]


_REMEDIES: Final[dict[str, str]] = {
    ModelFailureKind.GARBAGE: "use an endpoint that enforces response_format, or a model that follows a JSON schema",
    ModelFailureKind.TOO_LONG: "raise max_tokens, bound texts by max_text_chars, or use a model with a longer context",
}
"""Remedies by the kind of a failed call that the model, and not its endpoint, is the cause of."""
_LASTING: Final = frozenset({ModelFailureKind.REFUSED, ModelFailureKind.BAD_REQUEST})


def may_pass(failure: Failure | None) -> bool:
    """Return whether the same work may succeed later: nothing was refused.

    >>> may_pass(Failure("garbage", "the answer is empty"))
    True
    """
    return failure is not None and failure.kind not in _LASTING


class RoleReplies:
    """Replies of the models to the roles, in the work for one seed."""

    def __init__(self) -> None:
        self.failed: dict[str, Failure] = {}
        """Last failure that may pass, by role."""
        self._usable: set[str] = set()
        self._unusable: dict[str, Failure] = {}

    def add(self, role: str, failure: Failure | None) -> None:
        """Add a reply.

        :param failure: reason for a missing answer.
        """
        if failure is None:
            self._usable.add(role)
            return
        if failure.kind in _REMEDIES:
            self._unusable[role] = failure
        if may_pass(failure):
            self.failed[role] = failure

    @property
    def unanswered(self) -> tuple[str, Failure] | None:
        """A role of whose answers none could be used, and the reason of the last; `None`: each gave a usable one."""
        return next(((role, why) for role, why in self._unusable.items() if role not in self._usable), None)


class AnswerGuard:
    """Tells a model without usable answers from one that fails on single calls."""

    def __init__(
        self,
        models: Mapping[str, ModelSettings] | None = None,
        answered: AbstractSet[str] = frozenset(),
        unit: str = "task",
    ) -> None:
        """:param models: models by role.
        :param answered: roles that got a usable answer from a model of this process; read at each check.
        :param unit: name of a seed in messages.
        """
        self._models = models or {}
        self._answered = answered
        self._unit = unit
        self._failures: dict[str, int] = {}

    async def work(
        self,
        run: Run,
        seed: Seed,
        work: Callable[[Page], Awaitable[tuple[T, RoleReplies]]],
        kept: Callable[[RoleReplies], Sequence[str]],
        *,
        counts: bool = False,
    ) -> T:
        """Do the work of a seed on its page, and return its result.

        If a role gave no usable answer, the page is cleared, so that the same command asks the model again.

        :param kept: returns the beginnings of the keys that are not cleared.
        :param counts: such work is a result, too, once another seed is finished: the models can answer.
        :raises WorkPostponed: if a role gave no usable answer.
        :raises RunStopped: if it has given none for any seed so far.
        """
        while True:
            page = await run.open_page(seed)
            recorded = len(tuple(page.keys()))
            result, replies = await work(page)
            if (unanswered := replies.unanswered) is None or (counts and (await run.counts()).done):
                return result
            is_new = len(tuple(page.keys())) > recorded
            await run.clear_page(seed, kept(replies))
            if is_new:
                raise self._postponed(*unanswered)
            # An earlier process was killed after its last call: the model was not asked in this one yet.

    def _postponed(self, role: str, failure: Failure) -> RunStopped:
        """Return the error for a seed without a usable answer of a role."""
        name = self._models[role].name if role in self._models else "its model"
        problem = f"{role}: no usable answer from {name}: {failure.message}"
        remedy = _REMEDIES[failure.kind]
        count = self._failures[role] = self._failures.get(role, 0) + 1
        if role in self._answered or count < REFUSALS:
            return WorkPostponed(StopCause.MODEL, f"{problem}; {remedy}", kind=ModelFailureKind(failure.kind))
        every = f"{problem}; nor for any of {count} {self._unit}s so far"
        return RunStopped(StopCause.MODEL, f"{every}: {remedy}, then run the same command to resume")
