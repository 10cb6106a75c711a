"""Conversations with vLLM as tokens: text that was read or sampled once is never tokenized again.

vLLM renders the first prompt of a conversation. A later prompt is the tokens of the longest known beginning, and what follows.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from agentflow.models._apis import ApiAnswer, PreparedCall
from agentflow.models._apis._messages import instructed, without_none
from agentflow.models._escaping import escaped_message
from agentflow.models._protocol import ImagePart, Message, Part, Sampling, TextPart, ToolReply
from agentflow.models._token_engine import EngineFacts, Post, TokenEngine, joined, request_fields
from agentflow.telemetry import get_logger
from agentflow.trace import Tokens, Usage

logger = get_logger(__name__)
_OF_TEMPLATES: Final = ("chat_template", "chat_template_kwargs")
_OF_REQUESTS: Final = ("cache_salt", "priority", "request_id")
_MOST = 16_000_000
_ENCODER = msgspec.json.Encoder()


class TokenHistory:
    """Tokens that a model read and sampled, by the mark of the call and by the text; least recently used ones are dropped.

    Equal texts can be sampled as different tokens, and many conversations have the same beginning, so the text does not
    always identify a call. The mark does.
    """

    def __init__(self, most: int = _MOST) -> None:
        """Start empty.

        :param most: maximum number of tokens to keep, four bytes each.
        """
        self._most = most
        self._size = 0
        self._known: OrderedDict[str, tuple[array[int], bytes]] = OrderedDict()
        self._said: dict[bytes, str] = {}

    def keep(self, messages: Sequence[Message], tokens: Tokens) -> None:
        """Store the tokens of these messages, the last of which is the answer."""
        *_, (_, _, words) = _answers(messages)
        mark = tokens.mark
        self._forget(mark)
        ids = array("i", tokens.prompt)
        ids.extend(tokens.sampled)
        self._known[mark] = ids, words
        self._said[words] = mark
        self._size += len(ids)
        while self._size > self._most and len(self._known) > 1:
            self._forget(next(iter(self._known)))

    def longest(self, messages: Sequence[Message]) -> tuple[int, list[int]]:
        """Return the number of messages with known tokens, and these tokens."""
        for count, mark, words in reversed(list(_answers(messages))):
            found = mark if mark in self._known else self._said.get(words)
            if found is not None:
                self._known.move_to_end(found)
                return count, self._known[found][0].tolist()
        return 0, []

    def _forget(self, mark: str) -> None:
        if mark in self._known:
            ids, words = self._known.pop(mark)
            self._size -= len(ids)
            if self._said.get(words) == mark:
                del self._said[words]


def _answers(messages: Sequence[Message]) -> Iterator[tuple[int, str, bytes]]:
    """Yield after each answer: number of messages, mark of the answer, hash of all text so far."""
    text_hash = blake2b(digest_size=16)
    for count, message in enumerate(messages, 1):
        text_hash.update(_ENCODER.encode((message.role, message.parts)))
        if message.role == "assistant":
            yield count, message.mark, text_hash.copy().digest()


class ExactTokens:
    """Token-level client of one model at vLLM."""

    def __init__(self, url: str, known: TokenHistory) -> None:
        """Describe the client.

        :param url: address of the endpoint up to `/v1`.
        :param known: tokens that the model has read and sampled so far.
        """
        self._url = url
        self._known = known
        self._facts = EngineFacts()
        self._warned = False

    def takes(self, ask: PreparedCall) -> bool:
        """Return true if a call can be sent as tokens: it has no images, and the server renders its tools."""
        return (self._facts.renders or not ask.tools) and not any(
            _has_image(part) for message in ask.messages for part in message.parts
        )

    async def answer(self, ask: PreparedCall, post: Post) -> ApiAnswer:
        """Answer one call.

        :raises RequestError: if a request fails.
        :raises msgspec.MsgspecError: if an answer can't be decoded.
        """
        engine = TokenEngine(ask.model, self._url, post, self._facts)
        extra = ask.sampling.extra
        template = _chosen(extra, _OF_TEMPLATES)
        prompt = await self._prompt(ask, engine, template)
        [drawn] = await engine.generate(prompt, _sampling(ask), fields=request_fields(extra))
        choice = "auto" if ask.may_call else "none"
        [found] = await engine.read([drawn], ask.tools, choice=choice, template=template)
        # As it comes back in the next call.
        texts: tuple[Part, ...] = (TextPart(found.text),) if found.text or not found.calls else ()
        reply = escaped_message(Message("assistant", (*texts, *found.calls)))
        self._known.keep((*ask.messages, reply), drawn.tokens)
        finish = drawn.tokens.finish
        return ApiAnswer(
            text=found.text,
            finish="tool_calls" if found.calls and finish != "length" else finish,
            refusal="",
            usage=Usage(1, len(drawn.tokens.prompt), len(drawn.tokens.sampled)),
            model=drawn.model,
            calls=found.calls,
            tokens=drawn.tokens,
            reasoning=found.reasoning,
        )

    async def _prompt(self, ask: PreparedCall, engine: TokenEngine, template: Mapping[str, Any]) -> list[int]:
        messages = instructed(ask)
        count, known = self._known.longest(ask.messages)
        if count:
            tail = await engine.tail(messages[count - 1], messages[count:], ask.tools, template=template)
            if tail is not None:
                return joined(known, tail)
            if not self._warned:
                self._warned = True
                why = "its chat template alters earlier messages; each prompt is tokenized from its text"
                logger.warning("conversation prompts are not exact", model=ask.model, reason=why)
        return await engine.render(messages, ask.tools, template=template)


def _has_image(part: Part) -> bool:
    parts = part.parts if isinstance(part, ToolReply) else (part,)
    return any(isinstance(one, ImagePart) for one in parts)


def _sampling(ask: PreparedCall) -> dict[str, Any]:
    """Return the parameters of a call by vLLM's names."""
    asked, extra = ask.answer_schema, ask.sampling.extra
    outputs = None
    if asked is not None and asked.format != "text":
        outputs = {"json": asked.schema} if asked.format == "json_schema" else {"json_object": True}
    more = {name: extra[name] for name in extra if name not in (*_OF_TEMPLATES, *_OF_REQUESTS)}
    return {**engine_sampling(ask.sampling, outputs), **more}


def engine_sampling(sampling: Sampling, structured: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return sampling parameters by vLLM's names. See docs/tokens.md.

    :param structured: constraints of the answer.
    """
    chosen = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
        "structured_outputs": structured,
    }
    # Without max_tokens, `/completions` stops after 16 tokens.
    return {"max_tokens": sampling.max_tokens, **without_none(chosen)}


def _chosen(extra: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: extra[name] for name in names if name in extra}
