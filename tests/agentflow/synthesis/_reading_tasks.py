"""Pairs that were kept over real texts, as tasks of reading: recorded/reading.jsonl.

`python -m tests.agentflow.synthesis._reading_tasks` writes the file. Above each question are the passages that its steps quote, cut
around the quotes.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from agentflow.questions import JudgedDraft
from agentflow.trace import Task
from examples.real_model.tasks import reading
from tests.agentflow.synthesis._quality import corpus_of, replay_all
from tests.agentflow.synthesis._recorded import RECORDED, Recording

__all__ = ["FILE", "reading_lines"]

FILE = RECORDED / "reading.jsonl"
_AROUND = 200
"""Characters of a passage before and after a quote."""


def reading_lines(replayed: Sequence[tuple[Recording, Sequence[JudgedDraft]]]) -> bytes:
    """Return a line for each kept pair."""
    lines: list[bytes] = []
    for recording, judged in replayed:
        for kept in judged:
            if kept.passed:
                draft = kept.draft
                task = Task(
                    index=len(lines),
                    id=f"{recording.name}-{kept.number}",
                    question=reading(_passages(recording, kept), draft.question),
                    references=(draft.answer,),
                    metadata={"kind": "read", "class": corpus_of(recording)},
                )
                lines.append(msgspec.json.encode(task) + b"\n")
    return b"".join(lines)


def _passages(recording: Recording, kept: JudgedDraft) -> list[str]:
    passages = {
        passage.number: (document.title, passage.text)
        for document in recording.documents
        for passage in document.passages
    }
    shown: dict[tuple[int, str], None] = {}
    for step in kept.draft.steps:
        if step.passage in passages:
            title, text = passages[step.passage]
            place = max(text.find(step.quote[:40]), 0)
            start = max(0, place - _AROUND)
            cut = " ".join(text[start : place + len(step.quote) + _AROUND].split())
            shown[step.passage, f"{title}: {cut}"] = None
    return [text for _, text in sorted(shown)]


if __name__ == "__main__":
    FILE.write_bytes(reading_lines(asyncio.run(replay_all())))
