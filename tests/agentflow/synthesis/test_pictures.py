"""Pictures as evidence: facts in regions of them, believed only where a model has looked."""

import base64
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from agentflow.errors import ModelFailureKind
from agentflow.facts import (
    EvidenceAnswer,
    EvidenceRequest,
    ExtractedFact,
    Extraction,
    ExtractionRequest,
    FactSpan,
    FactStore,
    ValueKind,
    new_fact,
    parse_value,
)
from agentflow.journal import NewSeed
from agentflow.learner.data import read_conversations
from agentflow.synthesis import SynthesisConfig
from agentflow.synthesis._files import pair_record
from agentflow.synthesis._question_draft import Check
from agentflow.synthesis._questions import write_questions
from agentflow.testing import ScriptedRoles
from agentflow.testing.endpoint import _facts
from agentflow.testing.endpoint._prompt import read_prompt
from agentflow.trajectory import (
    Blob,
    Failure,
    Look,
    LookRequest,
    Observation,
    Region,
    Reply,
    Text,
    Tree,
)
from tests.agentflow.synthesis._grown import page, tree
from tests.agentflow.synthesis._runs import config_for, run_to_the_end
from tests.mcp_servers.document._made import pdf

CHART = Blob("c4a7", "image/png")
UPPER = Region(1, 0.0, 0.0, 1.0, 0.5)
BUILDER = ExtractedFact(
    "harbour of Orm", "builder", "Ada Lind", ValueKind.ENTITY, "The harbour of Orm was built by Ada Lind."
)
SHIPS = ExtractedFact(
    "harbour of Orm",
    "number of ships",
    "4711",
    ValueKind.NUMBER,
    "Total: 4,711 ships",
    unit="ships",
    region=UPPER,
)


def grown() -> Tree:
    """A tree of one path: a screenshot, then a document."""
    plain = tree({(0,): "x", (0, 0): BUILDER.quote})
    nodes = list(plain.nodes)
    nodes[1] = replace(nodes[1], observation=Observation((CHART,)))
    return replace(plain, nodes=tuple(nodes))


class Viewer(ScriptedRoles):
    """Knows what the chart and the document state, and sees the chart where it is shown."""

    def __init__(self, chart: ExtractedFact = SHIPS, *, confirms: bool | Failure = True) -> None:
        super().__init__([BUILDER])
        self.looked: list[LookRequest] = []
        self._chart = chart
        self._confirms = confirms
        self._sees = False

    async def extract(self, request: ExtractionRequest) -> Reply[Extraction]:
        """Return the fact of the chart if it is shown."""
        if request.images:
            return self._reply(request, Extraction((self._chart,)))
        return await super().extract(request)

    async def read(self, request: EvidenceRequest) -> Reply[EvidenceAnswer]:
        """Read the passages, and the chart among them."""
        self._sees = any(CHART in passage.images for passage in request.passages)
        return await super().read(request)

    def store_of(self, text: str) -> FactStore:
        """Return a store with the fact of the chart, if it is in view."""
        store = super().store_of(text)
        value = parse_value(SHIPS.value, SHIPS.kind, SHIPS.unit)
        if not self._sees or value is None:
            return store
        fact = new_fact(SHIPS.subject, SHIPS.relation, value, (FactSpan("shown", 0, 0),))
        return FactStore([*store.facts, fact])

    async def look(self, request: LookRequest) -> Reply[Look]:
        """Confirm it, or not."""
        self.looked.append(request)
        if isinstance(self._confirms, Failure):
            return Reply(failure=self._confirms)
        return Reply(Look(self._confirms))


CONFIG = SynthesisConfig(check_answerability=False, max_drafts=2)


@pytest.mark.promise("synthesis:pictures:cited")
@pytest.mark.promise("synthesis:pictures:looked")
async def test_a_fact_in_a_region_of_a_picture_is_cited_once_a_model_has_confirmed_it() -> None:
    viewer = Viewer()
    result = await write_questions(grown(), CONFIG, viewer, page())
    [pair] = result.pairs
    assert pair.answer == "4,711 ships"
    assert {(one.picture, one.region) for one in viewer.looked} == {(CHART, UPPER)}
    assert pair.votes[0].check is Check.PICTURES
    record = json.loads(msgspec.json.encode(pair_record(grown().seed.id, pair, result.trajectories[0])))
    text, seen, *_ = (step["citations"][0] for step in record["reasoning_steps"])
    assert text.keys() == {"node_id", "quote", "start", "end"}
    assert seen["file"] == f"images/{CHART.hash}.png"
    assert (seen["node_id"], seen["image"]) == (grown().nodes[1].id, CHART.hash)
    assert seen["region"] == {"picture": 1, "left": 0.0, "top": 0.0, "right": 1.0, "bottom": 0.5}


@pytest.mark.promise("synthesis:pictures:looked")
@pytest.mark.parametrize("seen", [False, Failure(ModelFailureKind.UNAVAILABLE, "down")])
async def test_a_fact_that_no_model_confirms_in_the_picture_is_not_used(seen: bool | Failure) -> None:
    result = await write_questions(grown(), CONFIG, Viewer(confirms=seen), page())
    assert result.pairs == ()
    assert {finding.check for draft in result.rejected for finding in draft.findings} == {Check.PICTURES}


@pytest.mark.promise("synthesis:pictures:refused")
@pytest.mark.parametrize(
    "region",
    [
        Region(2, 0, 0, 1, 1),
        Region(0, 0, 0, 1, 1),
        Region(1, 0.5, 0, 0.5, 1),
        Region(1, 0, 0, 1.2, 1),
        Region(1, float("nan"), 0, 1, 1),
        None,
    ],
)
async def test_a_fact_from_an_invalid_region_is_refused(region: Region | None) -> None:
    result = await write_questions(grown(), CONFIG, Viewer(replace(SHIPS, region=region)), page())
    assert (result.facts, sum(result.extraction_faults.values())) == (1, 1)
    assert result.pairs == ()


class Eyes:
    """A model that sees: it keeps the pictures it was shown, plans to see more, and reads facts in them."""

    def __init__(self, visit: Callable[[int], dict[str, object]]) -> None:
        self.shown: set[str] = set()
        self.visits = 0
        self._visit_to = visit
        self._numbers: dict[str, int] = {}

    async def answer(self, request: web.Request) -> web.Response:
        body = cast("dict[str, Any]", await request.json())
        pictures = [
            part["image_url"]["url"]
            for message in body["messages"]
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image_url"
        ]
        hashes: list[str] = []
        for url in pictures:
            head, _, data = url.partition(",")
            assert head == "data:image/png;base64"
            decoded = base64.b64decode(data, validate=True)
            assert decoded.startswith(b"\x89PNG\r\n")
            hashes.append(hashlib.sha256(decoded).hexdigest())
        self.shown.update(hashes)
        name = body["response_format"]["json_schema"]["name"]
        said = json.dumps(self._say(await request.read(), name, hashes))
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}
        )

    def _say(self, raw: bytes, name: str, hashes: list[str]) -> object:
        """Answer: picture number n shows the nth ship, and its predecessor."""
        prompt = read_prompt(raw)
        match name:
            case "look":
                return {"shows": len(hashes) == 1}
            case "plan":
                wanted = prompt.schema["properties"]["proposals"]["minItems"]
                return {"proposals": [self._visit() for _ in range(wanted)]}
            case "extraction":
                assert "region" in json.dumps(prompt.schema)
                [number] = map(int, re.findall(r"^The call:\n.*?(\d+).*$", prompt.text, re.MULTILINE))
                self._numbers[hashes[0]] = number
                return {"facts": [self._fact(number)], "sets": []}
            case "wording":
                return _facts.word(prompt)
            case "translation":
                return _facts.translate(prompt)
            case _:
                return self._answer(_facts.translate(prompt), {self._numbers[hash] for hash in hashes})

    def _fact(self, number: int) -> dict[str, object]:
        before = f"Ship {number - 1}" if number > 1 else "Captain Orm"
        return {
            "subject": before,
            "relation": "successor" if number > 1 else "ship",
            "value": f"Ship {number}",
            "kind": "entity",
            "quote": f"Ship {number}",
            "unit": "",
            "time": "",
            "aliases": [],
            "region": {"picture": 1, "left": 0.0, "top": 0.0, "right": 1.0, "bottom": 1.0},
        }

    def _answer(self, program: dict[str, Any], seen: set[int]) -> dict[str, object]:
        known = {(fact["subject"], fact["relation"]): fact["value"] for fact in map(self._fact, seen)}
        results: list[object] = []
        for step in program["steps"]:
            [given] = step["inputs"]
            start = results[int(given[1:]) - 1] if given.startswith("#") else given
            results.append(known.get((start, step["relation"])))
        answers = [results[-1]] if results and results[-1] else []
        return {"quotes": [], "derivation": "It is in the pictures.", "answers": answers}

    def _visit(self) -> dict[str, object]:
        self.visits += 1
        return {"intent": "Look.", **self._visit_to(self.visits)}


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
@pytest.mark.promise("synthesis:images")
@pytest.mark.promise("training:conversations:images")
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
            max_questions=1,
        )
        _, report = await run_to_the_end(config, [NewSeed("The expeditions of Captain Orm")])
    assert report.pairs == 1
    [pair] = lines(tmp_path / "out" / "synthesized_qa.jsonl")
    assert (pair["answer"], pair["metadata"]["hops"]) == ("Ship 3", 3)
    cited = {one["image"] for step in pair["reasoning_steps"] for one in step["citations"]}
    [trajectory] = lines(tmp_path / "out" / "trajectories.jsonl")
    kept = {image["hash"] for node in trajectory["nodes"] for image in node.get("images", [])}
    assert len(kept) == 3
    assert cited == kept
    assert eyes.shown == kept
    files = {image["file"] for node in trajectory["nodes"] for image in node.get("images", [])}
    assert {one["file"] for step in pair["reasoning_steps"] for one in step["citations"]} == files
    written = {path.stem: path.read_bytes() for path in (tmp_path / "out" / "images").iterdir()}
    assert {hash: hashlib.sha256(data).hexdigest() for hash, data in written.items()} == {
        hash: hash for hash in kept
    }
    (conversation,) = read_conversations(tmp_path / "out", images=True)
    parts = [part for message in conversation if message["role"] == "tool" for part in message["content"]]
    assert {part["path"] for part in parts if part["type"] == "image"} == {
        str(tmp_path / "out" / file) for file in files
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_claim_about_a_picture_is_text_for_all_other_checks() -> None:
    said = Observation((Text("words"), CHART))
    assert said.text == "words"
    assert said.blobs == (CHART,)
