"""Conversations with vLLM as tokens: text that was read or sampled once is never tokenized again.

vLLM makes the first prompt of a conversation with its chat template. A later prompt is all tokens so far, plus those that
follow the last answer. The latter are found with a stand-in conversation: the template puts the same tokens after any
answer. So a sampled answer stays exactly as it was sampled, and a prompt stays the same even if the template would change
earlier messages.
"""

from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from agentflow.models._apis import ApiAnswer, EncodedRequest, PreparedCall
from agentflow.models._apis._messages import instructed, text_of, without_none
from agentflow.models._apis._openai import AnswerLogprobs, AnswerUsage, tokens_of
from agentflow.models._escaping import escaped_message
from agentflow.models._protocol import Message, TextPart
from agentflow.models._request_error import RequestError
from agentflow.telemetry import get_logger
from agentflow.trajectory import Tokens, Usage

logger = get_logger(__name__)
Post: TypeAlias = Callable[[EncodedRequest], Awaitable[bytes]]
"""Function that sends a request and returns the body of the answer."""
_STAND_IN: Final = (Message("user", (TextPart("-"),)), Message("assistant", (TextPart("-"),)))
_OF_TEMPLATES: Final = ("chat_template", "chat_template_kwargs")
_OF_REQUESTS: Final = ("cache_salt", "priority", "request_id")
_CLOSED: Final = (403, 404, 405)
_MOST = 16_000_000


class _Tokenized(Struct):
    tokens: list[int]


class _Span(Struct):
    version: str
    start: int
    end: int


class _Choice(Struct):
    text: str = ""
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: AnswerLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    weight_versions: list[_Span] | None = None


class _Generated(Struct):
    choices: list[_Choice]
    model: str | None = None
    usage: AnswerUsage | None = None
    prompt_token_ids: list[int] | None = None


_ENCODER = msgspec.json.Encoder()
_TOKENIZED = msgspec.json.Decoder(_Tokenized)
_GENERATED = msgspec.json.Decoder(_Generated)


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


def takes_tokens(ask: PreparedCall) -> bool:
    """Return true if a call can be sent as tokens: it has text only, and no tools."""
    return not ask.tools and all(
        isinstance(part, TextPart) for message in ask.messages for part in message.parts
    )


class ExactTokens:
    """Token-level client of one model at vLLM."""

    def __init__(self, url: str, known: TokenHistory) -> None:
        """Describe the client.

        :param url: address of the endpoint; the tokenizer endpoint is next to its `/v1`.
        :param known: tokens that the model has read and sampled so far.
        """
        self._server = url.removesuffix("/v1")
        self._known = known
        self._stands: dict[bytes, list[int]] = {}
        self._generates = True
        self._warned = False

    async def answer(self, ask: PreparedCall, post: Post) -> ApiAnswer:
        """Answer one call.

        :raises RequestError: if a request fails.
        :raises msgspec.MsgspecError: if an answer can't be decoded.
        """
        prompt = await self._prompt(ask, post)
        answered = (await self._drawn(ask, prompt, post)).without_reasoning()
        if answered.tokens is not None:
            # As it comes back in the next call.
            reply = escaped_message(Message("assistant", (TextPart(answered.text),)))
            self._known.keep((*ask.messages, reply), answered.tokens)
        return answered

    async def _prompt(self, ask: PreparedCall, post: Post) -> list[int]:
        messages = instructed(ask)
        count, known = self._known.longest(ask.messages)
        if count:
            tail = await self._tail(ask, messages[count:], post)
            if tail is not None:
                # A complete answer ends with its closing token; a cut one has none.
                return known + tail[known[-1:] == tail[:1] :]
        return await self._tokens_of(ask, messages, post)

    async def _tail(self, ask: PreparedCall, messages: Sequence[Message], post: Post) -> list[int] | None:
        """Return the tokens that the template puts after an answer for these messages; `None` if they can't be determined."""
        options = _ENCODER.encode(_chosen(ask.sampling.extra, _OF_TEMPLATES))
        stands = self._stands.get(options)
        if stands is None:
            stands = await self._tokens_of(ask, _STAND_IN, post, goes_on=True)
            self._stands[options] = stands
        whole = await self._tokens_of(ask, (*_STAND_IN, *messages), post)
        if whole[: len(stands)] == stands:
            return whole[len(stands) :]
        if not self._warned:
            self._warned = True
            why = "its chat template alters earlier messages; each prompt is tokenized from its text"
            logger.warning("conversation prompts are not exact", model=ask.model, reason=why)
        return None

    async def _tokens_of(
        self, ask: PreparedCall, messages: Sequence[Message], post: Post, *, goes_on: bool = False
    ) -> list[int]:
        """Tokenize messages with the chat template.

        :param goes_on: leave the last message open.
        """
        body = {
            "model": ask.model,
            "messages": [{"role": message.role, "content": text_of(message.parts)} for message in messages],
            "add_generation_prompt": not goes_on,
            "continue_final_message": goes_on,
            **_chosen(ask.sampling.extra, _OF_TEMPLATES),
        }
        answer = await post(EncodedRequest(f"{self._server}/tokenize", _ENCODER.encode(body)))
        return _TOKENIZED.decode(answer).tokens

    async def _drawn(self, ask: PreparedCall, prompt: list[int], post: Post) -> ApiAnswer:
        """Sample a completion, through the API that returns the weights version if the server has it."""
        if self._generates:
            try:
                return _read(await post(self._generate(ask, prompt)))
            except RequestError as error:
                if error.status not in _CLOSED:
                    raise
                self._generates = False
        return _read(await post(_complete(ask, prompt)))

    def _generate(self, ask: PreparedCall, prompt: list[int]) -> EncodedRequest:
        extra = ask.sampling.extra
        more = {name: extra[name] for name in extra if name not in (*_OF_TEMPLATES, *_OF_REQUESTS)}
        body = {
            "model": ask.model,
            "token_ids": prompt,
            "output_mode": "text",
            "return_token_ids": True,
            "sampling_params": {**_sampling(ask), **more},
            **_chosen(extra, _OF_REQUESTS),
        }
        return EncodedRequest(f"{self._server}/inference/v1/generate", _ENCODER.encode(body))


def _complete(ask: PreparedCall, prompt: list[int]) -> EncodedRequest:
    extra = ask.sampling.extra
    body = {
        "model": ask.model,
        "prompt": prompt,
        "return_token_ids": True,
        **_sampling(ask),
        **{name: extra[name] for name in extra if name not in _OF_TEMPLATES},
    }
    return EncodedRequest("/completions", _ENCODER.encode(body))


def _sampling(ask: PreparedCall) -> dict[str, Any]:
    """Return the sampling parameters that both APIs share."""
    sampling, asked = ask.sampling, ask.asked
    # 0 alternatives besides the sampled token. Without max_tokens, `/completions` stops after 16 tokens.
    outputs = None
    if asked is not None and asked.format != "text":
        outputs = {"json": asked.schema} if asked.format == "json_schema" else {"json_object": True}
    chosen = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
        "structured_outputs": outputs,
    }
    return {"logprobs": 0, "max_tokens": sampling.max_tokens, **without_none(chosen)}


def _chosen(extra: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: extra[name] for name in names if name in extra}


def _read(answer: bytes) -> ApiAnswer:
    generated = _GENERATED.decode(answer)
    if not generated.choices:
        raise msgspec.ValidationError("no choices")
    choice, used = generated.choices[0], generated.usage or AnswerUsage()
    finish = choice.finish_reason or "stop"
    spans = tuple((span.version, span.start, span.end) for span in choice.weight_versions or ())
    prompt = generated.prompt_token_ids or choice.prompt_token_ids
    return ApiAnswer(
        text=choice.text,
        finish=finish,
        refusal="",
        usage=Usage(1, used.prompt_tokens, used.completion_tokens),
        model=generated.model or "",
        tokens=tokens_of(prompt, choice.token_ids, choice.logprobs, finish, spans),
    )
