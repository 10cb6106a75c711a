"""Answers to calls: by exact tokens from vLLM, by its chat API with recorded tokens, or by any endpoint without tokens."""

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Protocol

import anyio
import msgspec
from msgspec.structs import replace

from agentflow.actors import computed, together
from agentflow.gateway._images import hash_of, image_size, images_of, with_bytes
from agentflow.gateway._types import GatewayCall, GatewayError, RecordedCall
from agentflow.models import (
    Completion,
    ConversationIndex,
    ConversationMatch,
    ImagePart,
    Message,
    ModelConnection,
    Part,
    PromptOrigin,
    Sampling,
    TextPart,
    TokenEngine,
    ToolCall,
    ToolReply,
    ToolSpec,
    engine_sampling,
    escaped_message,
    escaped_tool,
    message_digests,
    model_failures,
)
from agentflow.trace import Usage

Answered = tuple[Completion[None], RecordedCall]
"""Answer with its record."""
_UNMODIFIED: Final = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
_IDS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_SIZE = 9
_MAX_CACHED = 64
_MAX_TOKEN_IDS = 2**31
_MAX_LARGE_ANSWERS = 2
"""Number of answers to a large call that are sampled at a time."""
_ENCODER = msgspec.msgpack.Encoder()
_THOUGHT = "<think>"


class AgentConversations(ConversationIndex):
    """Conversations of one agent in one attempt at an episode. See docs/gateway.md."""

    def __init__(self, agent: str = "", *, trained: bool = True) -> None:
        """Start empty.

        :param agent: name of the agent.
        :param trained: the agent is trained.
        """
        super().__init__()
        self.agent = agent
        """Name of the agent."""
        self.trained = trained
        """The agent is trained."""
        self._prompts: Counter[bytes] = Counter()

    def draw(self, prompt: bytes) -> str:
        """Return a name for a call with this prompt: its digest, and the number of earlier calls with it."""
        digest = blake2b(prompt, digest_size=16).digest()
        self._prompts[digest] += 1
        return f"{digest.hex()}/{self._prompts[digest] - 1}"


class Answerer(Protocol):
    """Model of some agents, as the gateway calls it."""

    @property
    def models(self) -> tuple[str, ...]:
        """Accepted names of models; the first one is the default."""
        ...

    def overrides(self, call: GatewayCall, temperature: float | None) -> tuple[str, ...]:
        """Return the names of the call's sampling parameters that the run replaces.

        :param temperature: as in `answer`.
        """
        ...

    async def count(self, call: GatewayCall) -> int:
        """Return the number of tokens of a call's prompt.

        :raises ModelFailure: if the model fails for good.
        """
        ...

    async def answer(
        self,
        call: GatewayCall,
        memory: AgentConversations,
        ids: Sequence[str],
        *,
        seed: str,
        temperature: float | None,
        on_text: Callable[[str], None] | None = None,
    ) -> list[Answered]:
        """Answer a call and add the records to the memory.

        :param ids: id of each answer.
        :param seed: source of the seed of everything sampled.
        :param temperature: sampling temperature of trained agents; the requests of others decide.
        :param on_text: receives the text of a single answer as it is sampled.
        :raises ModelFailure: if the model fails for good.
        """
        ...


class ExactAnswerer:
    """Answers of vLLM by exact tokens. See docs/gateway.md."""

    def __init__(self, engine: TokenEngine, messages: "Answerer | None" = None) -> None:
        """Describe the model.

        :param engine: that of an open `ModelConnection` to vLLM.
        :param messages: answers calls with images, which can't be sent as tokens; `None`: they are refused.
        """
        self._engine = engine
        self._messages = messages
        self.models = (engine.model,)
        """Accepted names of models."""
        self._thinks: dict[str, bool] = {}
        self._escaped: dict[bytes, tuple[ToolSpec, ...]] = {}

    def overrides(self, call: GatewayCall, temperature: float | None) -> tuple[str, ...]:
        """Return the names of the call's sampling parameters that the run replaces."""
        return replaced_by(call.sampling, temperature)

    async def count(self, call: GatewayCall) -> int:
        """Return the number of tokens of a call's prompt.

        :raises ModelFailure: if the model fails for good.
        """
        if call.images:
            return await self._by_messages().count(call)
        with model_failures():
            return len(await self._rendered(call))

    async def answer(
        self,
        call: GatewayCall,
        memory: AgentConversations,
        ids: Sequence[str],
        *,
        seed: str,
        temperature: float | None,
        on_text: Callable[[str], None] | None = None,
    ) -> list[Answered]:
        """Answer a call and add the records to the memory.

        :raises ModelFailure: if the engine fails for good.
        """
        if call.images:
            return await self._by_messages().answer(
                call, memory, ids, seed=seed, temperature=temperature, on_text=on_text
            )
        call = await computed(call.large, _storable, call)
        with model_failures():
            match, prompt = await self._prompt(call, memory)
            name = memory.draw(prompt.tobytes())
            sampling = _sampling_of(call, memory, temperature, _number_of(f"{seed}/{name}".encode()))
            structured = await self._structure(call)
            if on_text is not None and (call.tools or call.schema is not None or await self._opens(call)):
                # The text is known only once it is parsed.
                on_text = None
            sampled = await self._engine.generate(
                prompt.tolist(),
                {**engine_sampling(sampling, structured), **sampling.extra},
                answers=len(ids),
                # The prompt is known. Only in a stream it marks the beginning of an answer.
                fields={"return_token_ids": on_text is not None},
                on_text=None if on_text is None else until_thought(on_text),
            )
            options, tools = _template(call), self._tools(call)
            answers = await self._engine.read(sampled, tools, choice=call.tool_choice, template=options)
        changed = replaced_by(call.sampling, temperature)
        return [
            _recorded(call, memory, match, id, answer, seed, changed)
            for id, answer in zip(ids, answers, strict=True)
        ]

    def _by_messages(self) -> Answerer:
        if self._messages is None:
            raise GatewayError(400, "this model reads no images; send text only", code="unsupported_content")
        return self._messages

    async def _prompt(
        self, call: GatewayCall, memory: AgentConversations
    ) -> tuple[ConversationMatch, "array[int]"]:
        """Return the known part of the prompt, and all its tokens."""
        match = await _matched(call, memory)
        if match.parent:
            messages = await computed(call.large, _escaped, call.messages[match.count - 1 :])
            prompt = await self._engine.continued(
                match, messages, self._tools(call), template=_template(call)
            )
            if prompt is not None:
                return match, prompt
            match = match.rendered(PromptOrigin.TEMPLATE)
        return match, array("i", await self._rendered(call))

    async def _rendered(self, call: GatewayCall) -> list[int]:
        if call.prompt is not None:
            text = call.prompt
            if not isinstance(text, str) and not all(0 <= id < _MAX_TOKEN_IDS for id in text):
                raise GatewayError(400, "prompt: not an id of a token", code="invalid_prompt")
            return await self._engine.tokenize(text) if isinstance(text, str) else list(text)
        messages = await computed(call.large, _escaped, call.messages)
        return await self._engine.render(messages, self._tools(call), template=_template(call))

    async def _structure(self, call: GatewayCall) -> Mapping[str, Any] | None:
        if call.schema is not None:
            return {"json": call.schema} if call.schema else {"json_object": True}
        tools = tuple(map(escaped_tool, call.tools))
        return (
            await self._engine.grammar(tools, call.tool_choice, template=_template(call)) if tools else None
        )

    def _tools(self, call: GatewayCall) -> tuple[ToolSpec, ...]:
        """Return the call's tools without special tokens; an agent lists the same ones in each call."""
        if not call.tools:
            return ()
        key = _ENCODER.encode(call.tools)
        if key not in self._escaped:
            if len(self._escaped) >= _MAX_CACHED:
                self._escaped.clear()
            self._escaped[key] = tuple(map(escaped_tool, call.tools))
        return self._escaped[key]

    async def _opens(self, call: GatewayCall) -> bool:
        """Return true if the template begins the reasoning of an answer, so that its text shows no beginning."""
        key = repr(call.template)
        if key not in self._thinks and call.prompt is None:
            if len(self._thinks) >= _MAX_CACHED:
                self._thinks.clear()
            end = await self._engine.render((Message("user", (TextPart("-"),)),), template=_template(call))
            self._thinks[key] = (await self._engine.text(end)).rstrip().endswith(_THOUGHT)
        return self._thinks.get(key, False)


class _ChatAnswerer:
    """Answers of an endpoint's own API, one request for each."""

    def __init__(self, connection: ModelConnection, *, tokens: bool, vision: bool = True) -> None:
        self._connection = connection
        self._tokens = tokens
        self._vision = vision
        self.models = (connection.model,)
        """Accepted names of models."""

    async def count(self, call: GatewayCall) -> int:
        """Return an estimate of the number of tokens of a call's prompt: four characters, or 750 pixels, per token."""
        return await computed(call.large, _estimated_tokens, call)

    async def answer(
        self,
        call: GatewayCall,
        memory: AgentConversations,
        ids: Sequence[str],
        *,
        seed: str,
        temperature: float | None,
        on_text: Callable[[str], None] | None = None,
    ) -> list[Answered]:
        """Answer a call and add the records to the memory; the text is passed on at once.

        :raises ModelFailure: if the endpoint fails for good.
        """
        if call.images and not self._vision:
            raise GatewayError(
                400, "this model reads no images; send text, or set its `vision`", code="unsupported_content"
            )
        call = await computed(call.large, _storable, call)
        messages = call.messages
        if call.prompt is not None:
            messages = (Message("user", (TextPart(_as_text(call.prompt)),)),)
        match = await _matched(call, memory)
        name = memory.draw(await computed(call.large, _ENCODER.encode, (messages, call.tools)))
        tokens = self._tokens and not call.images
        if call.images:
            messages = with_bytes(messages, call.images)

        # Each answer has a request of its own, with the whole prompt.
        slots = anyio.Semaphore(_MAX_LARGE_ANSWERS if call.large else len(ids))

        async def ask(index: int) -> Completion[None]:
            async with slots:
                return await self._connection.ask(
                    messages if self._tokens else [replace(message, reasoning="") for message in messages],
                    tools=call.tools,
                    may_call=call.tool_choice != "none",
                    sampling=self._sampling(call, memory, temperature, f"{seed}/{name}/{index}"),
                    schema=call.schema,
                    tokens=tokens,
                    in_thread=call.large,
                )

        answers = await together([partial(ask, index) for index in range(len(ids))])
        done = [
            self._done(call, memory, match, id, answer, seed, temperature)
            for id, answer in zip(ids, answers, strict=True)
        ]
        if on_text is not None and done[0][0].text:
            on_text(done[0][0].text)
        return done

    def overrides(self, call: GatewayCall, temperature: float | None) -> tuple[str, ...]:
        """Return the names of the call's sampling parameters that the run replaces."""
        return replaced_by(call.sampling, temperature) if self._tokens else ()

    def _sampling(
        self, call: GatewayCall, memory: AgentConversations, temperature: float | None, seed: str
    ) -> Sampling:
        sampling = call.sampling
        if self._tokens:
            sampling = _sampling_of(call, memory, temperature, _number_of(seed.encode()))
        choice = call.tool_choice
        named = {"type": "function", "function": {"name": choice}}
        chosen = (
            {} if choice in ("auto", "none") else {"tool_choice": choice if choice == "required" else named}
        )
        return replace(sampling, extra={**sampling.extra, **_template(call), **chosen})

    def _done(
        self,
        call: GatewayCall,
        memory: AgentConversations,
        match: ConversationMatch,
        id: str,
        answer: Completion[None],
        seed: str,
        temperature: float | None,
    ) -> Answered:
        if self._tokens and call.images:
            match = replace(match, origin=PromptOrigin.IMAGES)
        elif answer.tokens is not None:
            proven = match.parent and answer.tokens.prompt[: len(match.ids)] == tuple(match.ids)
            origin = PromptOrigin.RECORDED
            match = replace(match, origin=origin) if proven else match.rendered(origin)
        return _recorded(call, memory, match, id, answer, seed, self.overrides(call, temperature))


class RecordingAnswerer(_ChatAnswerer):
    """Answers of vLLM's chat API, which returns their tokens but renders each prompt anew. See docs/gateway.md."""

    def __init__(self, connection: ModelConnection) -> None:
        """Describe the model.

        :param connection: open connection to vLLM.
        """
        super().__init__(connection, tokens=True)


class PlainAnswerer(_ChatAnswerer):
    """Answers of any endpoint, without tokens, for agents that are not trained. See docs/gateway.md."""

    def __init__(self, connection: ModelConnection, *, vision: bool = True) -> None:
        """Describe the model.

        :param connection: open connection to the endpoint.
        :param vision: it reads images.
        """
        super().__init__(connection, tokens=False, vision=vision)


def replaced_by(sampling: Sampling, temperature: float | None) -> tuple[str, ...]:
    """Return the names of sampling parameters that a run replaces with its own."""
    if temperature is None:
        return ()
    requested = {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
    settings = {"temperature": temperature, "top_p": 1.0}
    named = [name for name, value in requested.items() if value is not None and value != settings.get(name)]
    return (*named, *(name for name in sampling.extra if sampling.extra[name] != _UNMODIFIED.get(name)))


def _sampling_of(
    call: GatewayCall, memory: AgentConversations, temperature: float | None, seed: int
) -> Sampling:
    """Return the sampling of a call; that of a trained agent is the unmodified distribution at the run's temperature."""
    requested = call.sampling
    if not memory.trained:
        return requested if requested.seed is not None else replace(requested, seed=seed)
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0,
        max_tokens=requested.max_tokens,
        seed=seed,
        stop=requested.stop,
        extra=dict(_UNMODIFIED),
    )


async def _matched(call: GatewayCall, memory: AgentConversations) -> ConversationMatch:
    digests = await computed(call.large, message_digests, call.messages)
    return memory.match(call.messages, call.tools, call.template, digests=digests)


def _recorded(
    call: GatewayCall,
    memory: AgentConversations,
    match: ConversationMatch,
    id: str,
    answer: Completion[None],
    seed: str,
    overrides: tuple[str, ...],
) -> Answered:
    """Return an answer with its record, and add the record to the memory."""
    calls = tuple(
        replace(tool_call, id=_call_id(seed, id, number), state=dict[str, Any]())
        for number, tool_call in enumerate(answer.calls)
    )
    finish = "length" if answer.finish == "length" else "tool_calls" if calls else "stop"
    texts = (TextPart(answer.text),) if answer.text or not calls else ()
    record = RecordedCall(
        id=id,
        agent=memory.agent,
        dialect=call.dialect,
        trained=memory.trained,
        delivered=True,
        origin=match.origin,
        parent=match.parent,
        tokens=None if answer.tokens is None else match.added(answer.tokens),
        before=match.count,
        messages=call.messages[match.count :],
        answer=Message("assistant", (*texts, *map(_storable_part, calls))),
        reasoning=answer.reasoning,
        tools=None if match.parent else call.tools,
        template=None if match.parent else call.template,
        finish=finish,
        constrained=call.schema is not None or bool(call.tools and call.tool_choice not in ("auto", "none")),
        overrides=overrides,
        removed=call.removed,
    )
    memory.add(id, match, record.answer, record.tokens)
    return replace(answer, id=id, calls=calls, finish=finish), record


async def recalled(
    call: GatewayCall, memory: AgentConversations, record: RecordedCall, id: str, *, answer: bool
) -> Answered | None:
    """Return the recorded answer to a call, if the call has the prompt of the record and its id; `None`: it differs.

    :param answer: add the record to the memory, as an answer would be.
    """
    call = await computed(call.large, _storable, call)
    match = await _matched(call, memory)
    if not record.parent:
        match = match.rendered(record.origin)
    prompt = (id, call.dialect, memory.agent, match.parent, call.messages[match.count :])
    if prompt != (record.id, record.dialect, record.agent, record.parent, record.messages):
        return None
    if not record.parent and (call.tools, call.template) != (record.tools or (), record.template or {}):
        return None
    if not record.delivered or call.prompt is not None or call.answers > 1:
        return None
    if answer:
        memory.add(id, match, record.answer, record.tokens)
    tokens, parts = record.tokens, record.answer.parts
    completion = Completion[None](
        id=id,
        text="".join(part.text for part in parts if isinstance(part, TextPart)),
        calls=tuple(part for part in parts if isinstance(part, ToolCall)),
        usage=Usage(1, len(match.ids) + len(tokens.prompt), len(tokens.sampled)) if tokens else Usage(1),
        finish=record.finish,
        reasoning=record.reasoning,
        tokens=record.tokens,
    )
    return completion, record


def _escaped(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(map(escaped_message, messages))


def _estimated_tokens(call: GatewayCall) -> int:
    """Return the length of messages and tools, four characters or 750 pixels per token."""
    parts = [part for message in call.messages for part in message.parts]
    characters = sum(map(_length, parts)) + sum(len(repr(tool)) for tool in call.tools)
    sizes = (image_size(call.images[hash_of(image)]) for image in images_of(call.messages))
    return characters // 4 + sum(width * height for width, height in sizes) // 750 + 1


def _length(part: Part) -> int:
    match part:
        case TextPart(text=text):
            return len(text)
        case ToolReply(parts=parts):
            return sum(map(_length, parts))
        case ImagePart():
            return 0
        case _:
            return len(repr(part))


def _storable(call: GatewayCall) -> GatewayCall:
    """Return a call whose record can be written: MessagePack has no integers beyond 64 bits, JSON has.

    :raises GatewayError: if a tool or a template option has one.
    """
    try:
        _ENCODER.encode((call.messages, call.tools, call.template))
    except OverflowError:
        messages = tuple(
            replace(message, parts=tuple(map(_storable_part, message.parts))) for message in call.messages
        )
        call = replace(call, messages=messages)
        try:
            _ENCODER.encode((messages, call.tools, call.template))
        except OverflowError:
            raise GatewayError(
                400, "tools: an integer beyond 64 bits; use a smaller one", code="invalid_number"
            ) from None
    return call


def _storable_part(part: Part) -> Part:
    """Return a part with large integers in raw arguments only."""
    if not isinstance(part, ToolCall):
        return part
    try:
        _ENCODER.encode(part.arguments)
    except OverflowError:
        raw = part.raw_arguments or msgspec.json.encode(part.arguments).decode()
        return replace(part, arguments=None, raw_arguments=raw)
    return part


def _template(call: GatewayCall) -> dict[str, Any]:
    return {"chat_template_kwargs": call.template} if call.template else {}


def _number_of(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=6).digest(), "big")


def _call_id(seed: str, id: str, number: int) -> str:
    """Return the id of a tool call. Some templates require nine letters and digits."""
    value = int.from_bytes(blake2b(f"{seed}/{id}/{number}".encode(), digest_size=8).digest(), "big")
    letters: list[str] = []
    for _ in range(_ID_SIZE):
        value, letter = divmod(value, len(_IDS))
        letters.append(_IDS[letter])
    return "".join(letters)


def _as_text(prompt: str | tuple[int, ...]) -> str:
    return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))


def until_thought(on_text: Callable[[str], None]) -> Callable[[str], None]:
    """Pass a text on unless it begins with reasoning, which is not part of the answer's text."""
    begin, held = "", list[str]()
    passes: bool | None = None

    def add(piece: str) -> None:
        nonlocal begin, passes
        if passes:
            on_text(piece)
        if passes is not None:
            return
        held.append(piece)
        begin += piece if begin else piece.lstrip()
        if not _THOUGHT.startswith(begin):
            passes = not begin.startswith(_THOUGHT)
            if passes:
                on_text("".join(held))
            held.clear()

    return add
