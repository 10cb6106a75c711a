"""Answers to single calls: matching, seeds, endings, streams, and other endpoints."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.gateway import (
    AgentConversations,
    ExactAnswerer,
    GatewayCall,
    GatewayError,
    PlainAnswerer,
    PromptOrigin,
    RecordedCall,
    RecordingAnswerer,
)
from agentflow.gateway._answers import until_thought
from agentflow.models import (
    Completion,
    Message,
    ModelConnection,
    ModelSettings,
    Sampling,
    TextPart,
    ToolReply,
    ToolSpec,
)
from agentflow.models._apis import EncodedRequest
from agentflow.testing.endpoint._prompt import PromptBody
from agentflow.testing.endpoint._server import EndpointConfig, FakeEndpoint
from agentflow.testing.endpoint._token_apis import CLOSE, decoded, rendered_ids
from tests.agentflow.gateway._conversations import TOOLS, replies, said, user, whole_tokens
from tests.agentflow.gateway._engine import RandomEngine


class Answering:
    """One agent of one episode."""

    def __init__(self, answerer: Any) -> None:  # noqa: ANN401
        self.answerer = answerer
        self.memory = AgentConversations()
        self.records: list[RecordedCall] = []

    async def ask(self, *messages: Message, id: str = "", **more: Any) -> Completion[None]:  # noqa: ANN401
        on_text = more.pop("on_text", None)
        call = GatewayCall(dialect="chat", messages=messages, **more)
        ids = [id or f"c{len(self.records)}"]
        [(answer, record)] = await self.answerer.answer(
            call, self.memory, ids, seed="run/1", temperature=1.0, on_text=on_text
        )
        self.records.append(record)
        return answer


class ScriptedEngine(RandomEngine):
    """Samples the given texts, in order."""

    def __init__(self, *texts: str, stop: str | None = None, strips: bool = False) -> None:
        super().__init__()
        self.texts = list(texts)
        self.asked: list[dict[str, Any]] = []
        self._stop = stop
        self._strips = strips

    async def post(self, request: EncodedRequest) -> bytes:
        body = msgspec.json.decode(request.body)
        if request.path.endswith("/generate"):
            self.asked.append(body)
            text = self.texts.pop(0)
            shown = text.removesuffix(self._stop or "")
            ids = [*text.encode(), *([] if self._stop else [CLOSE])]
            chances = [{"logprob": -0.5} for _ in ids]
            choice: dict[str, Any] = {"text": shown, "token_ids": ids, "logprobs": {"content": chances}}
            return msgspec.json.encode(
                {"choices": [{**choice, "finish_reason": "stop", "stop_reason": self._stop}]}
            )
        if self._strips and "messages" in body and not request.path.endswith("/derender"):
            # A template that shows an answer's thoughts only while nothing follows it.
            asked = msgspec.convert(body, PromptBody)
            for message in asked.messages:
                if message.role == "assistant":
                    last = message is asked.messages[-1]
                    message.content = f"{'<think></think>' if last else ''}{message.content or ''}"
            begin, leave = body["add_generation_prompt"], body["continue_final_message"]
            ids = rendered_ids(asked, begin=begin, leave_open=leave)
            return msgspec.json.encode({"tokens": ids, "token_ids": ids})
        return await super().post(request)


def scripted(*texts: str, **more: Any) -> tuple[Answering, ScriptedEngine]:  # noqa: ANN401
    engine = ScriptedEngine(*texts, **more)
    return Answering(ExactAnswerer(engine.engine)), engine


def whole(one: Answering, number: int) -> tuple[int, ...]:
    """Return the prompt and the sampled tokens of a call."""
    tokens = [tokens for _, tokens in whole_tokens(one.records)][number]
    return tokens.prompt + tokens.sampled


CALL = '<tool_call>\n{"name":"look",  "arguments": {"q": "a"}}\n</tool_call>'


@pytest.mark.promise("gateway:exact:matching")
async def test_answers_are_known_by_tool_call_id_then_by_content() -> None:
    one, _ = scripted(CALL, "yes", "no")
    begin = (user("How many?"),)
    first = await one.ask(*begin, tools=TOOLS)
    [call] = first.calls
    result = Message("user", (ToolReply(call.id, "look", (TextPart("found"),)),))
    changed = replace(call, arguments={"q": "b"}, raw_arguments='{"q":"b"}')
    renamed = replace(call, id="other")
    spaced = replace(call, raw_arguments='{ "q" : "a" }', state={"reasoning_content": "hm"})
    for sent, origin in (
        (call, PromptOrigin.APPENDED),
        (spaced, PromptOrigin.APPENDED),
        (renamed, PromptOrigin.APPENDED),
        (changed, PromptOrigin.REWRITTEN),
        (replace(changed, id="other"), PromptOrigin.FOREIGN),
    ):
        messages = (*begin, Message("assistant", (sent,)), result)
        match = one.memory.match(messages, TOOLS)
        assert (match.origin, match.parent) == (origin, "c0" if origin is PromptOrigin.APPENDED else "")
        assert one.memory.match(messages, TOOLS[:1]).origin in (PromptOrigin.TOOLS, origin)
    other = one.memory.match((user("How few?"), said(first), result), TOOLS)
    assert other.origin == PromptOrigin.REWRITTEN, "the same answer after other messages"


@pytest.mark.promise("gateway:exact:matching")
async def test_a_response_id_tells_equal_answers_apart() -> None:
    one, _ = scripted("yes", "yes", "no")
    answers = [await one.ask(user("a")) for _ in range(2)]
    for id, answer in zip(("c0", "c1"), answers, strict=True):
        messages = (user("a"), replace(said(answer), mark=id), user("b"))
        assert one.memory.match(messages).parent == id
        assert one.memory.chain(id) == [id]
    plain = (user("a"), Message("assistant", (TextPart("yes"),)), user("b"))
    assert one.memory.match(plain).parent == "c1", "the newest"
    assert one.memory.chain("c9") == []


@pytest.mark.promise("gateway:exact:origin")
async def test_a_changed_history_continues_the_last_call_before_the_change() -> None:
    one, _ = scripted("one", "two", "three", "four")
    begin = (user("a"), said(await one.ask(user("a"))), user("b"))
    second = await one.ask(*begin)
    edited = Message("assistant", (TextPart("2"),))
    await one.ask(*begin, edited, user("c"))
    await one.ask(*begin, edited, user("c"), Message("assistant", (TextPart("three"),)), user("d"))
    assert second.text == "two"
    origins = [(record.origin.value, record.parent) for record in one.records]
    assert origins == [("opening", ""), ("appended", "c0"), ("foreign", "c0"), ("appended", "c2")]
    assert decoded(whole(one, 2)[len(whole(one, 0)) :]).count("assistant\n2") == 1


@pytest.mark.promise("gateway:exact:origin")
async def test_thoughts_that_a_template_leaves_out_stay_in_the_tokens() -> None:
    one, _ = scripted("<think>hm</think>yes", "no", strips=True)
    first = await one.ask(user("a"))
    assert (first.text, first.reasoning) == ("yes", "hm")
    await one.ask(user("a"), said(first), user("b"))
    assert one.records[1].origin is PromptOrigin.APPENDED
    assert decoded(whole(one, 1)) == (
        "␝user\na␞\n␝assistant\n<think>hm</think>yes␞\n␝user\nb␞\n␝assistant\nno␞"
    )


@pytest.mark.promise("gateway:exact:cost")
async def test_only_new_messages_are_rendered_at_any_length() -> None:
    engine = RandomEngine()
    one = Answering(ExactAnswerer(engine.engine))
    messages: list[Message] = [user("x" * 500)]
    costs: list[int] = []
    for number in range(80):
        before = engine.rendered
        answer = await one.ask(*messages, tools=TOOLS)
        costs.append(engine.rendered - before)
        messages += [said(answer), replies(answer, Random(number))]
    assert max(costs[4:]) < costs[0]
    assert sum(costs[60:]) <= 1.5 * sum(costs[10:30])
    assert {record.origin for record in one.records[1:]} == {PromptOrigin.APPENDED}


@pytest.mark.promise("gateway:exact:seeds")
async def test_seeds_do_not_depend_on_the_order_of_calls() -> None:
    asked: list[list[tuple[str, int]]] = []
    for order in (("a", "b", "a"), ("b", "a", "a")):
        one, engine = scripted("x", "x", "x")
        seeds: list[tuple[str, int]] = []
        for word in order:
            await one.ask(user(word))
            seeds.append((word, engine.asked[-1]["sampling_params"]["seed"]))
        asked.append(sorted(seeds))
        assert len(set(seeds)) == 3
    assert asked[0] == asked[1]


@pytest.mark.promise("gateway:exact:endings")
async def test_a_stop_string_ends_the_text_and_stays_in_the_tokens() -> None:
    one, engine = scripted("Answer: 5 END", "Answer: 6 END", stop="END")
    answer = await one.ask(user("a"), sampling=Sampling(stop=("END",), temperature=0.2, top_p=0.5))
    assert (answer.text, answer.stop, answer.finish) == ("Answer: 5 ", "END", "stop")
    [record] = one.records
    assert record.overrides == ("temperature", "top_p")
    params = engine.asked[0]["sampling_params"]
    assert (params["temperature"], params["top_p"], params["stop"]) == (1.0, 1.0, ["END"])
    with_tools = await one.ask(user("b"), tools=TOOLS)
    assert (with_tools.text, with_tools.stop) == ("Answer: 6 ", "END")
    assert record.tokens is not None
    assert bytes(record.tokens.sampled) == b"Answer: 5 END"


@pytest.mark.promise("gateway:exact:endings")
async def test_an_invalid_call_is_text_and_an_empty_answer_is_empty() -> None:
    broken = "<tool_call>\n{no\n</tool_call>"
    one, _ = scripted(broken, "")
    first = await one.ask(user("a"), tools=TOOLS)
    assert (first.text, first.calls, first.finish) == (broken, (), "stop")
    empty = await one.ask(user("a"), said(first), user("b"), tools=TOOLS)
    assert (empty.text, empty.calls) == ("", ())
    assert one.records[1].tokens is not None
    assert one.records[1].tokens.sampled == (CLOSE,)


@pytest.mark.promise("gateway:exact:matching")
async def test_integers_beyond_64_bits_are_recorded_as_text_and_still_match() -> None:
    number = 2**70
    one, _ = scripted(f'<tool_call>\n{{"name": "look", "arguments": {{"q": {number}}}}}\n</tool_call>', "yes")
    first = await one.ask(user("a"), tools=TOOLS)
    assert first.calls[0].arguments == {"q": number}
    await one.ask(user("a"), said(first), replies(first, Random(1)), tools=TOOLS)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(one.records), type=list[RecordedCall])
    assert stored == one.records
    assert one.records[1].parent == "c0"
    bad = ToolSpec("big", "", {"maximum": number})
    with pytest.raises(GatewayError, match="beyond 64 bits"):
        await one.ask(user("a"), tools=(bad,))
    with pytest.raises(GatewayError, match="not an id of a token"):
        await one.ask(prompt=(1, number))


@asynccontextmanager
async def connected(**more: Any) -> AsyncGenerator[ModelConnection]:  # noqa: ANN401
    runner = web.ServerRunner(web.Server(FakeEndpoint(EndpointConfig(tool_turns=1)).handle, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    settings = ModelSettings(name="fake", base_url=url, max_attempts=1, **more)
    try:
        async with ModelConnection(settings, environment={}) as connection:
            yield connection
    finally:
        await runner.cleanup()


@pytest.mark.promise("gateway:exact")
async def test_text_is_streamed_as_it_is_sampled() -> None:
    async with connected() as connection:
        one = Answering(ExactAnswerer(connection.engine))
        pieces: list[str] = []
        answer = await one.ask(user("a"), on_text=pieces.append)
        held = await one.ask(user("a"), tools=TOOLS, on_text=pieces.append)
    assert "".join(pieces) == answer.text != ""
    assert held.finish == "tool_calls"
    assert answer.tokens is not None
    assert len(answer.tokens.sampled) == len(answer.text) + 1


@pytest.mark.promise("gateway:exact:endings")
async def test_an_answer_at_its_token_limit_has_the_finish_length() -> None:
    async with connected() as connection:
        one = Answering(ExactAnswerer(connection.engine))
        cut = await one.ask(user("a"), sampling=Sampling(max_tokens=3))
        assert (cut.text, cut.finish) == ("unk", "length")
        await one.ask(user("a"), said(cut), user("b"))
        assert decoded(whole(one, 1)).startswith("␝user\na␞\n␝assistant\nunk␞\n␝user\nb␞\n")
        required = await one.ask(user("d"), tools=TOOLS, tool_choice="required")
        assert required.calls
        assert [record.constrained for record in one.records] == [False, False, True]
        forced = GatewayCall(dialect="completions", prompt="Once", sampling=Sampling(max_tokens=2))
        assert await one.answerer.count(forced) == 4
        [(done, record)] = await one.answerer.answer(forced, one.memory, ["c9"], seed="s", temperature=1.0)
        assert (done.finish, record.tokens.prompt) == ("length", tuple(b"Once"))


@pytest.mark.promise("gateway:exact:others")
async def test_other_endpoints_answer_through_the_chat_api() -> None:
    async with connected(tokens=True) as connection:
        one = Answering(RecordingAnswerer(connection))
        first = await one.ask(user("a"), tools=TOOLS, on_text=print)
        await one.ask(user("a"), said(first), replies(first, Random(1)), tools=TOOLS)
    assert [record.origin for record in one.records] == [PromptOrigin.RECORDED] * 2
    assert all(record.tokens for record in one.records)
    assert first.calls
    async with connected() as connection:
        plain = Answering(PlainAnswerer(connection))
        pieces: list[str] = []
        answer = await plain.ask(user("a"), on_text=pieces.append)
        await plain.ask(user("a"), said(answer), user("b"))
        assert await plain.answerer.count(GatewayCall(dialect="chat", messages=(user("a"),))) > 0
    assert pieces == [answer.text] == ["unknown"]
    assert plain.records[0].tokens is None
    assert (plain.records[1].parent, plain.records[1].messages) == ("c0", (user("b"),)), "stored once"
    assert whole_tokens(plain.records) == []
    assert answer.usage is not None
    assert (
        plain.answerer.overrides(GatewayCall(dialect="chat", sampling=Sampling(temperature=2.0)), 1.0) == ()
    )


@pytest.mark.promise("gateway:exact:others")
async def test_a_failing_endpoint_is_a_model_failure() -> None:
    settings = ModelSettings(name="fake", base_url="http://127.0.0.1:9/v1", max_attempts=1)
    async with ModelConnection(settings, environment={}) as connection:
        for answerer in (ExactAnswerer(connection.engine), PlainAnswerer(connection)):
            with pytest.raises(ModelFailure) as failed:
                await Answering(answerer).ask(user("a"))
            assert failed.value.kind is ModelFailureKind.UNAVAILABLE


@pytest.mark.promise("gateway:stream:text")
@pytest.mark.parametrize(
    ("pieces", "passed"),
    [
        (("\n<th", "ink>", "hm</think>", "yes"), []),
        (("<think>hm",), []),
        (("<think>",), []),
        ((" ", "\n", "yes", " no"), [" \nyes", " no"]),
        (("<th", "e>"), ["<the>"]),
        ((" ",), []),
    ],
)
def test_text_is_passed_on_while_it_is_sampled_unless_it_begins_with_reasoning(
    pieces: tuple[str, ...], passed: list[str]
) -> None:
    texts: list[str] = []
    add = until_thought(texts.append)
    for piece in pieces:
        add(piece)
    assert texts == passed


@pytest.mark.timeout(20)
@pytest.mark.promise("gateway:stream:text")
@pytest.mark.parametrize("begin", ["<think>", " "])
def test_long_reasoning_and_space_in_many_pieces_take_linear_time(begin: str) -> None:
    texts: list[str] = []
    add = until_thought(texts.append)
    add(begin)
    for _ in range(300_000):
        add(" " * 20)
    add("yes")
    assert "".join(texts) == ("" if begin == "<think>" else " " * 6_000_001 + "yes")
