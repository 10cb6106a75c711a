"""Conversations with vLLM as tokens: text that was read or sampled once is never tokenized again.

vLLM renders the first prompt of a conversation. A later prompt is the tokens of the longest known beginning, and what follows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentflow.models._apis import ApiAnswer, PreparedCall
from agentflow.models._apis._messages import instructed, without_none
from agentflow.models._conversations import ConversationIndex, ConversationMatch, PromptOrigin
from agentflow.models._escaping import escaped_message
from agentflow.models._protocol import ImagePart, Message, Part, Sampling, TextPart, ToolReply
from agentflow.models._token_engine import EngineFacts, Post, TokenEngine, request_fields
from agentflow.telemetry import get_logger

logger = get_logger(__name__)
_OF_TEMPLATES: Final = ("chat_template", "chat_template_kwargs")
_OF_REQUESTS: Final = ("cache_salt", "priority", "request_id")


class ExactTokens:
    """Token-level client of one model at vLLM."""

    def __init__(self, url: str, known: ConversationIndex) -> None:
        """Describe the client.

        :param url: address of the endpoint up to `/v1`.
        :param known: conversations that the model has read and sampled so far.
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
        match, prompt = await self._prompt(ask, engine, template)
        drawn = await engine.generate(prompt, _sampling(ask), fields=request_fields(extra))
        choice = "auto" if ask.may_call else "none"
        [found] = await engine.read(drawn, ask.tools, choice=choice, template=template)
        # As it comes back in the next call.
        texts: tuple[Part, ...] = (TextPart(found.text),) if found.text or not found.calls else ()
        reply = escaped_message(Message("assistant", (*texts, *found.calls)))
        if found.tokens is not None:
            self._known.add(found.tokens.mark, match, reply, match.added(found.tokens))
        return found

    async def _prompt(
        self, ask: PreparedCall, engine: TokenEngine, template: Mapping[str, Any]
    ) -> tuple[ConversationMatch, list[int]]:
        """Return the known part of the prompt, and all its tokens."""
        messages = instructed(ask)
        match = self._known.match(ask.messages)
        prompt = await engine.continued(match, messages[match.count - 1 :], ask.tools, template=template)
        if prompt is not None:
            return match, prompt.tolist()
        if match.parent and not self._warned:
            self._warned = True
            why = "its chat template alters earlier messages; each prompt is tokenized from its text"
            logger.warning("conversation prompts are not exact", model=ask.model, reason=why)
        return match.rendered(PromptOrigin.TEMPLATE), await engine.render(
            messages, ask.tools, template=template
        )


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
