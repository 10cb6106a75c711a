"""Long episodes of a single agent at an endpoint: a growing conversation, its budget, and its compaction."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from aiohttp import web

from agentflow.engine import EpisodeEngine, EpisodeSettings
from agentflow.models import Accounts, ModelSettings, make_model
from agentflow.sandbox import Sandbox
from agentflow.team import ToolAgent
from agentflow.trace import Ending, Episode, MemoryBlobStore
from tests.agentflow.team._canned import Canned
from tests.agentflow.team._solving import TASK, Book

ENTRIES = {f"page {number}": f"Result {number}: {'line of the page. ' * 20}" for number in range(1, 100)}
_SHOWN = re.compile(r"Result (\d+): ")
_PAGE = re.compile(r"page (\d+)")


class Reader:
    """An endpoint whose model reads one page after the other, and then answers."""

    def __init__(self, pages: int, *, context: float = float("inf"), summary: str = "") -> None:
        """:param context: longest request that it accepts, in characters.
        :param summary: its summary; empty: the pages it has read.
        """
        self.url = ""
        self.bodies: list[bytes] = []
        self.refused = 0
        self._pages = pages
        self._context = context
        self._summary = summary

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        if len(body) > self._context:
            self.refused += 1
            error = {"message": "This model's maximum context length is 4096 tokens."}
            return web.json_response({"error": error}, status=400)
        self.bodies.append(body)
        may_call = b'"tool_choice":"none"' not in body
        message = self._answer(messages_of(body), may_call=may_call)
        usage = {"prompt_tokens": len(body) // 5, "completion_tokens": 9}
        return web.json_response({"choices": [{"message": message}], "usage": usage})

    def _answer(self, messages: list[dict[str, Any]], *, may_call: bool) -> dict[str, Any]:
        text = str(messages)
        read = max(map(int, [*_SHOWN.findall(text), *_PAGE.findall(str(messages[1]))]), default=0)
        if "will be replaced by your summary" in str(messages[-1]):
            return {"content": self._summary or f"I have read up to page {read}."}
        if read >= self._pages or not may_call:
            return {"content": "1871"}
        call = {"name": "canned_show", "arguments": f'{{"name": "page {read + 1}"}}'}
        return {
            "content": "",
            "tool_calls": [{"id": f"c{read + 1}", "type": "function", "function": call}],
        }


def messages_of(body: bytes) -> list[dict[str, Any]]:
    return msgspec.json.decode(body, type=dict[str, Any])["messages"]


def conversation(body: bytes) -> bytes:
    """The messages of a request as they were sent, without the end of their list."""
    messages = bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["messages"])
    return messages.removesuffix(b"]")


@asynccontextmanager
async def served(reader: Reader) -> AsyncGenerator[Reader]:
    runner = web.ServerRunner(web.Server(reader.handle, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address: tuple[str, int] = runner.addresses[0]
    reader.url = f"http://127.0.0.1:{address[1]}/v1"
    try:
        yield reader
    finally:
        await runner.cleanup()


async def solved(reader: Reader, book: Book | None = None, **settings: object) -> Episode:
    async with (
        served(reader),
        Sandbox(backends=[Canned(ENTRIES)]) as sandbox,
        make_model(ModelSettings(name="reader", base_url=reader.url), Accounts(), environment={}) as model,
    ):
        engine = EpisodeEngine(
            agent=ToolAgent(model, MemoryBlobStore()),
            tools=await sandbox.tools("*"),
            settings=EpisodeSettings.model_validate({"max_turns": 100, **settings}),
        )
        return await engine.solve(TASK, sandbox, (book or Book()).open())


def compactions(book: Book) -> list[str]:
    return [key for key in book.entries if key.startswith("compaction/")]


@pytest.mark.promise("team:single:conversation")
async def test_a_hundred_calls_extend_one_conversation_and_lose_nothing_below_the_budget() -> None:
    reader, book = Reader(99), Book()
    episode = await solved(reader, book)
    assert (episode.ending, episode.answer, len(episode.turns)) == (Ending.TURNS, "1871", 99)
    assert len(reader.bodies) == 100
    assert compactions(book) == []
    prompts = [conversation(body) for body in reader.bodies]
    assert all(after.startswith(before) for before, after in pairwise(prompts))
    results = [message["content"] for message in messages_of(reader.bodies[-1]) if message["role"] == "tool"]
    assert results == list(ENTRIES.values())


@pytest.mark.promise("team:single:compaction")
async def test_beyond_the_budget_the_oldest_part_becomes_a_recorded_summary() -> None:
    reader, book = Reader(16), Book()
    episode = await solved(reader, book, context_tokens=1_600)
    assert (episode.ending, episode.answer) == (Ending.ANSWERED, "1871")
    assert [turn.result for turn in episode.turns] == [*ENTRIES.values()][:16], "the episode keeps all"
    assert compactions(book) == ["compaction/1"]
    assert len(book.entries) == 17 + 16 + 1
    index = next(index for index, body in enumerate(reader.bodies) if b"replaced by your summary" in body)
    before, asked, after = (conversation(body) for body in reader.bodies[index - 1 : index + 2])
    assert before.startswith(asked.rpartition(b',{"role":"user"')[0]), "the request extends what was sent"
    assert "tools" in msgspec.json.decode(reader.bodies[index]), "earlier messages refer to them"
    kept = [int(number) for number in _SHOWN.findall(after.decode())]
    assert kept == list(range(kept[0], index + 1)) and 1 < kept[0] < index, "the newest results stay"
    summary = f"Summary of your work so far, {kept[0] - 1} steps:\\nI have read up to page {kept[0] - 1}."
    assert summary.encode() in after
    for part in (reader.bodies[:index], reader.bodies[index + 1 :]):
        prompts = [conversation(body) for body in part]
        assert all(later.startswith(earlier) for earlier, later in pairwise(prompts))
        assert max(len(body) for body in part) / 5 < 1_600 * 1.1
    assert episode.exchanges[index].key == "compaction/1"


@pytest.mark.promise("team:single:compaction")
@pytest.mark.parametrize("done", ["before", "after"])
async def test_an_episode_that_crashes_at_a_compaction_resumes_with_the_same_bytes(done: str) -> None:
    whole, full = Reader(16), Book()
    episode = await solved(whole, full, context_tokens=1_600)
    keys = list(full.entries)
    cut = keys.index("compaction/1") + (done == "after")
    book = Book()
    book.entries = {key: full.entries[key] for key in keys[:cut]}
    asked = sum("/act/" not in key for key in keys[:cut])
    rest = Reader(16)
    again = await solved(rest, book, context_tokens=1_600)
    assert rest.bodies == whole.bodies[asked:]
    assert list(book.entries) == keys
    assert [(turn.action, turn.result) for turn in again.turns] == [
        (turn.action, turn.result) for turn in episode.turns
    ]
    assert await solved(Reader(0), book, context_tokens=1_600) == again


@pytest.mark.promise("team:single:compaction")
async def test_a_later_compaction_replaces_the_earlier_summary() -> None:
    reader, book = Reader(40), Book()
    episode = await solved(reader, book, context_tokens=1_600)
    assert (episode.answer, len(episode.turns)) == ("1871", 40)
    assert len(compactions(book)) > 2
    last = reader.bodies[-1].decode()
    assert last.count("Summary of your work so far") == 1
    asked = [body.decode() for body in reader.bodies if b"replaced by your summary" in body]
    assert all("Summary of your work so far" in body for body in asked[1:])


@pytest.mark.promise("team:single:compaction")
async def test_a_prompt_that_the_endpoint_refuses_as_too_long_is_compacted_and_sent_again() -> None:
    reader, book = Reader(30, context=9_000), Book()
    episode = await solved(reader, book)
    assert (episode.answer, len(episode.turns)) == ("1871", 30)
    assert reader.refused == 1, "the budget follows from the refusal"
    again = [key for key in book.entries if key.endswith("/again")]
    assert len(again) == 1
    assert compactions(book)
    assert await solved(Reader(0), book) == episode


@pytest.mark.promise("team:single:compaction")
async def test_without_a_usable_summary_the_calls_are_listed() -> None:
    reader = Reader(12, summary=" ")
    await solved(reader, context_tokens=1_200)
    [later] = [body for body in reader.bodies[-1:] if b"Summary of your work so far" in body]
    assert b'1. canned_show {\\"name\\":\\"page 1\\"}: Result 1: line of the page.' in later


@pytest.mark.promise("team:single:compaction")
async def test_an_answer_after_the_last_turn_is_within_the_budget_too() -> None:
    reader, book = Reader(99), Book()
    episode = await solved(reader, book, context_tokens=1_600, max_turns=13)
    assert (episode.ending, len(episode.turns)) == (Ending.TURNS, 12)
    assert max(len(body) for body in reader.bodies) / 5 < 1_600 * 1.1
    assert b"cannot make any more calls" in reader.bodies[-1]
