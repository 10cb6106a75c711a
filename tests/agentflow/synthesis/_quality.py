"""Page about the quality of recorded questions: docs/question-quality.md.

`python -m tests.agentflow.synthesis._quality` prints it. The labels are lines of `recorded/labels-READER.jsonl`; `scripts/label-questions` collects
those of people.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean

import msgspec
from msgspec import Struct

from agentflow.questions import JudgedDraft
from tests.agentflow.synthesis._audited import fallen, load_drafts, load_groups, replay_audit
from tests.agentflow.synthesis._recorded import RECORDED, Recording, load_recordings, replay

__all__ = ["Label", "load_labels", "page", "replay_all", "replay_audits"]

MODEL = "model"
"""Reader whose labels are those of a language model."""
TOOLS = "tools"
"""Corpus with documents and tables."""
NATURAL = "all that readers of the gate rated above 3"
_STAGES = ("propose", "hidden", "hidden2", "evidence", "others", "repair")


class Label(Struct, kw_only=True):
    """Labels of a pair by an independent reader."""

    tree: str
    """Name of the recording."""
    number: int
    """Number of the draft in its tree."""
    answer: str
    """The reader's own answer, written down before the pair's was shown."""
    correct: bool
    """The answer of the pair is right by the documents."""
    unique: bool
    """No other answer fits."""
    several: bool
    """It needs at least two documents, or a document and a tool."""
    naturalness: int
    """Likelihood that somebody with such a job would ask it: 5 certainly, 3 possible, 1 never."""
    note: str = ""
    """Reason of a label that is against the pair."""
    audit: str = ""
    """Result of the audit, if answer and pair disagreed."""
    calls: int = 0
    """Calls of an agent with the tools until its right answer; 0: it did not try, or failed."""
    hit: int = 0
    """Call at which the answer was first seen."""
    tried: bool = False
    """An agent tried it."""


def load_labels(reader: str = MODEL) -> dict[tuple[str, int], Label]:
    """Return the labels of a reader, by tree and number; empty if there are none."""
    file = RECORDED / f"labels-{reader}.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    labels = [msgspec.json.decode(line, type=Label) for line in lines]
    return {(label.tree, label.number): label for label in labels}


async def replay_all() -> list[tuple[Recording, list[JudgedDraft]]]:
    """Return the drafts of all recordings with what the gate says."""
    return [(recording, await replay(recording)) for recording in load_recordings()]


async def replay_audits() -> dict[str, JudgedDraft]:
    """Return the labelled drafts, by id, with what the gate says."""
    return {id: draft for group in load_groups() for id, draft in (await replay_audit(group)).items()}


def corpus_of(recording: Recording) -> str:
    """Return the corpus of a recording."""
    return recording.name.rpartition("-")[0]


def page(replayed: Sequence[tuple[Recording, Sequence[JudgedDraft]]], audited: dict[str, JudgedDraft]) -> str:
    """Return the page."""
    labels = load_labels()
    text = (RECORDED / "page.txt").read_text(encoding="utf-8")
    parts = {
        "corpora": _corpora(replayed, labels),
        "checks": _checks(replayed),
        "cost": _cost(replayed),
        "audit": _audit(audited),
        "pairs": "\n\n".join(_pairs(recording, judged, labels) for recording, judged in replayed),
    }
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->\n", f"{part}\n")
    return text


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _corpora(
    replayed: Sequence[tuple[Recording, Sequence[JudgedDraft]]], labels: Mapping[tuple[str, int], Label]
) -> str:
    rows: list[list[object]] = []
    names = list(dict.fromkeys(corpus_of(recording) for recording, _ in replayed))
    for name in [*names, "all", NATURAL]:
        own = [(each, judged) for each, judged in replayed if name in ("all", NATURAL, corpus_of(each))]
        drafts = sum(len({draft.number for draft in judged}) for _, judged in own)
        kept = [
            (each.name, draft.number)
            for each, judged in own
            for draft in judged
            if draft.passed and (name != NATURAL or draft.naturalness > 3)
        ]
        said = [labels[key] for key in kept if key in labels]
        rows.append(
            [
                name, len(own), drafts, len(kept), f"{len(kept) / max(drafts, 1):.0%}",
                *(
                    f"{sum(getattr(label, field) for label in said)} of {len(said)}"
                    for field in ("correct", "unique", "several")
                ),
                f"{mean(label.naturalness for label in said):.2f}" if said else "",
                sum(label.naturalness == 1 for label in said),
            ]
        )  # fmt: skip
    head = [
        "corpus",
        "trees",
        "drafts",
        "kept",
        "share",
        "correct",
        "unique",
        "needs several",
        "naturalness",
        "rated 1",
    ]
    return _table(head, rows)


def _checks(replayed: Sequence[tuple[Recording, Sequence[JudgedDraft]]]) -> str:
    fallen = Counter(
        (draft.findings[0].check.value, draft.attempt)
        for _, judged in replayed
        for draft in judged
        if not draft.passed
    )
    checks = sorted({check for check, _ in fallen}, key=lambda check: (-fallen[check, 1], check))
    return _table(
        ["check", "proposed drafts that fell", "repaired drafts that fell"],
        [[check, fallen[check, 1], fallen[check, 2]] for check in checks],
    )


def _cost(replayed: Sequence[tuple[Recording, Sequence[JudgedDraft]]]) -> str:
    kept = sum(draft.passed for _, judged in replayed for draft in judged)
    calls: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for recording, _ in replayed:
        for stage, used in recording.calls():
            calls[stage] += 1
            tokens[stage] += used
    groups = {
        "exploration": ("plan",),
        **{stage: (stage,) for stage in _STAGES},
        "after exploration": _STAGES,
        "all": ("plan", *_STAGES),
        "closed book, apart": ("recall",),
    }
    rows = [
        [name, sum(calls[each] for each in own), f"{sum(calls[each] for each in own) / kept:.1f}", f"{sum(tokens[each] for each in own) / kept:,.0f}"]
        for name, own in groups.items()
    ]  # fmt: skip
    return _table(["stage", "calls", "calls per kept pair", "tokens per kept pair"], rows)


def _audit(audited: dict[str, JudgedDraft]) -> str:
    """Return the table of drafts with known faults."""
    rows: list[list[object]] = []
    totals = Counter[str]()
    for fault, drafts in fallen(load_drafts(), audited).items():
        own = Counter(check for draft, check in drafts if check in draft.checks)
        others = Counter(check for draft, check in drafts if check and check not in draft.checks)
        passed = sum(not check for _, check in drafts)
        totals += Counter({"bad" if fault else "good": len(drafts)})
        totals += Counter(own=own.total(), others=others.total(), passed=passed) if fault else Counter()
        row = [len(drafts), _list(own), _list(others), passed or ""]
        rows.append([f"`{fault}`" if fault else "none", *row])
    bad = ["all faults", totals["bad"], totals["own"], totals["others"] or "", totals["passed"] or ""]
    return _table(["fault", "drafts", "stopped for it by", "by another check", "passed"], [*rows, bad])


def _list(counted: Counter[str]) -> str:
    return ", ".join(f"{check} {count}" for check, count in sorted(counted.items()))


def _pairs(
    recording: Recording, judged: Sequence[JudgedDraft], labels: Mapping[tuple[str, int], Label]
) -> str:
    documents = {document.number: document for document in recording.documents}
    rows: list[list[object]] = []
    for each in judged:
        if not each.passed:
            continue
        label = labels.get((recording.name, each.number))
        used = ", ".join(
            "query" if documents[number].computed else documents[number].id for number in each.draft.documents
        )
        marks = ["", "", "", "", "", ""] if label is None else [
            "yes" if label.correct else "**no**", "yes" if label.unique else "**no**", "yes" if label.several else "**no**",
            label.naturalness, (f"{label.calls} ({label.hit})" if label.calls else "failed") if label.tried else "", " ".join(filter(None, [label.note, label.audit])),
        ]  # fmt: skip
        known = "" if each.known is None else f"{each.known:.0%}" + (" disputed" if each.disputed else "")
        rows.append(
            [each.number, each.draft.kind.value, each.draft.question, each.draft.answer, used, known, *marks]
        )
    head = [
        "",
        "kind",
        "question",
        "answer",
        "documents",
        "known",
        "correct",
        "unique",
        "needs several",
        "naturalness",
        "calls (hit)",
        "notes",
    ]
    return f"### {recording.name}\n\n{recording.tree.seed.content}\n\n{_table(head, rows)}"


if __name__ == "__main__":
    sys.stdout.write(page(asyncio.run(replay_all()), asyncio.run(replay_audits())))
