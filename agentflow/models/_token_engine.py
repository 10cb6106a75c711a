"""vLLM as a token engine: render messages to tokens, sample from tokens, read sampled tokens as text and tool calls.

A conversation is continued by tokens: a prompt is all tokens so far, plus those that the chat template puts after the last
answer. The latter are found with a stand-in conversation: the template puts the same tokens after any answer. So a sampled
answer stays exactly as it was sampled, and a prompt stays the same even if the template would change earlier messages.
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
from agentflow.models._apis import ApiAnswer, EncodedRequest
from agentflow.models._apis._messages import function_tool, without_none
from agentflow.models._apis._openai import chat_messages
from agentflow.models._conversations import ConversationMatch
from agentflow.models._protocol import Message, TextPart, ToolCall, ToolSpec
from agentflow.models._request_error import RequestError
from agentflow.models._token_answers import (
    AnswerStream,
    content_ids,
    parse_answers,
    read_answers,
)

T = TypeVar("T")
Post: TypeAlias = Callable[[EncodedRequest], Awaitable[bytes]]
"""Function that sends a request and returns the body of the answer."""
_ASKED: Final = Message("user", (TextPart("-"),))
_STAND_IN: Final = (_ASKED, Message("assistant", (TextPart("-"),)))
_CLOSED: Final = (403, 404, 405)
_OF_REQUESTS: Final = ("cache_salt", "priority", "request_id")
_SEED_IDS: Final = 8
_MOST_KEPT: Final = 128
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


_ENCODER = msgspec.json.Encoder()
_TOKENIZED = msgspec.json.Decoder(_Tokenized)
_DETOKENIZED = msgspec.json.Decoder(_Detokenized)
_RENDERED = msgspec.json.Decoder(_Rendered)


class EngineFacts:
    """Facts about one model at one engine, learned from its answers."""

    def __init__(self) -> None:
        self.generates = True
        """It has the API that returns weights versions."""
        self.renders = True
        """It has the API that renders tools."""
        self.open: dict[bytes, list[int]] = {}
        """Tokens of the stand-in conversation up to its answer, by template options."""
        self.closed: dict[bytes, list[int]] = {}
        """The same, with the closing tokens of the answer."""
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
        stand = (_ASKED, Message("assistant", calls)) if calls else _STAND_IN
        render_whole = partial(self._render, (*stand, *messages), some, options)
        if calls:
            closing = await self._closing(some, options)
            render_closed = partial(self._render, stand, some, options, ending="closed")
            whole, closed = await together([render_whole, render_closed])
            ends = closing is not None and closed[len(closed) - len(closing) :] == closing
            if closing is not None and ends and whole[: len(closed)] == closed:
                return closing + whole[len(closed) :]
        else:
            begin = await self._open(some, options)
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
        other = await self._render((_ASKED, other_answer, *messages), some, options)
        return _after_equal(whole, other, closing[0], closed.count(closing[0]))

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Mapping[str, Any],
        *,
        answers: int = 1,
        fields: Mapping[str, Any] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> list[ApiAnswer]:
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
            asked = {"token_ids": ids, "output_mode": "text", "sampling_params": params, **body}
            try:
                if on_text is not None and answers == 1:
                    return [await self._streamed(asked, on_text)]
                return read_answers(await self._send("/inference/v1/generate", asked), ids)
            except RequestError as error:
                if error.status not in _CLOSED:
                    raise
                self._facts.generates = False
        request = EncodedRequest("/completions", _ENCODER.encode({"prompt": ids, **body, **params}))
        return read_answers(await self._post(request), ids)

    async def read(
        self,
        answers: Sequence[ApiAnswer],
        tools: Sequence[ToolSpec] = (),
        *,
        choice: str = "auto",
        template: Mapping[str, Any] | None = None,
        parse: bool | None = None,
    ) -> list[ApiAnswer]:
        """Separate answers into text, reasoning and tool calls, with the engine's own parsers where tools are offered.

        :param choice: `auto`, `none`, `required`, or the name of a tool.
        :param parse: use the parsers also without tools, for the engine's parser of reasoning.
        """
        parse = (bool(tools) and choice != "none") if parse is None else parse
        found = [answer.without_reasoning() for answer in answers]
        filled = [number for number, answer in enumerate(answers) if content_ids(answer)] if parse else []
        if filled:
            chat = {"messages": (), **self._tools(tools, choice), **(template or {})}
            choices = [
                {
                    "index": place,
                    "token_ids": content_ids(answers[number]),
                    "finish_reason": answers[number].finish,
                }
                for place, number in enumerate(filled)
            ]
            # The end of the prompt decides about a leading space, and about reasoning that the template began.
            before = answers[0].tokens.prompt[-_SEED_IDS:] if answers[0].tokens is not None else ()
            given = {"request_id": "read", "choices": choices, "prompt_token_ids": before}
            body = {"model": self.model, "generate_response": given, "chat_request": chat}
            done = await self._send("/v1/chat/completions/derender", body)
            for number, one in zip(
                filled, parse_answers(done, [answers[one] for one in filled]), strict=True
            ):
                found[number] = one
        return found

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
        fields = {"messages": chat_messages((_ASKED,)), **self._tools(tools, choice, strict=True), **options}
        key = blake2b(_ENCODER.encode(fields), digest_size=16).digest()
        if key in self._facts.grammars:
            return self._facts.grammars[key]
        rendered = await self._rendered({"model": self.model, **fields})
        outputs = rendered.sampling_params.structured_outputs or {}
        named = {name: value for name, value in outputs.items() if not name.startswith("_")}
        return _kept(self._facts.grammars, key, without_none(named) or None)

    def _tools(
        self, tools: Sequence[ToolSpec], choice: str = "auto", *, strict: bool = False
    ) -> dict[str, Any]:
        if not tools:
            return {}
        listed = [function_tool(tool) for tool in tools]
        for one in listed if strict else ():
            one["function"]["strict"] = True
        named = {"type": "function", "function": {"name": choice}}
        known = choice if choice in ("auto", "none", "required") else named
        chosen = {} if choice == "auto" else {"tool_choice": known}
        return {"tools": listed, **chosen}

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
        return (await self._rendered({**body, **self._tools(tools)})).token_ids

    async def _rendered(self, body: Mapping[str, Any]) -> _Rendered:
        try:
            return _RENDERED.decode(await self._send("/v1/chat/completions/render", body))
        except RequestError as error:
            if error.status in _CLOSED:
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
            if await self._render((_ASKED,), tools[:1], options) == await self._render(
                (_ASKED,), (), options
            ):
                raise RequestError(ModelFailureKind.DENIED, _NO_TEMPLATE, status=200)
            _kept(self._facts.with_tools, key, True)

    async def _open(self, tools: Sequence[ToolSpec], options: Mapping[str, Any]) -> list[int]:
        return await self._stand_in(tools, options, "open")

    async def _stand_in(
        self, tools: Sequence[ToolSpec], options: Mapping[str, Any], ending: str
    ) -> list[int]:
        key = blake2b(_ENCODER.encode((options, tools)), digest_size=16).digest()
        cache = self._facts.open if ending == "open" else self._facts.closed
        found = cache.get(key)
        return found or _kept(cache, key, await self._render(_STAND_IN, tools, options, ending=ending))

    async def _closing(self, tools: Sequence[ToolSpec], options: Mapping[str, Any]) -> list[int] | None:
        """Return the tokens that close an answer, which some templates do not have; `None` if they can't be determined."""
        begin = await self._open(tools, options)
        closed = await self._stand_in(tools, options, "closed")
        return closed[len(begin) :] if closed[: len(begin)] == begin else None

    async def _send(self, path: str, body: Mapping[str, Any]) -> bytes:
        return await self._post(EncodedRequest(f"{self._server}{path}", _ENCODER.encode(body)))

    async def _streamed(self, body: Mapping[str, Any], on_text: Callable[[str], None]) -> ApiAnswer:
        stream = AnswerStream(on_text)
        data = _ENCODER.encode({**body, "stream": True})
        request = EncodedRequest(f"{self._server}/inference/v1/generate", data, on_line=stream.add)
        await self._post(request)
        return stream.answer(body["token_ids"])


def _kept(cache: dict[bytes, T], key: bytes, value: T) -> T:
    """Keep a value, and forget the oldest ones: clients choose options and tools."""
    while len(cache) >= _MOST_KEPT:
        cache.pop(next(iter(cache)), None)
    cache[key] = value
    return value


def joined(known: "array[int]", tail: Sequence[int]) -> "array[int]":
    """Return the tokens of a conversation and the tail after its last answer, which has a closing token unless it was cut."""
    closed = known[-1:] == array("i", tail[:1])
    return known + array("i", tail[int(closed) :])


def _after_equal(whole: list[int], other: list[int], closing: int, count: int) -> list[int] | None:
    """Return what follows the answer in both, from its closing token on; `None` if it differs."""
    one, two = _place_of(whole, closing, count), _place_of(other, closing, count)
    if one is None or two is None or whole[:one] == other[:two] or whole[one:] != other[two:]:
        return None
    return whole[one:]


def _place_of(ids: Sequence[int], wanted: int, count: int) -> int | None:
    """Return the place of the `count`-th occurrence."""
    places = [place for place, id in enumerate(ids) if id == wanted]
    return places[count - 1] if 0 < count <= len(places) else None


def request_fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request besides its prompt and sampling."""
    return {name: extra[name] for name in _OF_REQUESTS if name in extra}
