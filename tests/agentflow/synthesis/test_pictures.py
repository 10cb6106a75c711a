"""Pictures as evidence: cited by node and region, believed only where somebody has looked."""

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from agentflow.errors import ModelFailureKind
from agentflow.journal import NewSeed
from agentflow.synthesis import SynthesisConfig
from agentflow.synthesis._checks import Check, Grounding, check
from agentflow.synthesis._files import pair_record
from agentflow.synthesis._questions import write_questions
from agentflow.trajectory import (
    Action,
    Blob,
    Citation,
    Draft,
    DraftStep,
    Failure,
    LookRequest,
    Observation,
    Region,
    Step,
    Text,
)
from tests.agentflow.synthesis._grown import Scripted, page, tree
from tests.agentflow.synthesis._runs import config_for, run_to_the_end
from tests.mcp_servers.document._made import pdf

CHART = Blob("c4a7", "image/png")
UPPER = Region(1, 0.0, 0.0, 1.0, 0.5)

EVIDENCE = (
    Step("look", Action("vm_screenshot", {}), "", images=(CHART,)),
    Step("read", Action("rag_search", {"query": "harbour"}), "The harbour of Orm was built by Ada Lind."),
)


def draft(region: Region | None = UPPER, quote: str = "Total: 4,711 ships", answer: str = "4,711") -> Draft:
    """A question whose answer stands in a picture."""
    return Draft(
        question="How many ships came to the harbour that Ada Lind built?",
        answer=answer,
        steps=(
            DraftStep("Ada Lind built the harbour of Orm.", (Citation(2, "was built by Ada Lind"),)),
            DraftStep("The chart of Orm counts the ships of its harbour.", (Citation(1, quote, region),)),
            DraftStep("So many ships came to that harbour in all.", (Citation(1, quote, region),)),
        ),
    )


@pytest.mark.promise("synthesis:pictures:cited")
def test_an_answer_may_be_in_a_region_of_a_picture() -> None:
    checked = check(draft(), EVIDENCE, least_steps=3, most_words=80)
    assert checked.findings == ()
    assert checked.grounding is Grounding.SEEN
    assert [quote.region is not None for quote in checked.quotes] == [False, True, True]


@pytest.mark.promise("synthesis:pictures:refused")
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (draft(Region(2, 0, 0, 1, 1)), "there are 1"),
        (draft(Region(0, 0, 0, 1, 1)), "there are 1"),
        (draft(Region(1, 0.5, 0, 0.5, 1)), "no shares"),
        (draft(Region(1, 0, 0, 1.2, 1)), "no shares"),
        (draft(Region(1, float("nan"), 0, 1, 1)), "no shares"),
        (draft(quote=" "), "does not say what its region shows"),
        (draft(None), "does not say"),
    ],
)
def test_an_invalid_region_of_a_picture_is_rejected(wrong: Draft, why: str) -> None:
    checked = check(wrong, EVIDENCE, least_steps=3, most_words=80)
    reasons = [finding.reason for finding in checked.findings if finding.check is Check.CITATIONS]
    assert len(reasons) == 1
    assert why in reasons[0]


@pytest.mark.promise("synthesis:pictures:refused")
def test_a_number_that_only_resembles_what_the_picture_shows_is_not_grounded() -> None:
    checked = check(draft(answer="711"), EVIDENCE, least_steps=3, most_words=80)
    assert [finding.check for finding in checked.findings] == [Check.GROUNDING]


def grown() -> Any:  # noqa: ANN401 - a tree
    """A tree of one path: a screenshot, then a document."""
    plain = tree({(0,): "x", (0, 0): EVIDENCE[1].observation})
    nodes = list(plain.nodes)
    nodes[1] = replace(nodes[1], observation=Observation((CHART,)))
    return replace(plain, nodes=tuple(nodes))


CONFIG = SynthesisConfig(check_answerability=False, max_drafts=2)


@pytest.mark.promise("synthesis:pictures:looked")
async def test_a_claim_about_a_picture_counts_only_if_a_model_confirms_it() -> None:
    seeing = Scripted(draft(), sees=lambda request: request.quote == "Total: 4,711 ships")
    whole = page()
    [pair] = (await write_questions(grown(), CONFIG, seeing, whole)).pairs
    assert pair.grounding is Grounding.SEEN
    assert seeing.looked[0] == LookRequest(picture=CHART, region=UPPER, quote="Total: 4,711 ships")
    cited = pair.reasoning_steps[1].citations[0]
    assert (cited.node_id, cited.image, cited.region) == (grown().nodes[1].id, CHART.hash, UPPER)
    assert sum(key.startswith("look/") for key in whole.keys()) == 2  # noqa: SIM118 - a page is no mapping


@pytest.mark.promise("synthesis:pictures:looked")
@pytest.mark.parametrize("seen", [False, Failure(ModelFailureKind.UNAVAILABLE, "down")])
async def test_the_generator_gets_the_picture_claims_that_were_not_confirmed(seen: bool | Failure) -> None:
    blind = Scripted(draft(), sees=lambda _: seen)
    result = await write_questions(grown(), CONFIG, blind, page())
    assert result.pairs == ()
    assert {finding.check for one in result.rejected for finding in one.findings} == {Check.PICTURES}
    assert "picture 1 of observation 1" in blind.written[1].rejected[0].reasons[0]


@pytest.mark.promise("synthesis:pictures:cited")
async def test_the_files_name_picture_and_region_where_one_is_cited_and_nothing_elsewhere() -> None:
    [pair] = (await write_questions(grown(), CONFIG, Scripted(draft(), sees=lambda _: True), page())).pairs
    given = await write_questions(grown(), CONFIG, Scripted(draft(), sees=lambda _: True), page())
    record = json.loads(msgspec.json.encode(pair_record(grown().seed, pair, given.trajectories[0])))
    text, seen, _ = (step["citations"][0] for step in record["reasoning_steps"])
    assert text.keys() == {"node_id", "quote", "start", "end"}
    assert seen["image"] == CHART.hash
    assert seen["region"] == {"picture": 1, "left": 0.0, "top": 0.0, "right": 1.0, "bottom": 0.5}


class Eyes:
    """A model that sees: it keeps the pictures it was shown, plans to see more, and cites what they show."""

    def __init__(self, visit: Callable[[int], dict[str, object]]) -> None:
        self.shown: set[str] = set()
        self.visits = 0
        self._visit_to = visit

    async def answer(self, request: web.Request) -> web.Response:
        body = cast("dict[str, Any]", await request.json())
        pictures = [
            part["image_url"]["url"]
            for message in body["messages"]
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image_url"
        ]
        for url in pictures:
            head, _, data = url.partition(",")
            assert head == "data:image/png;base64"
            decoded = base64.b64decode(data, validate=True)
            assert decoded.startswith(b"\x89PNG\r\n")
            self.shown.add(hashlib.sha256(decoded).hexdigest())
        name = body["response_format"]["json_schema"]["name"]
        said = json.dumps(self._say(name, len(pictures), body["response_format"]["json_schema"]["schema"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}
        )

    def _say(self, name: str, pictures: int, schema: dict[str, Any]) -> object:
        if name == "look":
            return {"shows": pictures == 1}
        if name == "answer":
            return {"answer": ""}
        if name == "plan":
            wanted = schema["properties"]["proposals"]["minItems"]
            return {"proposals": [self._visit() for _ in range(wanted)]}
        assert "region" in json.dumps(schema)
        assert pictures >= 3
        steps = [
            {
                "step": f"The picture of expedition number {number} is titled by its ship.",
                "citations": [{"observation": number, "quote": f"Ship {number}", "region": _whole()}],
            }
            for number in (1, 2, 3)
        ]
        return {
            "question": "Which ship did the last expedition of Captain Orm sail?",
            "answer": "Ship 3",
            "steps": steps,
        }

    def _visit(self) -> dict[str, object]:
        self.visits += 1
        return {"intent": "Look.", **self._visit_to(self.visits)}


def _whole() -> dict[str, object]:
    return {"picture": 1, "left": 0.0, "top": 0.0, "right": 1.0, "bottom": 1.0}


@asynccontextmanager
async def vision(eyes: Eyes) -> AsyncGenerator[str]:
    """An endpoint with eyes."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", eyes.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def in_a_gallery(folder: Path) -> tuple[dict[str, object], Callable[[int], dict[str, object]]]:
    """Pictures of a tool that is made for them."""
    resources: dict[str, object] = {"tests.agentflow.synthesis._gallery:Gallery": dict[str, object]()}
    return resources, lambda number: {"tool": "gallery_show", "arguments": {"number": number}}


def in_a_document(folder: Path) -> tuple[dict[str, object], Callable[[int], dict[str, object]]]:
    """Pages of a document."""
    report = pdf(folder / "report.pdf", chapters=3)
    return {"document": {"file_path": str(report)}}, lambda number: {
        "tool": "document_page_image",
        "arguments": {"page": number, "document": None, "dpi": None},
    }


def on_a_screen(folder: Path) -> tuple[dict[str, object], Callable[[int], dict[str, object]]]:
    """A desktop on which something is typed."""
    command = ["xterm", "-T", "expeditions", "-geometry", "80x24+0+0"]
    terminal = {"type": "launch", "parameters": {"command": command}}
    there = {"type": "wait", "parameters": {"window": "expeditions", "still": True}}
    machine = {
        "screen_size": [640, 480],
        "screenshot": "after",
        "settle_seconds": 30,
        "accessibility": "never",
        "setup": [terminal, there],
    }
    return {"vm": machine}, lambda number: {
        "tool": "vm_type",
        "arguments": {"text": f"Ship {number} ", "interval": None},
    }


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen on which nothing moves is looked at for a second: who draws on it may wait for a processor."""
    monkeypatch.setattr("mcp_servers.vm._steps.UNCHANGED_SCREENS", 10)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("patience")
@pytest.mark.promise("synthesis:pictures:whole")
@pytest.mark.parametrize("where", [in_a_gallery, in_a_document, on_a_screen])
async def test_pictures_of_tools_reach_a_vision_model_the_journal_the_files_and_the_evidence(
    where: Callable[[Path], tuple[dict[str, object], Callable[[int], dict[str, object]]]], tmp_path: Path
) -> None:
    resources, visit = where(tmp_path)
    eyes = Eyes(visit)
    async with vision(eyes) as url:
        config = config_for(
            tmp_path / "out",
            model_name="eyes",
            base_url=url,
            resource_init_configs=resources,
            available_tools=[str(visit(1)["tool"])],
            max_depth=3,
            branching_factor=1,
            min_depth=2,
        )
        _, report = await run_to_the_end(config, [NewSeed("The expeditions of Captain Orm")])
    assert report.pairs == 1
    [pair] = lines(tmp_path / "out" / "synthesized_qa.jsonl")
    assert pair["metadata"]["grounding"] == "seen"
    cited = {one["image"] for step in pair["reasoning_steps"] for one in step["citations"]}
    [trajectory] = lines(tmp_path / "out" / "trajectories.jsonl")
    kept = {image["hash"] for node in trajectory["nodes"] for image in node.get("images", [])}
    assert len(kept) == 3
    assert cited == kept
    assert eyes.shown == kept


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_claim_about_a_picture_is_text_for_all_other_checks() -> None:
    said = Observation((Text("words"), CHART))
    assert said.text == "words"
    assert said.blobs == (CHART,)
