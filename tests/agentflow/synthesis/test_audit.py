"""Audit of questions from elsewhere."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.synthesis import AuditedQuestion
from agentflow.synthesis._audit import group_questions
from agentflow.testing import fake_endpoint
from mcp_servers.rag import CorpusDocument

LIGHTS = {
    "fern.md": "# Fern Light\n\nFern Light has 212 steps that lead to the lamp. Fern Light is red.",
    "gull.md": "# Gull Light\n\nGull Light has 99 steps that lead to the lamp in the top of it.",
    "tern.md": "# Tern Light\n\nTern Light has 180 steps. The town of Alba is near.",
}
LIST = "Fern Light, Gull Light and Tern Light"
QUESTIONS: list[Mapping[str, object]] = [
    {
        "id": "good",
        "question": f"Which of {LIST} has the most steps?",
        "answer": "Fern Light",
        "documents": ["gull.md", "Tern Light", "fern"],
        "steps": [
            {
                "statement": "Fern Light has 212 steps.",
                "document": "fern.md",
                "quote": "Fern Light has 212 steps",
            }
        ],
    },
    {
        "id": "found",
        "question": "How many steps do Gull Light and Tern Light have together?",
        "answer": "279",
        "unit": "steps",
    },
    {"id": "wrong", "question": f"Which of {LIST} has the fewest steps?", "answer": "Tern Light"},
    {
        "id": "misquoted",
        "question": "How many steps do Fern Light and Tern Light have together?",
        "answer": "392",
        "unit": "steps",
        "steps": [{"statement": "Fern Light has 300 steps.", "document": "fern", "quote": "has 300 steps"}],
    },
    {
        "id": "alone",
        "question": "How many steps do Fern Light and Fern Light have together?",
        "answer": "424",
    },
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lights").mkdir()
    for name, text in LIGHTS.items():
        (tmp_path / "lights" / name).write_text(text, encoding="utf-8")
    lines = "".join(json.dumps(question) + "\n" for question in QUESTIONS)
    (tmp_path / "questions.jsonl").write_text(lines, encoding="utf-8")
    return tmp_path


def verdicts(folder: Path) -> dict[str, tuple[bool, str]]:
    lines = (folder / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    return {verdict["id"]: (verdict["passed"], verdict["check"]) for verdict in map(json.loads, lines)}


EXPECTED = {
    "good": (True, ""),
    "found": (True, ""),
    "wrong": (False, "evidence"),
    "misquoted": (False, "quotes"),
    "alone": (False, "one_document"),
}


@pytest.mark.promise("synthesis:audit")
def test_each_question_gets_a_verdict_with_the_check_that_stopped_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "questions.jsonl", "--documents", "lights", "control=false"]) == 0
    assert verdicts(place / "audit_results") == EXPECTED
    shown = capsys.readouterr().out
    assert "5 questions: passed 2, evidence 1, quotes 1, one_document 1" in shown
    assert "a reader answers Gull Light" in shown
    [found] = [
        verdict
        for verdict in map(json.loads, (place / "audit_results/audit.jsonl").read_text().splitlines())
        if verdict["id"] == "found"
    ]
    assert set(found["documents"]) == {"gull.md", "tern.md"}
    assert main(["audit", "questions.jsonl", "--documents", "lights", "--json", "control=false"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["id"] == "good"


@pytest.mark.promise("synthesis:audit:resume")
def test_a_finished_audit_asks_nothing_again_and_an_interrupted_one_continues(place: Path) -> None:
    words = ["audit", "questions.jsonl", "--documents", "lights", "control=false"]
    assert main(words) == 0
    before = (place / "audit_results/audit.jsonl").read_bytes()
    journal = (place / "audit_results/journal.db").stat().st_size
    assert main(words) == 0
    assert (place / "audit_results/audit.jsonl").read_bytes() == before
    assert (place / "audit_results/journal.db").stat().st_size == journal
    shutil.rmtree(place / "audit_results")
    assert main([*words, "max_total_tokens=500"]) == 3
    assert main(words) == 0
    assert (place / "audit_results/audit.jsonl").read_bytes() == before


@pytest.mark.promise("synthesis:audit:input")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "questions.jsonl:1: "),
        ('{"question": "Who?"}', "questions.jsonl:1: Object missing required field `answer`"),
        ('{"question": "Who?", "answer": " "}', "questions.jsonl:1: it has no question or no answer"),
        (
            '{"question": "Who?", "answer": "Ada", "documents": ["fren.md"]}',
            "question_1: the document fren.md is unknown; did you mean fern.md?",
        ),
        ("", "questions.jsonl: it has no questions"),
    ],
)
def test_a_question_that_can_not_be_used_is_refused_in_one_line(
    place: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "questions.jsonl").write_text(line)
    assert main(["audit", "questions.jsonl", "--documents", "lights", "control=false"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert message in last
    assert not (place / "audit_results").exists()


@pytest.mark.promise("synthesis:audit:input")
def test_documents_that_can_not_be_read_are_refused_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "empty").mkdir()
    for documents, message in (("nowhere", "there is no such file"), ("empty", "it has no documents")):
        assert main(["audit", "questions.jsonl", "--documents", documents, "control=false"]) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
    assert main(["audit", "absent.jsonl", "--documents", "lights", "control=false"]) == 2
    assert "absent.jsonl: can't be read" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.promise("synthesis:audit")
def test_a_model_is_asked_under_the_settings_of_the_command(place: Path) -> None:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(fake_endpoint()) as url,
    ):
        words = ["audit", "questions.jsonl", "--documents", "lights", "--model", "fake", f"base_url={url}"]
        assert main([*words, "-o", "out", "control=false"]) == 0
    assert set(verdicts(place / "out")) == set(EXPECTED)


@pytest.mark.promise("synthesis:audit")
def test_questions_are_checked_with_the_passages_that_they_need() -> None:
    long = "\n\n".join(f"Entry {number} is about lamp {number}." for number in range(2_000))
    documents = [CorpusDocument("long", "Long", long), CorpusDocument("short", "Short", "Lamp 7 is old.")]
    asked = [AuditedQuestion(id="a", question="What is lamp 1234 about?", answer="Entry 1234")]
    [group] = group_questions(asked, documents, characters=9_000, most=14)
    shown = "".join(long[read["start"] : read["start"] + read["length"]] for read in group.reads[:-1])
    assert "Entry 1234 is about lamp 1234." in shown
    assert len(shown) <= 4_000
    assert group.reads[-1] == {"id": "short", "length": 14}
    many = [
        AuditedQuestion(id=str(n), question="Which?", answer="It", documents=("short",)) for n in range(30)
    ]
    groups = group_questions(many, documents, characters=9_000, most=14)
    assert [len(group.questions) for group in groups] == [12, 12, 6]
    with pytest.raises(ConfigurationError, match="the document nowhere is unknown"):
        group_questions(
            [AuditedQuestion(question="Q?", answer="A", documents=("nowhere",))],
            documents,
            characters=9,
            most=1,
        )
