"""Protocol of language models: a typed call in, a typed completion out."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET, Struct, field
from msgspec.structs import asdict, replace

from agentflow._typeguards import is_object
from agentflow.errors import ModelFailure, RunStopped, StopCause
from agentflow.text import escape_all_special_tokens, escape_special_tokens
from agentflow.trace import Failure, Reply, Request, Tokens, Usage

T = TypeVar("T")
R = TypeVar("R")


class TextPart(Struct, frozen=True, tag="text"):
    """Text in a message."""

    text: str
    """Content."""


class ImagePart(Struct, frozen=True, tag="image"):
    """Image in a message."""

    data: bytes
    """Encoded image."""
    mime: str = "image/png"
    """Media type."""


class ToolCall(Struct, frozen=True, tag="call"):
    """A model's call of a tool, part of an assistant message."""

    id: str
    """Id that its reply refers to."""
    name: str
    """Name of the tool."""
    arguments: dict[str, Any] | None
    """Arguments; `None` if the model did not write a JSON object, see `raw_arguments`."""
    raw_arguments: str = ""
    """Arguments exactly as the model wrote them."""
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    """Opaque data that the provider expects back with the call."""


class ToolReply(Struct, frozen=True, tag="reply"):
    """Result of a tool call, part of a user message. Every call in the message before it needs one."""

    call: str
    """Id of the call."""
    name: str
    """Name of the tool."""
    parts: tuple[TextPart | ImagePart, ...]
    """Content of the result."""
    failed: bool = False
    """The call failed."""


Part: TypeAlias = TextPart | ImagePart | ToolCall | ToolReply
"""Part of a message."""


class ToolSpec(Struct, frozen=True):
    """Tool that a model may call."""

    name: str
    """Name, made of letters, digits, `_` and `-`."""
    description: str
    """Purpose, and advice when to use it."""
    schema: dict[str, Any]
    """JSON schema of its arguments."""


class Message(Struct, frozen=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    """Author."""
    parts: tuple[Part, ...]
    """Content."""
    mark: str = ""
    """Mark of the call that produced this answer (`Tokens.mark`); empty if unknown. It tells answers with the same text apart
    when conversations are sent as tokens."""
    reasoning: str = ""
    """Reasoning before an answer, for templates that show it."""


class Sampling(Struct, frozen=True, kw_only=True):
    """Sampling parameters; `None` leaves one to the endpoint."""

    temperature: float | None = None
    """Sampling temperature."""
    top_p: float | None = None
    """Nucleus sampling."""
    max_tokens: int | None = None
    """Maximum number of tokens in the answer."""
    seed: int | None = None
    """Seed, for endpoints that support one."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of the request body."""

    def over(self, defaults: Self) -> Self:
        """Return the defaults, changed to the parameters that are set here."""
        changed = {name: value for name, value in asdict(self).items() if value not in (None, (), {})}
        return replace(defaults, **{**changed, "extra": {**defaults.extra, **self.extra}})


class Call(Struct, Generic[T], frozen=True, kw_only=True):
    """One call of a model. See docs/models.md."""

    role: str
    """Role that makes the call, such as `planner`; usage is accounted under it."""
    messages: tuple[Message, ...]
    """Conversation."""
    reply: type[T]
    """Type of the decoded answer; `str` for free text."""
    schema: dict[str, Any] | None = None
    """JSON schema of the answer; `None` takes that of `reply`."""
    sampling: Sampling | None = None
    """Sampling parameters that override those of the model."""
    request: Request[T] | None = None
    """Typed request behind the messages, for the offline engine."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model may call instead of answering, several at a time; only with the reply type `str`."""
    may_call: bool = True
    """The model may call tools now. If false, they are only listed, because earlier messages refer to them."""
    parse: Callable[[str], T] | None = None
    """Reads an answer in another format than JSON, which the messages describe; no schema is sent. It raises `ValueError` with the
    reason if it can't."""


class Completion(Struct, Generic[T], frozen=True, kw_only=True):
    """Answer of a model: decoded, or as an endpoint or a gateway returns it. See docs/models.md."""

    value: T = cast("Any", None)
    """Decoded answer; `None` if it is not decoded."""
    text: str = ""
    """Text of the answer."""
    usage: Usage = Usage()
    """Usage; of a decoded answer, including earlier answers to the same call that were not usable."""
    model: str = ""
    """Name of the model, as the endpoint reports it."""
    finish: str = "stop"
    """Reason for its end: `stop`, `length`, `tool_calls`, `content_filter`, or the endpoint's own term."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls of the model; the text may be empty then."""
    tokens: Tokens | None = None
    """Prompt and completion tokens, if the model returns them."""
    unusable: tuple[Tokens, ...] = ()
    """Tokens of earlier answers to the same call that were not usable."""
    reasoning: str = ""
    """The model's reasoning before the answer, where the endpoint returns it; never part of `text` or `value`."""
    prompt: str = ""
    """Hash under which the run stores the prompt; empty: it does not."""
    refusal: str = ""
    """The model's reason for a refusal; empty if it answered."""
    usage_problem: str = ""
    """Reason for estimating the usage although the endpoint reports it; empty: it is as reported, or not reported."""
    stop: str = ""
    """Stop string that ended the answer."""
    id: str = ""
    """Id of its record at a gateway."""
    cached_tokens: int = 0
    """Number of tokens of the prompt that were in the model's cache."""


class Model(Protocol):
    """A language model. See docs/models.md.

    :raises ModelFailure: by `complete`, after all attempts.
    :raises RunStopped: by `complete`, if a budget is used up or the endpoint can't be used any more.
    """

    @property
    def name(self) -> str:
        """Name in settings and reports."""
        ...

    @property
    def vision(self) -> bool:
        """The model accepts images."""
        ...

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call."""
        ...


class ModelWrapper:
    """Base of a model that passes its calls on to another one, changed or recorded. See docs/models.md."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model.name

    @property
    def vision(self) -> bool:
        """The model accepts images."""
        return self._model.vision

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call."""
        return await self._model.complete(call)


async def ask_model(model: Model, call: Call[T]) -> Reply[T]:
    """Return a model's answer; a failed call is a failed reply. See docs/models.md.

    :raises RunStopped: if the model cannot be used any more.
    """

    def text(completion: Completion[T]) -> str:
        encoded_value = msgspec.json.encode(completion.value).decode()
        return "" if completion.text == encoded_value else completion.text

    return await reply_of(model, call, lambda completion: completion.value, text)


async def reply_of(
    model: Model,
    call: Call[T],
    read: Callable[[Completion[T]], R],
    text: Callable[[Completion[T]], str] = lambda _: "",
) -> Reply[R]:
    """Return a value read from a model's answer; a failed call is a failed reply. See docs/models.md.

    :param read: reads the value from the completion.
    :param text: the answer as the model wrote it, where it differs from our own encoding.
    :raises RunStopped: if the model cannot be used any more.
    """
    try:
        completion = await model.complete(call)
    except ModelFailure as failure:
        return Reply(
            failure=Failure(failure.kind, failure.message),
            usage=Usage(
                failure.answers,
                failure.prompt_tokens,
                failure.completion_tokens,
                failure.estimates or UNSET,
            ),
            tokens=failure.answer_tokens[-1] if failure.answer_tokens else None,
            unusable=failure.answer_tokens[:-1],
            text=failure.answer_text,
            prompt=failure.prompt,
        )
    return Reply(
        value=read(completion),
        usage=completion.usage,
        tokens=completion.tokens,
        unusable=completion.unusable,
        text=text(completion),
        reasoning=completion.reasoning,
        prompt=completion.prompt,
    )


def has_images(message: Message) -> bool:
    """Return whether a message has images, also in results of tools."""
    return any(
        isinstance(part, ImagePart)
        or (isinstance(part, ToolReply) and any(isinstance(inner, ImagePart) for inner in part.parts))
        for part in message.parts
    )


# Everything in a message may be data: results of tools, documents, questions, and answers that repeat them. All of it is
# escaped where a call leaves for its endpoint, so no caller can forget it. See docs/security.md.


def escaped_message(message: Message) -> Message:
    """Return a message whose texts, calls and results contain no special tokens. See docs/models.md."""
    parts = tuple(map(_escaped, message.parts))
    return message if parts == message.parts else replace(message, parts=parts)


def escaped_tool(tool: ToolSpec) -> ToolSpec:
    """Return a tool whose description and schema contain no special tokens. See docs/models.md."""
    schema = escape_all_special_tokens(tool.schema)
    description = escape_special_tokens(tool.description)
    return replace(tool, description=description, schema=schema if is_object(schema) else tool.schema)


def _escaped(part: Part) -> Part:
    match part:
        case TextPart():
            return _escaped_text(part)
        case ToolReply(parts=parts):
            escaped_parts = tuple(
                item if isinstance(item, ImagePart) else _escaped_text(item) for item in parts
            )
            return replace(part, parts=escaped_parts)
        case ToolCall(arguments=arguments, raw_arguments=raw):
            escaped_arguments = escape_all_special_tokens(arguments)
            return replace(
                part,
                arguments=escaped_arguments if is_object(escaped_arguments) else None,
                raw_arguments=escape_special_tokens(raw),
            )
        case ImagePart():
            return part


def _escaped_text(part: TextPart) -> TextPart:
    text = escape_special_tokens(part.text)
    return part if text == part.text else TextPart(text)


class Accounts:
    """Usage by role and by model, with budgets.

    A budget ends a run before its next request; requests in flight are still paid for and counted. See docs/models.md.
    """

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        max_seconds: float | None = None,
        already: Mapping[str, Usage] | None = None,
        already_cost: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with no usage, or with that of an earlier part of the run.

        :param max_tokens: maximum number of prompt and completion tokens.
        :param max_cost: maximum cost, in the currency of the prices.
        :param max_seconds: maximum duration, from now on.
        :param already: usage of earlier parts of the run, by role.
        :param already_cost: cost of that usage.
        :param clock: monotonic clock, in seconds.
        """
        self.max_tokens = max_tokens
        self.max_cost = max_cost
        self.max_seconds = max_seconds
        self.cost = already_cost
        """Cost so far."""
        self._by_role = dict(already or {})
        self._by_model: dict[str, Usage] = {}
        self.total = sum(self._by_role.values(), Usage())
        """Usage of all roles."""
        self.answered: set[str] = set()
        """Roles that got a usable answer since this object was created."""
        self._tokens_elsewhere = 0
        self._cost_elsewhere = 0.0
        self._clock = clock
        self._began = clock()

    def add(self, role: str, usage: Usage, cost: float = 0.0, *, model: str = "") -> None:
        """Add the usage of one or more answers."""
        self._by_role[role] = self._by_role.get(role, Usage()) + usage
        self._by_model[model] = self._by_model.get(model, Usage()) + usage
        self.total += usage
        self.cost += cost

    def share(self, by_role: Mapping[str, Usage], cost: float) -> None:
        """Count the usage of other processes towards the budgets.

        :param by_role: usage of all processes, this one included.
        :param cost: its cost.
        """
        self._tokens_elsewhere = max(0, _tokens(sum(by_role.values(), Usage())) - _tokens(self.total))
        self._cost_elsewhere = max(0.0, cost - self.cost)

    @property
    def by_role(self) -> dict[str, Usage]:
        """Usage by role, including earlier parts of the run."""
        return dict(self._by_role)

    @property
    def by_model(self) -> dict[str, Usage]:
        """Usage by model since this object was created."""
        return dict(self._by_model)

    def check(self) -> None:
        """Check the budgets.

        :raises RunStopped: if one is used up.
        """
        tokens = _tokens(self.total) + self._tokens_elsewhere
        cost = self.cost + self._cost_elsewhere
        if self.max_tokens is not None and tokens >= self.max_tokens:
            self._stop(f"the budget of {self.max_tokens:,} tokens is used up ({tokens:,})")
        if self.max_cost is not None and cost >= self.max_cost:
            self._stop(f"the budget of {self.max_cost:g} is spent ({cost:.4g})")
        if self.max_seconds is not None and self._clock() - self._began >= self.max_seconds:
            self._stop(f"the budget of {self.max_seconds:g} seconds is used up")

    def _stop(self, reason: str) -> None:
        raise RunStopped(StopCause.BUDGET, f"{reason}; raise it and run the same command to resume")


def _tokens(used: Usage) -> int:
    return used.prompt_tokens + used.completion_tokens
