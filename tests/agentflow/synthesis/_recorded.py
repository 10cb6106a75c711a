"""Trees over real texts with the answers of all models, recorded: their questions pass the gate again without a model.

`python -m tests.agentflow.synthesis._recorded OUTPUT_DIR` records the trees of a finished run. Answers are kept by their stage, draft and attempt, and
hold for the passages that they were given for, whatever the words of the prompts.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec
from msgspec import Struct

from agentflow.engine import with_observations
from agentflow.journal import Page, open_reader
from agentflow.questions import (
    GateRoles,
    JudgedDraft,
    ProposalRequest,
    QuestionGate,
    ShownDocument,
)
from agentflow.sandbox import Sandbox
from agentflow.synthesis import SeedResult, SynthesisConfig, load_synthesis_config
from agentflow.synthesis._questions import JournalledCalls, PageSearch, gate_settings, groups_of
from agentflow.trace import Action, ActionOutcome, Tree
from tests._pages import page_over

__all__ = [
    "RECORDED",
    "Nobody",
    "Recording",
    "finished_trees",
    "load_recordings",
    "record",
    "recorded_search",
    "replay",
]

RECORDED = Path(__file__).parent / "recorded"
_GROWTH = ("act/", "level/", "diverged/")
_KEPT = ("value", "failure", "usage", "observation", "trouble", "lost")
_SETTINGS = (
    "max_documents", "max_evidence_chars", "max_questions", "drafts", "closed_book_samples", "evidence_samples",
)  # fmt: skip


class Recording(Struct, kw_only=True):
    """One tree, the documents of its questions, and the answers that were given about them."""

    name: str
    """Name of the corpus, and number of the seed."""
    settings: dict[str, Any]
    """Settings of the run that decide its questions."""
    tree: Tree
    """The tree, with its observations."""
    documents: tuple[ShownDocument, ...]
    """The documents, in the passages that readers were shown."""
    answers: dict[str, Any]
    """Answers of models, results of searches and of calls that were made again, by their keys."""

    def calls(self) -> Iterator[tuple[str, int]]:
        """Yield the model calls: the first part of their key, and their tokens."""
        for key, answer in self.answers.items():
            if "value" in answer and (usage := answer.get("usage")):
                yield key.partition("/")[0], usage["prompt_tokens"] + usage["completion_tokens"]


class Nobody:
    """Roles that are not there."""

    @property
    def generator(self) -> "Nobody":
        """Nobody writes."""
        return self

    @property
    def reader(self) -> "Nobody":
        """Nobody reads."""
        return self

    def __getattr__(self, name: str) -> Callable[[object], Awaitable[NoReturn]]:
        async def asked(request: object) -> NoReturn:
            raise AssertionError(f"no answer is recorded for {name}: {str(request)[:500]}")

        return asked


class NoSearches:
    """Executor of searches that is not there."""

    async def act(self, sandbox: Sandbox, action: Action) -> NoReturn:
        raise AssertionError(f"no search is recorded for {action.arguments}")


def recorded_search(page: Page) -> PageSearch:
    """Return the search whose results are on a page."""
    return PageSearch(cast("Sandbox", None), NoSearches(), "rag_search", page)


class _Repeated(Struct):
    tree: Tree
    page: Page

    async def fault(self, node: str) -> str:
        outcome = self.page.recall(f"again/{node}", ActionOutcome)
        assert outcome is not None, f"the call of {node} was not made again"
        return "" if outcome.observation == self.tree.by_id[node].observation else "it gives another result"


def load_recordings() -> list[Recording]:
    """Return all recordings."""
    return [
        msgspec.json.decode(file.read_bytes(), type=Recording) for file in sorted(RECORDED.glob("*.json"))
    ]


async def replay(recording: Recording) -> list[JudgedDraft]:
    """Have the drafts of a recorded tree pass the gate again."""
    page = page_over({key: msgspec.json.encode(answer) for key, answer in recording.answers.items()})
    settings = gate_settings(SynthesisConfig(**recording.settings))
    gate = QuestionGate(
        recording.documents,
        cast("GateRoles", Nobody()),
        JournalledCalls(page),
        settings,
        search=recorded_search(page),
        repeated=_Repeated(recording.tree, page),
    )
    return await gate.write(
        ProposalRequest(documents=recording.documents, count=settings.drafts, keep=settings.keep)
    )


def record(output: Path, folder: Path = RECORDED) -> list[Path]:
    """Write the finished trees of a run, which ask about one group of documents each, as recordings."""
    config = load_synthesis_config(str(output / "settings.yaml"), [])
    files: list[Path] = []
    for tree, answers in finished_trees(output):
        documents = groups_of(tree, config, divides=True)[1][0]
        name = f"{output.name}-{tree.seed.index + 1}"
        made = Recording(
            name=name,
            settings={name: getattr(config, name) for name in _SETTINGS},
            tree=tree,
            documents=documents,
            answers=answers,
        )
        files.append(folder / f"{name}.json")
        files[-1].write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1))
    return files


def finished_trees(output: Path) -> Iterator[tuple[Tree, dict[str, Any]]]:
    """Yield the finished trees of a run, each with the answers about its documents, by their keys."""
    with open_reader(f"sqlite:///{output / 'journal.db'}") as reader:
        [run] = reader.runs()
        seeds = {stored.seed.index: stored.seed for stored in reader.seeds(run.number, done=True)}
        for number, body in reader.results(run.number, list(seeds)).items():
            entries = reader.entries(run.number, number, "")
            stripped = msgspec.json.decode(body, type=SeedResult).tree
            assert stripped is not None
            answers = {key: _trimmed(entry) for key, entry in entries.items() if not key.startswith(_GROWTH)}
            yield with_observations(stripped, seeds[number], page_over(entries)), answers


def _trimmed(body: bytes) -> Mapping[str, Any]:
    return {key: value for key, value in json.loads(body).items() if key in _KEPT}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for written in record(Path(name)):
            sys.stdout.write(f"{written}\n")
