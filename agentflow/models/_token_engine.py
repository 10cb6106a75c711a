"""vLLM as a token engine: render messages to tokens, sample from tokens, read sampled tokens as text and tool calls.

A conversation is continued by tokens: a prompt is all tokens so far, plus those that the chat template puts after the last
answer. The latter are found with a stand-in conversation: the template puts the same tokens after any answer. So a sampled
answer stays exactly as it was sampled, and a prompt stays the same even if the template would change earlier messages. vLLM
renders only the first prompt of a conversation as a whole.
"""

from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.errors import ModelFailureKind
from agentflow.models._apis import EncodedRequest, PreparedCall, without_reasoning
from agentflow.models._apis._api import call_id, function_tool, instructed, parse_call, without_none
from agentflow.models._apis._openai import AnswerLogprobs, AnswerMessage, chat_messages, tokens_of
from agentflow.models._conversations import ConversationIndex, ConversationMatch, PromptOrigin
from agentflow.models._protocol import (
    Completion,
    Message,
    Part,
    Sampling,
    TextPart,
    ToolCall,
    ToolSpec,
    escaped_message,
    has_images,
)
from agentflow.models._request_error import RequestError
from agentflow.telemetry import get_logger
from agentflow.trace import Usage

logger = get_logger(__name__)
T = TypeVar("T")
Post: TypeAlias = Callable[[EncodedRequest], Awaitable[bytes]]
"""Function that sends a request and returns the body of the answer."""
_QUESTION: Final = Message("user", (TextPart("-"),))
_STAND_IN: Final = (_QUESTION, Message("assistant", (TextPart("-"),)))
_MISSING: Final = (403, 404, 405)
"""Statuses of a server without an API."""
_TEMPLATE_FIELDS: Final = ("chat_template", "chat_template_kwargs")
_REQUEST_FIELDS: Final = ("cache_salt", "priority", "request_id")
_SEED_IDS: Final = 8
_MARK_IDS: Final = 64
_MAX_CACHED: Final = 128
_NO_TEMPLATE = "its chat template has no tools; serve a model whose template has, or start vLLM with another `chat-template`"
_NO_PARSER = (
    "it was started without a parser of tool calls; set `tool_parser` of its server, such as `hermes`"
)


class _Tokenized(Struct):
    tokens: list[int]


class _Detokenized(Struct):
    prompt: str


class _Grammar(Struct, frozen=True):
    structured_outputs: dict[str, Any] | None = None


class _Rendered(Struct):
    token_ids: list[int]
    sampling_params: _Grammar = _Grammar()


class _Span(Struct):
    version: str
    start: int
    end: int


class _SampledChoice(Struct):
    index: int = 0
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    logprobs: AnswerLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    weight_versions: list[_Span] | None = None


class _Generated(Struct):
    choices: list[_SampledChoice]
    model: str | None = None
    prompt_token_ids: list[int] | None = None


class _ParsedChoice(Struct):
    message: AnswerMessage


class _Parsed(Struct):
    choices: list[_ParsedChoice]


_ENCODER = msgspec.json.Encoder()
_TOKENIZED = msgspec.json.Decoder(_Tokenized)
_DETOKENIZED = msgspec.json.Decoder(_Detokenized)
_RENDERED = msgspec.json.Decoder(_Rendered)
_GENERATED = msgspec.json.Decoder(_Generated)
_PARSED = msgspec.json.Decoder(_Parsed)


class ExactTokens:
    """Conversations of one model at vLLM as tokens: text that was read or sampled once is never tokenized again.

    A prompt is the tokens of the longest known beginning, and what follows.
    """

    def __init__(self, url: str, conversations: ConversationIndex) -> None:
        """:param url: address of the endpoint up to `/v1`.
        :param conversations: conversations that the model has read and sampled so far.
        """
        self._url = url
        self._conversations = conversations
        self._facts = EngineFacts()
        self._warned = False

    def takes(self, call: PreparedCall) -> bool:
        """Return true if a call can be sent as tokens: it has no images, and the server renders its tools."""
        return (self._facts.renders or not call.tools) and not any(map(has_images, call.messages))

    async def answer(self, call: PreparedCall, post: Post) -> Completion[None]:
        """Answer one call.

        :raises RequestError: if a request fails.
        :raises msgspec.MsgspecError: if an answer can't be decoded.
        """
        engine = TokenEngine(call.model, self._url, post, self._facts)
        extra = call.sampling.extra
        template = {name: extra[name] for name in _TEMPLATE_FIELDS if name in extra}
        match, prompt = await self._prompt(call, engine, template)
        fields = {name: extra[name] for name in _REQUEST_FIELDS if name in extra}
        sampled = await engine.generate(prompt, _sampling(call), fields=fields)
        choice = "auto" if call.may_call else "none"
        [answer] = await engine.read(sampled, call.tools, choice=choice, template=template)
        # As it comes back in the next call.
        texts: tuple[Part, ...] = (TextPart(answer.text),) if answer.text or not answer.calls else ()
        message = escaped_message(Message("assistant", (*texts, *answer.calls)))
        if answer.tokens is not None:
            self._conversations.add(answer.tokens.mark, match, message, match.added(answer.tokens))
        return answer

    async def _prompt(
        self, call: PreparedCall, engine: "TokenEngine", template: Mapping[str, Any]
    ) -> tuple[ConversationMatch, list[int]]:
        """Return the known part of the prompt, and all its tokens."""
        messages = instructed(call)
        match = self._conversations.match(call.messages)
        prompt = await engine.continued(match, messages[match.count - 1 :], call.tools, template=template)
        if prompt is not None:
            return match, prompt.tolist()
        if match.parent and not self._warned:
            self._warned = True
            why = "its chat template alters earlier messages; each prompt is tokenized from its text"
            logger.warning("conversation prompts are not exact", model=call.model, reason=why)
        return match.rendered(PromptOrigin.TEMPLATE), await engine.render(
            messages, call.tools, template=template
        )


def _sampling(call: PreparedCall) -> dict[str, Any]:
    """Return the parameters of a call by vLLM's names."""
    schema, extra = call.answer_schema, call.sampling.extra
    structured = None
    if schema is not None and schema.format != "text":
        structured = {"json": schema.schema} if schema.format == "json_schema" else {"json_object": True}
    others = {name: extra[name] for name in extra if name not in (*_TEMPLATE_FIELDS, *_REQUEST_FIELDS)}
    return {**engine_sampling(call.sampling, structured), **others}


def engine_sampling(sampling: Sampling, structured: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return sampling parameters by vLLM's names. See docs/tokens.md.

    :param structured: constraints of the answer.
    """
    optional = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
        "structured_outputs": structured,
    }
    # Without max_tokens, `/completions` stops after 16 tokens.
    return {"max_tokens": sampling.max_tokens, **without_none(optional)}


class EngineFacts:
    """Facts about one model at one engine, learned from its answers."""

    def __init__(self) -> None:
        self.generates = True
        """It has the API that returns weights versions."""
        self.renders = True
        """It has the API that renders tools."""
        self.stand_ins: dict[bytes, list[int]] = {}
        """Tokens of the stand-in conversation, by template options and ending."""
        self.with_tools: dict[bytes, bool] = {}
        """Template options, and true if tools are rendered with them."""
        self.grammars: dict[bytes, dict[str, Any] | None] = {}
        """Grammars that enforce a tool call."""


class TokenEngine:
    """Client of one model at vLLM that reads and samples tokens. See docs/tokens.md."""

    def __init__(self, model: str, url: str, post: Post, facts: EngineFacts | None = None) -> None:
        """Describe the client.

        :param url: address of the endpoint up to `/v1`; the token APIs are next to it.
        :param post: sends a request, with retries if wanted.
        :param facts: shared by several clients of the model.
        """
        self.model = model
        """Name of the model in requests."""
        self._server = url.removesuffix("/v1")
        self._post = post
        self._facts = facts or EngineFacts()

    async def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        template: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the tokens of a conversation with these tools, up to the beginning of the next answer.

        :param template: options of the chat template, such as `chat_template_kwargs`.
        :raises RequestError: if a request fails, or the model's template has no tools.
        """
        options = template or {}
        if tools:
            await self._check_tools(tools, options)
        return await self._render(messages, tools, options)

    async def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text without a template."""
        answer = await self._send("/tokenize", {"model": self.model, "prompt": text})
        return _TOKENIZED.decode(answer).tokens

    async def text(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, with special tokens."""
        answer = await self._send("/detokenize", {"model": self.model, "tokens": ids})
        return _DETOKENIZED.decode(answer).prompt

    async def continued(
        self,
        match: ConversationMatch,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        template: Mapping[str, Any] | None = None,
    ) -> "array[int] | None":
        """Return the known tokens of a conversation and those that follow; `None` if there are none or they can't be proven.

        :param messages: the last known answer, and the messages after it.
        """
        if not match.parent:
            return None
        tail = await self.tail(messages[0], messages[1:], tools, template=template)
        return None if tail is None else joined(match.ids, tail)

    async def tail(
        self,
        answer: Message,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        template: Mapping[str, Any] | None = None,
    ) -> list[int] | None:
        """Return the tokens that the template puts after an answer for these messages; `None` if they can't be proven.

        They begin with the tokens that close the answer: `continued` leaves out what was sampled. Only these messages and a
        stand-in for the answer are rendered. The stand-in calls the same tools, because results need their calls.
        """
        # Some templates need to know that there are tools, none needs to know which.
        options, some = template or {}, tools[:1]
        calls = tuple(
            replace(part, arguments=dict[str, Any](), raw_arguments="{}", state=dict[str, Any]())
            for part in answer.parts
            if isinstance(part, ToolCall)
        )
        stand = (_QUESTION, Message("assistant", calls)) if calls else _STAND_IN
        render_whole = partial(self._render, (*stand, *messages), some, options)
        if calls:
            closing = await self._closing(some, options)
            render_closed = partial(self._render, stand, some, options, ending="closed")
            whole, closed = await together([render_whole, render_closed])
            ends = closing is not None and closed[len(closed) - len(closing) :] == closing
            if closing is not None and ends and whole[: len(closed)] == closed:
                return closing + whole[len(closed) :]
        else:
            begin = await self._stand_in(some, options, "open")
            whole = await render_whole()
            if whole[: len(begin)] == begin:
                return whole[len(begin) :]
            closing = await self._closing(some, options)
            closed = await self._stand_in(some, options, "closed")
        if not closing:
            return None
        # The template alters the answer once something follows it, such as its reasoning. What follows is the same
        # after any answer if it is so after another one, from the token on that closes the answer.
        other_answer = Message("assistant", (TextPart("+"), *calls))
        other = await self._render((_QUESTION, other_answer, *messages), some, options)
        return _after_equal(whole, other, closing[0], closed.count(closing[0]))

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Mapping[str, Any],
        *,
        answers: int = 1,
        fields: Mapping[str, Any] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> list[Completion[None]]:
        """Sample answers to a prompt.

        :param sampling: sampling parameters by vLLM's names.
        :param fields: further fields of the request.
        :param on_text: receives the text as it is sampled; for one answer only.
        :raises RequestError: if a request fails.
        """
        params = {"logprobs": 0, **sampling}
        if answers > 1:
            params["n"] = answers
        body = {"model": self.model, "return_token_ids": True, **(fields or {})}
        if self._facts.generates:
            request = {"token_ids": ids, "output_mode": "text", "sampling_params": params, **body}
            try:
                if on_text is not None and answers == 1:
                    return [await self._streamed(request, on_text)]
                return _sampled_answers(await self._send("/inference/v1/generate", request), ids)
            except RequestError as error:
                if error.status not in _MISSING:
                    raise
                self._facts.generates = False
        data = _ENCODER.encode({"prompt": ids, **body, **params})
        return _sampled_answers(await self._post(EncodedRequest("/completions", data)), ids)

    async def read(
        self,
        answers: Sequence[Completion[None]],
        tools: Sequence[ToolSpec] = (),
        *,
        choice: str = "auto",
        template: Mapping[str, Any] | None = None,
        parse: bool | None = None,
    ) -> list[Completion[None]]:
        """Separate answers into text, reasoning and tool calls, with the engine's own parsers where tools are offered.

        :param choice: `auto`, `none`, `required`, or the name of a tool.
        :param parse: use the parsers also without tools, for the engine's parser of reasoning.
        """
        parse = (bool(tools) and choice != "none") if parse is None else parse
        read = [without_reasoning(answer) for answer in answers]
        indexes = [index for index, answer in enumerate(answers) if _content_ids(answer)] if parse else []
        if indexes:
            chat = {"messages": (), **_tool_fields(tools, choice), **(template or {})}
            choices = [
                {
                    "index": number,
                    "token_ids": _content_ids(answers[index]),
                    "finish_reason": answers[index].finish,
                }
                for number, index in enumerate(indexes)
            ]
            # The end of the prompt decides about a leading space, and about reasoning that the template began.
            prompt_end = answers[0].tokens.prompt[-_SEED_IDS:] if answers[0].tokens is not None else ()
            response = {"request_id": "read", "choices": choices, "prompt_token_ids": prompt_end}
            body = {"model": self.model, "generate_response": response, "chat_request": chat}
            parsed = _PARSED.decode(await self._send("/v1/chat/completions/derender", body)).choices
            if len(parsed) != len(indexes):
                raise msgspec.ValidationError(f"{len(parsed)} parsed answers of {len(indexes)}")
            for index, parsed_choice in zip(indexes, parsed, strict=True):
                read[index] = _parsed_answer(parsed_choice.message, answers[index])
        return read

    async def grammar(
        self, tools: Sequence[ToolSpec], choice: str, *, template: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return the sampling parameter that enforces a tool call; `None` if nothing is enforced.

        :param choice: `auto`, `none`, `required`, or the name of a tool.
        """
        if choice in ("auto", "none"):
            return None
        options = template or {}
        # Only a strict tool's schema is enforced; else arguments can be any JSON, such as a number.
        fields = {
            "messages": chat_messages((_QUESTION,)),
            **_tool_fields(tools, choice, strict=True),
            **options,
        }
        key = blake2b(_ENCODER.encode(fields), digest_size=16).digest()
        if key in self._facts.grammars:
            return self._facts.grammars[key]
        rendered = await self._rendered({"model": self.model, **fields})
        outputs = rendered.sampling_params.structured_outputs or {}
        grammar = {name: value for name, value in outputs.items() if not name.startswith("_")}
        return _cache(self._facts.grammars, key, without_none(grammar) or None)

    async def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        options: Mapping[str, Any],
        *,
        ending: str = "",
    ) -> list[int]:
        """Render messages.

        :param ending: `open` leaves the last message open, `closed` closes it; empty: begin the next answer.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": chat_messages(messages),
            "add_generation_prompt": not ending,
            "continue_final_message": ending == "open",
            **options,
        }
        if not tools:
            return _TOKENIZED.decode(await self._send("/tokenize", body)).tokens
        return (await self._rendered({**body, **_tool_fields(tools)})).token_ids

    async def _rendered(self, body: Mapping[str, Any]) -> _Rendered:
        try:
            return _RENDERED.decode(await self._send("/v1/chat/completions/render", body))
        except RequestError as error:
            if error.status in _MISSING:
                self._facts.renders = False
                error.retry, error.backs_off = True, False
            elif error.status == 400 and b"tool-call-parser" in error.body:
                raise RequestError(ModelFailureKind.DENIED, _NO_PARSER, status=200) from None
            raise

    async def _check_tools(self, tools: Sequence[ToolSpec], options: Mapping[str, Any]) -> None:
        """Check once that the template renders tools.

        :raises RequestError: if it does not: the model would never know of them.
        """
        key = _ENCODER.encode(options)
        if key not in self._facts.with_tools:
            if await self._render((_QUESTION,), tools[:1], options) == await self._render(
                (_QUESTION,), (), options
            ):
                raise RequestError(ModelFailureKind.DENIED, _NO_TEMPLATE, status=200)
            _cache(self._facts.with_tools, key, True)

    async def _stand_in(
        self, tools: Sequence[ToolSpec], options: Mapping[str, Any], ending: str
    ) -> list[int]:
        """Return the tokens of the stand-in conversation."""
        key = blake2b(_ENCODER.encode((options, tools, ending)), digest_size=16).digest()
        tokens = self._facts.stand_ins.get(key)
        return tokens or _cache(
            self._facts.stand_ins, key, await self._render(_STAND_IN, tools, options, ending=ending)
        )

    async def _closing(self, tools: Sequence[ToolSpec], options: Mapping[str, Any]) -> list[int] | None:
        """Return the tokens that close an answer, which some templates do not have; `None` if they can't be determined."""
        begin = await self._stand_in(tools, options, "open")
        closed = await self._stand_in(tools, options, "closed")
        return closed[len(begin) :] if closed[: len(begin)] == begin else None

    async def _send(self, path: str, body: Mapping[str, Any]) -> bytes:
        return await self._post(EncodedRequest(f"{self._server}{path}", _ENCODER.encode(body)))

    async def _streamed(self, body: Mapping[str, Any], on_text: Callable[[str], None]) -> Completion[None]:
        stream = AnswerStream(on_text)
        data = _ENCODER.encode({**body, "stream": True})
        request = EncodedRequest(f"{self._server}/inference/v1/generate", data, on_line=stream.add)
        await self._post(request)
        return stream.answer(body["token_ids"])


def _tool_fields(tools: Sequence[ToolSpec], choice: str = "auto", *, strict: bool = False) -> dict[str, Any]:
    """Return the fields of a chat request that list tools and the choice among them."""
    if not tools:
        return {}
    functions = [function_tool(tool) for tool in tools]
    for function in functions if strict else ():
        function["function"]["strict"] = True
    if choice == "auto":
        return {"tools": functions}
    named = {"type": "function", "function": {"name": choice}}
    return {"tools": functions, "tool_choice": choice if choice in ("none", "required") else named}


def _cache(cache: dict[bytes, T], key: bytes, value: T) -> T:
    """Cache a value, and forget the oldest ones: clients choose options and tools."""
    while len(cache) >= _MAX_CACHED:
        cache.pop(next(iter(cache)), None)
    cache[key] = value
    return value


def joined(known: "array[int]", tail: Sequence[int]) -> "array[int]":
    """Return the tokens of a conversation and the tail after its last answer, which has a closing token unless it was cut."""
    closed = known[-1:] == array("i", tail[:1])
    return known + array("i", tail[int(closed) :])


def _after_equal(whole: list[int], other: list[int], closing: int, count: int) -> list[int] | None:
    """Return what follows the answer in both, from its closing token on; `None` if it differs."""
    start, other_start = _index_of(whole, closing, count), _index_of(other, closing, count)
    if start is None or other_start is None:
        return None
    if whole[:start] == other[:other_start] or whole[start:] != other[other_start:]:
        return None
    return whole[start:]


def _index_of(ids: Sequence[int], wanted: int, count: int) -> int | None:
    """Return the index of the `count`-th occurrence."""
    indexes = [index for index, id in enumerate(ids) if id == wanted]
    return indexes[count - 1] if 0 < count <= len(indexes) else None


class AnswerStream:
    """One answer that arrives as server-sent events."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._sent = ""
        self._length = 0
        self._failure = ""
        self._chunks: list[_SampledChoice] = []

    def add(self, line: bytes) -> None:
        """Add a line."""
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            return
        if data.startswith(b'{"error"'):
            self._failure = data.decode(errors="replace")[:300]
            return
        chunk = _GENERATED.decode(data)
        if chunk.prompt_token_ids is not None:
            # The first one; after a repeated request, text that was passed on is not passed on again.
            self._sent = max(self._sent, self._text, key=len)
            self._length, self._chunks, self._failure = 0, [], ""
        for choice in chunk.choices:
            sent = self._sent[self._length : self._length + len(choice.text)]
            if not choice.text.startswith(sent):
                raise RequestError(
                    ModelFailureKind.UNAVAILABLE, "a repeated answer differs from its beginning"
                )
            self._chunks.append(choice)
            self._length += len(choice.text)
            if new := choice.text[len(sent) :]:
                self._on_text(new)

    @property
    def _text(self) -> str:
        return "".join(choice.text for choice in self._chunks)

    def answer(self, prompt: Sequence[int]) -> Completion[None]:
        """Return the whole answer.

        :raises RequestError: if it is incomplete.
        """
        last = self._chunks[-1] if self._chunks else _SampledChoice()
        if self._failure or last.finish_reason is None:
            why = self._failure or "the answer ended early"
            raise RequestError(ModelFailureKind.UNAVAILABLE, why, retry=False)
        ids = [id for chunk in self._chunks for id in chunk.token_ids or ()]
        values = [value for chunk in self._chunks for value in (chunk.logprobs or AnswerLogprobs()).values]
        whole = replace(last, text=self._text, token_ids=ids, logprobs=AnswerLogprobs(token_logprobs=values))
        return _sampled_answer(whole, prompt, "")


def _sampled_answers(body: bytes, ids: Sequence[int]) -> list[Completion[None]]:
    """Decode sampled answers.

    :param ids: their prompt.
    :raises msgspec.MsgspecError: if they can't be decoded.
    """
    generated = _GENERATED.decode(body)
    if not generated.choices:
        raise msgspec.ValidationError("no choices")
    prompt = generated.prompt_token_ids
    ordered = sorted(generated.choices, key=lambda choice: choice.index)
    return [
        _sampled_answer(choice, prompt or choice.prompt_token_ids or ids, generated.model or "")
        for choice in ordered
    ]


def _sampled_answer(choice: _SampledChoice, prompt: Sequence[int], model: str) -> Completion[None]:
    finish = choice.finish_reason or "stop"
    spans = tuple((span.version, span.start, span.end) for span in choice.weight_versions or ())
    tokens = tokens_of(prompt, choice.token_ids, choice.logprobs, finish, spans)
    return Completion(
        text=choice.text,
        finish=finish,
        usage=Usage(1, len(tokens.prompt), len(tokens.sampled)),
        model=model,
        tokens=tokens,
        stop=choice.stop_reason if isinstance(choice.stop_reason, str) else "",
    )


def _content_ids(answer: Completion[None]) -> tuple[int, ...]:
    """Return the sampled tokens without the one that closes the message."""
    sampled = () if answer.tokens is None else answer.tokens.sampled
    return sampled[:-1] if answer.finish == "stop" and not answer.stop else sampled


def _parsed_answer(message: AnswerMessage, answer: Completion[None]) -> Completion[None]:
    """Return an answer with the text, reasoning and calls that the engine's parsers found."""
    text = message.text
    if answer.stop and answer.stop in text:
        # It stays in the tokens.
        text = text[: text.rindex(answer.stop)]
    # An answer with the same calls at another place has other ids.
    tokens = answer.tokens
    mark = tokens and _ENCODER.encode((len(tokens.prompt), tokens.prompt[-_MARK_IDS:], tokens.sampled))
    calls = tuple(
        parse_call(call_id(mark or b"", number), call.function.name, call.function.arguments)
        for number, call in enumerate(message.tool_calls or ())
    )
    finish = "tool_calls" if calls and answer.finish != "length" else answer.finish
    reasoning = str(message.reasoning or "")
    return without_reasoning(replace(answer, text=text, reasoning=reasoning, calls=calls, finish=finish))
