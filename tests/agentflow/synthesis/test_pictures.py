"""Pictures as evidence: facts in regions of them, believed only where a model has looked."""

import base64
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from agentflow.errors import ModelFailureKind
from agentflow.journal import NewSeed
from agentflow.learner.data import read_conversations
from agentflow.questions import Draft, DraftKind, DraftStep, GateCheck, ShownDocument
from agentflow.synthesis import SynthesisConfig
from agentflow.synthesis._files import pair_record
from agentflow.synthesis._questions import write_questions
from agentflow.testing import ScriptedRoles
from agentflow.testing.endpoint._prompt import read_prompt
from agentflow.trace import (
    ActionOutcome,
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
from agentflow.values import ValueKind
from tests.agentflow.synthesis._grown import page, tree
from tests.agentflow.synthesis._runs import config_for, run_to_the_end
from tests.mcp_servers.document._made import pdf

CHART = Blob("c4a7", "image/png")
_SHIPS = 3
UPPER = Region(1, 0.0, 0.0, 1.0, 0.5)
BUILDER = "The harbour of Orm was built by Ada Lind."
SHIPS = "Total: 4,711 ships"
QUESTION = "How many ships use the harbour that Ada Lind built?"


def grown() -> Tree:
    """Return a tree of one path: a screenshot, then a document."""
    plain = tree({(0,): "x", (0, 0): BUILDER})
    nodes = list(plain.nodes)
    nodes[1] = replace(nodes[1], outcome=ActionOutcome(Observation((CHART,))))
    return replace(plain, nodes=tuple(nodes))


class Viewer(ScriptedRoles):
    """Asks about a chart and a document, and looks at the chart again where it is told to."""

    def __init__(self, region: Region | None = UPPER, *, confirms: bool | Failure = True) -> None:
        super().__init__(self.about)
        self.looked: list[LookRequest] = []
        self._region = region
        self._confirms = confirms

    def about(self, documents: Sequence[ShownDocument]) -> list[Draft]:
        """Return the draft about the chart."""
        [chart] = [each for document in documents for each in document.passages if each.image == CHART]
        [text] = [each for document in documents for each in document.passages if each.text]
        steps = (
            DraftStep(statement=BUILDER, passage=text.number, quote=BUILDER),
            DraftStep(
                statement="4,711 ships use it.",
                passage=chart.number,
                quote=SHIPS,
                value="4,711",
                region=self._region,
            ),
        )
        draft = Draft(
            kind=DraftKind.BRIDGE,
            asker="A harbour master.",
            question=QUESTION,
            answer="4,711",
            answer_type=ValueKind.NUMBER,
            unit="ships",
            documents=(),
            steps=steps,
        )
        return [draft]

    async def look(self, request: LookRequest) -> Reply[Look]:
        """Confirm it, or not."""
        self.looked.append(request)
        if isinstance(self._confirms, Failure):
            return Reply(failure=self._confirms)
        return Reply(Look(self._confirms))


CONFIG = SynthesisConfig(closed_book_samples=0, repair=False, min_reasoning_steps=2)


@pytest.mark.promise("synthesis:pictures:cited")
@pytest.mark.promise("synthesis:pictures:looked")
async def test_a_quote_from_a_region_of_a_picture_is_cited_once_a_model_has_confirmed_it() -> None:
    viewer = Viewer()
    result = await write_questions(grown(), CONFIG, viewer, page())
    [pair] = result.pairs
    assert (pair.answer, pair.unit) == ("4,711", "ships")
    assert {(one.picture, one.region) for one in viewer.looked} == {(CHART, UPPER)}
    assert pair.votes[0].check is GateCheck.IMAGES
    record = json.loads(msgspec.json.encode(pair_record(grown().seed.id, pair, result.trajectories[0])))
    text, seen = (step["citations"][0] for step in record["reasoning_steps"])
    assert text.keys() == {"node_id", "quote", "start", "end"}
    assert seen["file"] == f"images/{CHART.hash}.png"
    assert (seen["node_id"], seen["image"]) == (grown().nodes[1].id, CHART.hash)
    assert seen["region"] == {"picture": 1, "left": 0.0, "top": 0.0, "right": 1.0, "bottom": 0.5}


@pytest.mark.promise("synthesis:pictures:looked")
@pytest.mark.parametrize("seen", [False, Failure(ModelFailureKind.UNAVAILABLE, "down")])
async def test_a_quote_that_no_model_confirms_in_the_picture_is_not_used(seen: bool | Failure) -> None:
    result = await write_questions(grown(), CONFIG, Viewer(confirms=seen), page())
    assert result.pairs == ()
    assert {finding.check for draft in result.rejected for finding in draft.findings} == {GateCheck.IMAGES}


@pytest.mark.promise("synthesis:pictures:refused")
@pytest.mark.parametrize(
    "region",
    [Region(1, 0.5, 0, 0.5, 1), Region(1, 0, 0, 1.2, 1), Region(1, float("nan"), 0, 1, 1), None],
)
async def test_a_quote_from_an_invalid_region_is_refused(region: Region | None) -> None:
    result = await write_questions(grown(), CONFIG, Viewer(region), page())
    assert result.pairs == ()
    assert {finding.check for draft in result.rejected for finding in draft.findings} == {GateCheck.QUOTES}


class Eyes:
    """A model that sees: it keeps the pictures it was shown, plans to see more, and asks about them."""

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
        """Answer: picture number n shows the nth ship."""
        prompt = read_prompt(raw)
        match name:
            case "look":
                return {"shows": len(hashes) == 1}
            case "plan":
                wanted = prompt.schema["properties"]["proposals"]["minItems"]
                return {"proposals": [self._visit() for _ in range(wanted)]}
            case "questionproposal":
                return {"people": [], "connections": [], "drafts": [self._draft(prompt.system)]}
            case "hiddenanswer":
                return {"answer": self._answer(len(hashes)), "basis": "stated", "documents": []}
            case "readings":
                answer = self._answer(len(hashes))
                reading = {"number": 1, "documents": [], "derivation": "It is in the pictures.",
                           "answers": [answer] if answer else [], "naturalness": 4}  # fmt: skip
                return {"readings": [reading]}
            case "recalled":
                return {"answer": "", "is_certain": False}
            case _:
                raise AssertionError(name)

    def _draft(self, documents: str) -> dict[str, object]:
        """Ask for the third ship, by the three pictures."""
        passages = [int(number) for number in re.findall(r"^\[(\d+)\] \(image", documents, re.MULTILINE)]
        region = {"picture": 1, "left": 0.0, "top": 0.0, "right": 1.0, "bottom": 1.0}
        steps = [
            {
                "statement": f"Ship {ship} came next.",
                "passage": passage,
                "quote": f"Ship {ship}",
                "value": "",
                "computes": "",
                "region": region,
            }
            for ship, passage in enumerate(passages, 1)
        ]
        return {"kind": "bridge", "asker": "A historian.", "question": "Which was the next but one ship after the first of Captain Orm?",
                "answer": f"Ship {len(passages)}", "answer_type": "entity", "unit": "", "precision": "", "documents": [],
                "steps": steps, "reasoning": "", "rivals": []}  # fmt: skip

    def _answer(self, pictures: int) -> str:
        """Answer if all three pictures are shown."""
        return "Ship 3" if pictures == _SHIPS else ""

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
    assert (pair["answer"], pair["metadata"]["hops"]) == ("Ship 3", 2)
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
