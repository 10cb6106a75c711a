"""Drafts with known faults that passed an audit, with the answers of its readers: they pass the checks again without a model.

`python -m tests.agentflow.synthesis._audited OUTPUT_DIR DRAFTS` records a finished audit; DRAFTS are lines of `recorded/audit/drafts.jsonl`.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from agentflow.questions import GateRoles, JudgedDraft, QuestionGate, ShownDocument
from agentflow.synthesis import AuditedQuestion, SynthesisConfig, load_synthesis_config
from agentflow.synthesis._audit import drafts_of
from agentflow.synthesis._questions import JournalledCalls, gate_settings, groups_of
from tests._pages import page_over
from tests.agentflow.synthesis._recorded import Nobody, finished_trees, recorded_search

__all__ = ["AuditedGroup", "LabelledDraft", "fallen", "load_drafts", "load_groups", "replay_audit"]

FOLDER = Path(__file__).parent / "recorded" / "audit"
_SETTINGS = (
    "max_questions",
    "drafts",
    "closed_book_samples",
    "evidence_samples",
    "min_reasoning_steps",
    "repair",
)


class LabelledDraft(Struct, frozen=True):
    """Fault of a draft, and the checks that may stop it."""

    id: str
    """Id of the question."""
    fault: str
    """Its fault; empty: it has none."""
    checks: tuple[str, ...]
    """Checks that may stop it for this fault."""


class AuditedGroup(Struct, kw_only=True):
    """Questions that were checked together."""

    settings: dict[str, Any]
    """Settings that decide the checks."""
    questions: list[AuditedQuestion]
    """The questions."""
    documents: tuple[ShownDocument, ...]
    """The documents, in the passages that readers were shown."""
    answers: dict[str, Any]
    """Answers of readers and results of searches, by their keys."""


def load_drafts() -> dict[str, LabelledDraft]:
    """Return what is known of all drafts, by id."""
    lines = (FOLDER / "drafts.jsonl").read_bytes().splitlines()
    drafts = [msgspec.json.decode(line, type=LabelledDraft) for line in lines]
    return {draft.id: draft for draft in drafts}


def load_groups() -> list[AuditedGroup]:
    """Return the recorded groups."""
    return msgspec.json.decode((FOLDER / "groups.json").read_bytes(), type=list[AuditedGroup])


async def replay_audit(group: AuditedGroup) -> dict[str, JudgedDraft]:
    """Have the questions of a group pass the checks again; return them by id."""
    page = page_over({key: msgspec.json.encode(answer) for key, answer in group.answers.items()})
    gate = QuestionGate(
        group.documents,
        cast("GateRoles", Nobody()),
        JournalledCalls(page),
        gate_settings(SynthesisConfig(**group.settings)),
        search=recorded_search(page),
    )
    drafts = enumerate(drafts_of(group.questions, group.documents), 1)
    judged = await gate.judge([JudgedDraft(draft=draft, number=number) for number, draft in drafts])
    return {group.questions[each.number - 1].id: each for each in judged}


def fallen(
    drafts: dict[str, LabelledDraft], judged: dict[str, JudgedDraft]
) -> dict[str, list[tuple[LabelledDraft, str]]]:
    """Return the drafts of each fault, with the check that stopped each; empty: it passed."""
    found: dict[str, list[tuple[LabelledDraft, str]]] = defaultdict(list)
    for draft in drafts.values():
        findings = judged[draft.id].findings
        found[draft.fault].append((draft, findings[0].check.value if findings else ""))
    return dict(sorted(found.items()))


def _record(output: Path) -> None:
    config = load_synthesis_config(str(output / "settings.yaml"), [])
    groups = [
        AuditedGroup(
            settings={name: getattr(config, name) for name in _SETTINGS},
            questions=msgspec.convert(tree.seed.kwargs["questions"], list[AuditedQuestion]),
            documents=groups_of(tree, config, divides=False)[1][0],
            answers={key: answer for key, answer in answers.items() if not key.startswith("plan/")},
        )
        for tree, answers in finished_trees(output)
    ]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "groups.json").write_bytes(msgspec.json.format(msgspec.json.encode(groups), indent=1))


if __name__ == "__main__":
    _record(Path(sys.argv[1]))
    labels = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    lines = [
        msgspec.json.encode(LabelledDraft(id, each["fault"], tuple(each["checks"])))
        for id, each in labels.items()
    ]
    (FOLDER / "drafts.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
