"""The fake endpoint: real HTTP, deterministic answers, configurable faults."""

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec
import openai
import pytest

from agentflow.models import (
    Accounts,
    Call,
    Message,
    ModelSettings,
    OpenModel,
    TextPart,
    ToolCall,
    ToolReply,
    ToolSpec,
    make_model,
)
from agentflow.testing import fake_endpoint
from agentflow.testing.endpoint import EndpointFault, FaultPlan
from agentflow.testing.endpoint._prompt import PromptBody
from agentflow.testing.endpoint._token_apis import CLOSE, read_ids, rendered_ids

TOOLS: dict[str, dict[str, Any]] = {
    "rag_search": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    "rag_get": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    "bash_run": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    "code_run": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    "paint": {
        "type": "object",
        "properties": {
            "colour": {"enum": ["red", "blue"]},
            "strokes": {"type": "array", "minItems": 2, "items": {"type": "integer", "minimum": 3}},
            "size": {"anyOf": [{"type": "number"}]},
            "mode": {"const": "oil"},
            "dry": {"type": "boolean"},
            "frame": {"type": "object", "properties": {"wood": {"type": "string"}}, "required": ["wood"]},
            "note": {"type": "string"},
            "title": {"type": ["string", "null"]},
        },
        "required": ["colour", "strokes", "size", "mode", "dry", "frame", "title"],
    },
}
STORY = """Explore the islands.
<observation number="1">
[1] The Grey Light (grey-light)
The Grey Light was built by Ada Morrow in the year 1482. It stands on a cliff of slate.
</observation>
<observation number="2">
[1] Ada Morrow (ada-morrow)
Ada Morrow was born in Port Sable and learnt her trade in the Guild of Glass.
</observation>
"""


def plan_schema(count: int, *tools: str) -> dict[str, Any]:
    options = [{"properties": {"tool": {"const": tool}, "arguments": TOOLS[tool]}} for tool in tools]
    proposals = {"minItems": count, "maxItems": count, "items": {"anyOf": options}}
    return {"properties": {"proposals": proposals}}


def body(
    name: str, text: str = STORY, schema: dict[str, Any] | None = None, system: str = ""
) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": name, "schema": schema or {}}}
    before = [{"role": "system", "content": system}] if system else []
    messages = [*before, {"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "response_format": form}


@asynccontextmanager
async def session() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def post(http: aiohttp.ClientSession, url: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with http.post(f"{url}/chat/completions", json=asked) as response:
        return response.status, msgspec.json.decode(await response.read())


async def ask(http: aiohttp.ClientSession, url: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the decoded answer."""
    status, answer = await post(http, url, asked)
    assert status == 200, answer
    return msgspec.json.decode(answer["choices"][0]["message"]["content"])


async def control(http: aiohttp.ClientSession, url: str, what: str) -> dict[str, int]:
    async with http.get(f"{url.removesuffix('/v1')}/{what}") as response:
        return msgspec.json.decode(await response.read())


async def statistics(http: aiohttp.ClientSession, url: str) -> dict[str, int]:
    return await control(http, url, "stats")


async def until_asked(http: aiohttp.ClientSession, url: str, calls: int) -> None:
    """Wait until it has received that many calls."""
    with anyio.fail_after(60):
        while (await statistics(http, url))["calls"] < calls:
            await anyio.lowlevel.checkpoint()


@pytest.mark.promise("endpoint:plays")
async def test_it_plans_the_requested_number_of_different_valid_actions() -> None:
    schema = plan_schema(10, *TOOLS)
    async with fake_endpoint() as url, session() as http:
        proposals = (await ask(http, url, body("plan", schema=schema)))["proposals"]
    assert len(proposals) == 10
    assert {proposal["tool"] for proposal in proposals} == set(TOOLS)
    assert len({msgspec.json.encode(proposal) for proposal in proposals}) == 10
    by_tool = {proposal["tool"]: proposal["arguments"] for proposal in proposals}
    assert all(word in STORY for word in by_tool["rag_search"]["query"].split()[:-1])
    assert by_tool["rag_get"] == {"id": "ada-morrow"}
    assert ">> notes.txt" in by_tool["bash_run"]["command"]
    compile(by_tool["code_run"]["code"], "code", "exec")
    paint = by_tool["paint"]
    assert paint.keys() == set(TOOLS["paint"]["required"])
    assert paint["mode"] == "oil"
    assert len(paint["strokes"]) == 2


@pytest.mark.promise("endpoint:plays")
async def test_without_observations_it_searches_with_words_of_the_seed() -> None:
    said = "Explore this:\n<seed>\nLanterns of harbour guilds\n</seed>\n\nPropose different actions."
    async with fake_endpoint() as url, session() as http:
        plan = await ask(http, url, body("plan", said, plan_schema(3, "rag_search")))
    asked = {word for each in plan["proposals"] for word in each["arguments"]["query"].split()}
    assert asked & {"Lanterns", "harbour", "guilds"}
    assert not asked & {"Explore", "Propose", "different", "actions"}


@pytest.mark.promise("endpoint:plays")
async def test_its_questions_and_answers_agree() -> None:
    texts = {1: "Brenn Light had keeper Ada Holm.", 2: "The school of Ada Holm reached Vessel Bay."}

    def shown(*numbers: int) -> str:
        documents = "\n\n".join(
            f'<document number="{number}" title="a" extent="complete">\n[{number}] {texts[number]}\n</document>'
            for number in numbers
        )
        return f"You work with the documents below.\n\n{documents}"

    async with fake_endpoint() as url, session() as http:
        assert await ask(http, url, body("judgement")) == {"verdict": "new", "reason": ""}
        [draft] = (await ask(http, url, body("questionproposal", system=shown(1, 2))))["drafts"]
        asked = f"<question>\n{draft['question']}\n</question>"
        alone = await ask(http, url, body("hiddenanswer", asked, system=shown(1)))
        both = await ask(http, url, body("hiddenanswer", asked, system=shown(1, 2)))
        listed = f"The questions:\n1. {draft['question']}"
        [reading] = (await ask(http, url, body("readings", listed, system=shown(1, 2))))["readings"]
    assert draft["documents"] == [1, 2]
    assert draft["question"].endswith("?")
    assert all(step["quote"] in texts[step["passage"]] for step in draft["steps"][:2])
    assert alone["answer"] == ""
    assert both["answer"] == draft["answer"]
    assert reading["answers"] == [draft["answer"]]


def offering(*said: Message, **more: Any) -> Call[str]:  # noqa: ANN401
    tools = tuple(ToolSpec(name, "Does it.", TOOLS[name]) for name in ("rag_search", "paint"))
    return Call(
        role="planner", messages=(Message("user", (TextPart(STORY),)), *said), reply=str, tools=tools, **more
    )


async def turn(model: OpenModel, said: tuple[Message, ...]) -> tuple[Message, ...]:
    """Take one more turn of tool calls."""
    [one] = (await model.complete(offering(*said))).calls
    reply = ToolReply(one.id, one.name, (TextPart(f"Nothing but {len(said)}."),))
    return (*said, Message("assistant", (one,)), Message("user", (reply,)))


@pytest.mark.promise("endpoint:tools")
async def test_it_calls_tools_the_configured_number_of_times_before_it_answers() -> None:
    async with (
        fake_endpoint(tool_turns=2) as url,
        make_model(ModelSettings(name="m", base_url=url), Accounts(), environment={}) as model,
    ):
        said = await turn(model, await turn(model, ()))
        calls = [part for message in said for part in message.parts if isinstance(part, ToolCall)]
        assert {part.name for part in calls} <= {"rag_search", "paint"}
        assert all(TOOLS[part.name]["required"][0] in (part.arguments or {}) for part in calls)
        assert (await model.complete(offering(*said))).value == "unknown"
        assert (await model.complete(offering(may_call=False))).value == "unknown"


@pytest.mark.promise("endpoint:tools")
async def test_its_tokens_extend_those_of_the_turn_before() -> None:
    async with fake_endpoint() as url:
        settings = ModelSettings(name="m", base_url=url, tokens=True)
        async with make_model(settings, Accounts(), environment={}) as model:
            first = (await model.complete(offering())).tokens
            second = (await model.complete(offering(*(await turn(model, ()))))).tokens
    assert first is not None
    assert second is not None
    before = first.prompt + first.sampled
    assert second.prompt[: len(before)] == before
    assert len(first.logprobs) == len(first.sampled)


@pytest.mark.promise("endpoint:pure")
async def test_its_answers_follow_from_the_request_alone() -> None:
    schema = plan_schema(2, "rag_search")
    asked = [body("plan", f"{STORY} Step {number}", schema) for number in range(5)]
    async with fake_endpoint() as one, fake_endpoint(jitter_ms=5) as two, session() as http:
        first = [await ask(http, one, each) for each in asked]
        second = [await ask(http, two, each) for each in reversed(asked)]
    assert first == list(reversed(second))
    assert len({msgspec.json.encode(each) for each in first}) == 5


@pytest.mark.promise("endpoint:pure")
async def test_it_can_be_configured_to_repeat_its_plan() -> None:
    schema = plan_schema(2, "rag_search")
    async with fake_endpoint(same=True) as url, session() as http:
        first = await ask(http, url, body("plan", STORY, schema))
        assert await ask(http, url, body("plan", "Something else", schema)) == first


@pytest.mark.promise("endpoint:counts")
async def test_it_counts_calls_and_bodies_repeated_after_a_good_answer() -> None:
    async with fake_endpoint(delay_ms=20, hold_after=0) as url, session() as http:
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(ask, http, url, body("answer", f"Question {number}"))
            await until_asked(http, url, 5)
            await control(http, url, "release")
        await ask(http, url, body("answer", "Question 0"))
        counted = await statistics(http, url)
        assert counted.pop("median_turn_us") > 0
        assert counted == {
            "calls": 6,
            "faults": 0,
            "in_flight": 0,
            "max_concurrent": 5,
            "distinct_bodies": 5,
            "repeated_bodies": 1,
            "most_per_body": 2,
        }


@pytest.mark.promise("endpoint:faults")
def test_faults_follow_from_seed_and_number_at_the_configured_share() -> None:
    plan = FaultPlan(0.3, seed=7)
    happened = [plan.of(call) for call in range(1, 2001)]
    assert happened == [plan.of(call) for call in range(1, 2001)]
    assert happened != [FaultPlan(0.3, seed=8).of(call) for call in range(1, 2001)]
    assert 0.27 < sum(fault is not None for fault in happened) / 2000 < 0.33
    assert set(happened) == {*EndpointFault, None}
    assert FaultPlan().of(1) is None


@pytest.mark.promise("endpoint:faults")
async def test_every_kind_of_fault_occurs_and_is_not_counted_as_a_good_answer() -> None:
    seen: set[str] = set()
    async with fake_endpoint(faults=1.0) as url, session() as http:
        for _ in range(40):
            try:
                status, answer = await post(http, url, body("answer"))
            except aiohttp.ServerDisconnectedError:
                seen.add("silent")
                continue
            seen.add(str(status) if status != 200 else answer["choices"][0]["message"]["content"])
        counted = await statistics(http, url)
    assert seen == {"silent", "429", "500", 'Certainly! {"proposals": [', '{"surprise": true}'}
    assert (counted["calls"], counted["faults"], counted["repeated_bodies"]) == (40, 40, 0)


@pytest.mark.promise("endpoint:faults")
async def test_after_its_last_call_it_stops_answering() -> None:
    async with fake_endpoint(down_after=2) as url, session() as http:
        for _ in range(2):
            await ask(http, url, body("answer"))
        with pytest.raises(aiohttp.ClientError):
            await ask(http, url, body("answer"))


@pytest.mark.promise("endpoint:faults")
async def test_held_calls_are_answered_once_released() -> None:
    answered: list[object] = []
    async with fake_endpoint(hold_after=1) as url, session() as http, anyio.create_task_group() as tasks:

        async def one() -> None:
            answered.append(await ask(http, url, body("answer")))

        await one()
        tasks.start_soon(one)
        await until_asked(http, url, 2)
        assert len(answered) == 1
        await control(http, url, "release")
    assert answered[0] == answered[1]


@pytest.mark.promise("endpoint:faults")
async def test_calls_can_be_held_again_at_once_or_after_some_more() -> None:
    answered: list[object] = []
    async with fake_endpoint() as url, session() as http, anyio.create_task_group() as tasks:

        async def one() -> None:
            answered.append(await ask(http, url, body("answer")))

        for more in (0, 2):
            answered.clear()
            calls = (await control(http, url, f"hold?calls={more}"))["calls"]
            for _ in range(more):
                await one()
            tasks.start_soon(one)
            await until_asked(http, url, calls + more + 1)
            assert len(answered) == more
            await control(http, url, "release")
            await one()


@pytest.mark.promise("endpoint:plays")
@pytest.mark.parametrize(
    "bad", [b"", b"{", b"[]", b'{"messages": 3}', b'{"response_format": {"type": "xml"}}']
)
async def test_invalid_requests_are_refused(bad: bytes) -> None:
    async with fake_endpoint() as url, session() as http:
        async with http.post(f"{url}/chat/completions", data=bad) as response:
            assert response.status == 400
        async with http.get(f"{url}/nothing") as response:
            assert response.status == 404
        assert await ask(http, url, body("answer")) == {"answer": "unknown"}


@pytest.mark.promise("endpoint:embeddings")
async def test_texts_with_common_words_have_close_embeddings() -> None:
    texts = ["the grey light on the cliff", "a light on a grey cliff", "seven barrels of herring"]
    async with fake_endpoint() as url, openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        # The library asks for base64 where it is told nothing.
        by_default = await client.embeddings.create(model="fake", input=texts)
        as_numbers = await client.embeddings.create(model="fake", input=texts[0], encoding_format="float")
        assert [model.id async for model in client.models.list()] == ["fake"]
    one, two, three = (each.embedding for each in by_default.data)
    assert math.dist(one, as_numbers.data[0].embedding) < 1e-6
    assert math.dist(one, two) < math.dist(one, three)
    assert math.isclose(math.hypot(*one), 1.0, abs_tol=1e-6)


@pytest.mark.promise("endpoint:log")
async def test_it_logs_every_body_on_a_line_of_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with fake_endpoint(log=log) as url, session() as http:
        for said in ("one", "two", "one"):
            await ask(http, url, body("wording", f"First,\n{said}."))
    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    assert [line["messages"][-1]["content"][-4:-1] for line in lines] == ["one", "two", "one"]


def test_rendered_conversations_are_read_back_as_they_were() -> None:
    listed: list[dict[str, Any]] = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "How many größer?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [called("look", '{"q":"a"}')]},
        {"role": "tool", "content": "three\nfour"},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "Sure?"},
    ]
    tools = [{"function": {"name": "look", "parameters": TOOLS["paint"]}}]
    for messages in (listed, listed[1:]):
        for offered in (tools, []):
            body = msgspec.convert({"messages": messages, "tools": offered}, PromptBody)
            found = read_ids(rendered_ids(body))
            assert found.tools == body.tools
            assert [(one.role, one.text) for one in found.messages] == [
                (one.role, one.text) for one in body.messages
            ]
            assert [
                (call.function.name, call.function.arguments)
                for one in found.messages
                for call in one.tool_calls
            ] == [("look", '{"q":"a"}')]
    body = msgspec.convert({"messages": listed}, PromptBody)
    assert rendered_ids(body, begin=False)[-2:] == [CLOSE, ord("\n")]
    assert rendered_ids(body, leave_open=True)[-1] == ord("?")


def called(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_its_token_apis_answer_as_its_chat_does_and_with_a_seed_otherwise() -> None:
    asked = {"model": "fake", "messages": [{"role": "user", "content": "How many?"}]}
    async with fake_endpoint() as url, aiohttp.ClientSession() as session:

        async def post(path: str, **body: Any) -> tuple[int, Any]:  # noqa: ANN401
            async with session.post(url.removesuffix("/v1") + path, json=body) as answer:
                return answer.status, await answer.json()

        _, rendered = await post("/v1/chat/completions/render", **asked)
        _, chat = await post("/v1/chat/completions", **asked, return_token_ids=True)
        assert chat["prompt_token_ids"] == rendered["token_ids"]
        params = {"n": 2, "max_tokens": 100}
        ids = rendered["token_ids"]
        _, same = await post("/inference/v1/generate", token_ids=ids, sampling_params=params)
        assert [one["token_ids"] for one in same["choices"]] == [chat["choices"][0]["token_ids"]] * 2
        seeded = [
            await post("/inference/v1/generate", token_ids=ids, sampling_params={**params, "seed": seed})
            for seed in (1, 1, 2)
        ]
        assert seeded[0] == seeded[1] != seeded[2]
        bodies: list[dict[str, Any]] = [{"token_ids": "x", "sampling_params": {}}, {"sampling_params": {}}]
        for bad in bodies:
            assert (await post("/inference/v1/generate", **bad))[0] == 400
        given: dict[str, Any] = {"choices": [{"token_ids": []}]}
        assert (await post("/v1/chat/completions/derender", generate_response=given))[0] == 400
