"""Questions over real documents, from recorded answers: what was kept stays kept, and the page about it is true."""

import asyncio
from collections import Counter

import pytest

from agentflow.questions import JudgedDraft
from tests.agentflow.synthesis._audited import fallen, load_drafts
from tests.agentflow.synthesis._quality import load_labels, page, replay_all, replay_audits
from tests.agentflow.synthesis._reading_tasks import FILE, reading_lines
from tests.agentflow.synthesis._recorded import Recording
from tests.behaviour._tree import ROOT


@pytest.fixture(scope="module")
def replayed() -> list[tuple[Recording, list[JudgedDraft]]]:
    return asyncio.run(replay_all())


@pytest.fixture(scope="module")
def audited() -> dict[str, JudgedDraft]:
    return asyncio.run(replay_audits())


@pytest.mark.promise("synthesis:quality")
def test_the_page_about_quality_is_what_the_recordings_give(
    replayed: list[tuple[Recording, list[JudgedDraft]]], audited: dict[str, JudgedDraft]
) -> None:
    assert (ROOT / "docs/question-quality.md").read_text(encoding="utf-8") == page(replayed, audited)


@pytest.mark.promise("synthesis:quality")
def test_the_tasks_of_reading_are_the_kept_questions(
    replayed: list[tuple[Recording, list[JudgedDraft]]],
) -> None:
    assert FILE.read_bytes() == reading_lines(replayed)


@pytest.mark.promise("synthesis:audit:quality")
def test_an_audit_stops_drafts_with_a_fault_by_its_check_and_no_others(
    audited: dict[str, JudgedDraft],
) -> None:
    faults = fallen(load_drafts(), audited)
    good = faults.pop("")
    bad = [each for drafts in faults.values() for each in drafts]
    assert len(faults) >= 12
    assert len(good) + len(bad) == 60
    assert sum(check in draft.checks for draft, check in bad) >= 0.9 * len(bad)
    stopped = [bool(check) for _, check in (*bad, *good)]
    assert sum(bool(check) for _, check in bad) >= 0.98 * sum(stopped)
    assert sum(bool(check) for _, check in good) <= 1


@pytest.mark.promise("synthesis:quality")
def test_most_drafts_over_real_texts_are_kept_with_exact_quotes_at_a_bounded_cost(
    replayed: list[tuple[Recording, list[JudgedDraft]]],
) -> None:
    kept = [(recording, draft) for recording, judged in replayed for draft in judged if draft.passed]
    drafts = sum(len({draft.number for draft in judged}) for _, judged in replayed)
    assert len(replayed) <= 14
    assert len(kept) >= 60
    assert len(kept) >= 0.5 * drafts
    calls = Counter[str]()
    tokens = 0
    for recording, _ in replayed:
        for stage, used in recording.calls():
            calls["plan" if stage == "plan" else "recall" if stage == "recall" else "gate"] += 1
            tokens += used if stage not in ("plan", "recall") else 0
    assert calls["gate"] <= 5 * len(kept)
    assert tokens <= 22_000 * len(kept)
    for recording, draft in kept:
        passages = {each.number: each for document in recording.documents for each in document.passages}
        for step in draft.draft.steps:
            for node, start, end in passages[step.passage].places_of(step.quote) if step.quote else ():
                text = recording.tree.by_id[node].observation.text[start:end]
                assert (
                    "".join(text.split()).casefold()
                    in "".join(passages[step.passage].text.split()).casefold()
                )


@pytest.mark.promise("synthesis:quality")
def test_an_independent_reader_finds_the_kept_questions_right(
    replayed: list[tuple[Recording, list[JudgedDraft]]],
) -> None:
    labels = load_labels()
    kept = {
        (recording.name, draft.number) for recording, judged in replayed for draft in judged if draft.passed
    }
    assert kept == labels.keys()
    for field in ("correct", "unique", "several"):
        assert sum(getattr(label, field) for label in labels.values()) >= 0.95 * len(kept)
    across = [
        draft
        for recording, judged in replayed
        if recording.name.startswith("tools")
        for draft in judged
        if draft.passed
        and len({recording.documents[number - 1].computed for number in draft.draft.documents}) == 2
    ]
    assert len(across) >= 10
