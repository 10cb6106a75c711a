"""Conversations with tools, continued by tokens."""

from array import array
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from agentflow.errors import RunStopped
from agentflow.models import (
    Call,
    Completion,
    Message,
    TextPart,
    TokenEngine,
    ToolCall,
    ToolReply,
    ToolSpec,
)
from agentflow.models._apis import EncodedRequest
from agentflow.models._request_error import RequestError
from agentflow.models._token_engine import AnswerStream, EngineFacts, joined
from agentflow.testing.endpoint._prompt import PromptBody
from agentflow.testing.endpoint._server import EndpointConfig, FakeEndpoint
from agentflow.testing.endpoint._token_apis import CLOSE, decoded, encoded, rendered_ids
from tests.agentflow.models._serving import painter

LOOK = ToolSpec("look", "Look it up.", {"type": "object", "properties": {"q": {"type": "string"}}})
SEEN = ToolSpec("list", "List all.", {"type": "object", "properties": {}})


class Listened:
    """A fake endpoint that records its requests, and closes some of its APIs."""

    def __init__(self, *, closed: tuple[str, ...] = (), blind: bool = False) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._endpoint = FakeEndpoint(EndpointConfig(tool_turns=2))
        self._closed = closed
        self._blind = blind

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        data = await request.content.read()
        body = msgspec.json.decode(data, type=dict[str, Any])
        self.asked.append((request.path, body))
        if request.path in self._closed:
            return web.json_response({"error": {"message": "not enabled"}}, status=403)
        if self._blind and request.path.endswith("/render"):
            ids = rendered_ids(msgspec.convert({**body, "tools": []}, PromptBody))
            return web.json_response({"token_ids": ids})
        return await self._endpoint.handle(request, data)

    @property
    def prompts(self) -> list[list[int]]:
        return [body["token_ids"] for path, body in self.asked if path.endswith("/generate")]


@asynccontextmanager
async def served(engine: Listened) -> AsyncGenerator[str]:
    runner = web.ServerRunner(web.Server(engine.handle, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def asked(*messages: Message) -> Call[str]:
    return Call(role="agent", messages=messages, reply=str, tools=(LOOK, SEEN))


@pytest.mark.promise("models:exact_tools")
async def test_a_conversation_with_tools_is_continued_by_tokens() -> None:
    engine = Listened()
    messages: list[Message] = [user("How many?")]
    async with served(engine) as url, painter(url, tokens="exact") as model:
        done: list[Completion[str]] = []
        for _ in range(3):
            answer = await model.complete(asked(*messages))
            done.append(answer)
            replies = tuple(ToolReply(call.id, call.name, (TextPart("found"),)) for call in answer.calls)
            messages += [Message("assistant", answer.calls), Message("user", replies)]
    assert [answer.finish for answer in done] == ["tool_calls", "tool_calls", "stop"]
    assert done[2].text == "unknown"
    assert len({call.id for answer in done for call in answer.calls}) == 2
    for before, after in zip(engine.prompts, engine.prompts[1:], strict=False):
        assert after[: len(before)] == before
        rest = decoded(after[len(before) :])
        assert rest.endswith("\u241duser\n<tool_response>\nfound\n</tool_response>\u241e\n\u241dassistant\n")
    for answer, prompt in zip(done, engine.prompts, strict=True):
        assert answer.tokens is not None
        assert answer.tokens.prompt == tuple(prompt)
        assert answer.tokens.sampled[-1] == CLOSE
    # Only the first prompt is rendered with its tools and history.
    whole = [
        body for path, body in engine.asked if path.endswith("/render") and len(body.get("tools", ())) == 2
    ]
    assert len(whole) == 1


@pytest.mark.promise("models:exact_tools")
async def test_without_the_token_apis_tools_are_sent_as_messages() -> None:
    engine = Listened(closed=("/v1/chat/completions/render",))
    async with served(engine) as url, painter(url, tokens="exact") as model:
        first = await model.complete(asked(user("How many?")))
        await model.complete(asked(user("Or how few?")))
    assert first.calls
    assert first.tokens is not None
    assert [path for path, _ in engine.asked].count("/v1/chat/completions") == 2
    assert [path for path, _ in engine.asked].count("/v1/chat/completions/render") == 1


@pytest.mark.promise("models:exact_tools")
async def test_a_model_whose_template_has_no_tools_is_an_error_of_one_line() -> None:
    async with served(Listened(blind=True)) as url, painter(url, tokens="exact") as model:
        with pytest.raises(RunStopped, match="its chat template has no tools; serve a model") as stopped:
            await model.complete(asked(user("How many?")))
    assert "\n" not in stopped.value.message


@pytest.mark.promise("models:exact_tools")
async def test_a_last_answer_without_tools_is_read_as_text() -> None:
    engine = Listened()
    async with served(engine) as url, painter(url, tokens="exact") as model:
        done = await model.complete(msgspec.structs.replace(asked(user("How many?")), may_call=False))
    assert done.calls == ()
    assert done.text.startswith("<tool_call>"), "the fake model wants to call one all the same"
    assert not any(path.endswith("/derender") for path, _ in engine.asked)
    assert encoded(done.text) == list(done.tokens.sampled[:-1]) if done.tokens else False


class Templates:
    """Renders messages with a template of its own: letters are tokens, capitals open and close messages."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.engine = TokenEngine("m", "http://letters/v1", self.post)

    async def post(self, request: EncodedRequest) -> bytes:
        body = msgspec.json.decode(request.body, type=dict[str, Any])
        text = ""
        for place, message in enumerate(body["messages"]):
            last = place == len(body["messages"]) - 1
            calls = "".join(f"({call['function']['name']})" for call in message.get("tool_calls") or ())
            if message["role"] != "assistant":
                text += f"{'T' if message['role'] == 'tool' else 'U'}{message['content']}E"
            elif self._kind == "forgets" and not last:
                continue
            else:
                thought = "h" if self._kind == "thinks" and last else ""
                closing = "" if self._kind == "unclosed" or (self._kind == "joins" and calls) else "E"
                text += f"A{thought}{message['content'] or ''}{calls}{closing}"
        if body["continue_final_message"]:
            text = text.removesuffix("E")
        ids = [ord(letter) for letter in text + ("A" if body["add_generation_prompt"] else "")]
        return msgspec.json.encode({"tokens": ids, "token_ids": ids})

    async def tail(self, answer: Message, *after: Message) -> str | None:
        """Return the tail after an answer as text."""
        found = await self.engine.tail(answer, after, (LOOK,))
        return None if found is None else "".join(map(chr, found))


@pytest.mark.promise("models:exact_tools")
@pytest.mark.parametrize(
    ("kind", "after_text", "after_call"),
    [
        ("plain", "EUmoreEA", "ETfoundEA"),
        ("thinks", "EUmoreEA", "ETfoundEA"),
        ("unclosed", "UmoreEA", "TfoundEA"),
        ("joins", "EUmoreEA", None),
        ("forgets", None, None),
    ],
)
async def test_what_follows_an_answer_is_proven_or_refused(
    kind: str, after_text: str | None, after_call: str | None
) -> None:
    template = Templates(kind)
    call = ToolCall("c1", "look", {"q": "a"})
    reply = Message("user", (ToolReply("c1", "look", (TextPart("found"),)),))
    for _ in range(2):
        assert await template.tail(Message("assistant", (TextPart("yes"),)), user("more")) == after_text
        assert await template.tail(Message("assistant", (call,)), reply) == after_call


@pytest.mark.promise("models:exact_tools")
async def test_what_is_learned_about_templates_is_bounded() -> None:
    template, facts = Templates("plain"), EngineFacts()
    engine = TokenEngine("m", "http://letters/v1", template.post, facts)
    for number in range(300):
        tool = ToolSpec("look", str(number), LOOK.schema)
        await engine.tail(Message("assistant", (ToolCall("c1", "look", {}),)), (user("more"),), (tool,))
    assert len(facts.stand_ins) == 128


@pytest.mark.promise("models:exact_tools")
def test_a_closing_token_that_was_sampled_is_not_repeated() -> None:
    assert joined(array("i", [1, 2, 9]), [9, 5]).tolist() == [1, 2, 9, 5]
    assert joined(array("i", [1, 2]), [9, 5]).tolist() == [1, 2, 9, 5]
    assert joined(array("i", []), [9]).tolist() == [9]
    assert joined(array("i", [1]), []).tolist() == [1]


def event(text: str, *, first: bool = False, finish: str | None = None) -> bytes:
    choice = {
        "text": text,
        "token_ids": [1],
        "logprobs": {"content": [{"logprob": -0.5}]},
        "finish_reason": finish,
    }
    head = {"prompt_token_ids": [7]} if first else {}
    return b"data: " + msgspec.json.encode({**head, "choices": [choice]}) + b"\n"


@pytest.mark.timeout(20)
@pytest.mark.promise("models:exact_tools")
def test_a_long_answer_in_many_pieces_is_passed_on_in_linear_time() -> None:
    pieces: list[str] = []
    stream = AnswerStream(pieces.append)
    stream.add(event("", first=True))
    line = event("ab" * 50)
    for _ in range(100_000):
        stream.add(line)
    stream.add(event("c", finish="stop"))
    assert "".join(pieces) == stream.answer([7]).text == "ab" * 5_000_000 + "c"


@pytest.mark.promise("models:exact_tools")
def test_a_repeated_stream_passes_no_text_on_twice_and_a_broken_one_is_an_error() -> None:
    pieces: list[str] = []
    stream = AnswerStream(pieces.append)
    for line in (
        event("a", first=True),
        event("b"),
        event("a", first=True),
        event("bc"),
        b"\n",
        event("d", finish="stop"),
        b"data: [DONE]\n",
    ):
        stream.add(line)
    done = stream.answer([7])
    assert (pieces, done.text) == (["a", "b", "c", "d"], "abcd")
    assert done.tokens is not None
    assert (done.tokens.prompt, done.tokens.sampled, done.tokens.logprobs) == ((7,), (1, 1, 1), (-0.5,) * 3)
    other = AnswerStream(pieces.append)
    other.add(event("a", first=True))
    with pytest.raises(RequestError, match="the answer ended early"):
        other.answer([7])
    with pytest.raises(RequestError, match="differs from its beginning"):
        other.add(event("xyz", first=True))
    other.add(b'data: {"error": {"message": "out of memory"}}\n')
    with pytest.raises(RequestError, match="out of memory"):
        other.answer([7])
    with pytest.raises(msgspec.MsgspecError):
        other.add(b"data: {\n")
