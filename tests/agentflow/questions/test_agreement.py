"""Answers agree under types, units, precision and aliases."""

import pytest

from agentflow.questions import KnownNames, agrees
from agentflow.values import ValueKind
from tests.agentflow.questions._notes import draft, notes

NAMES = KnownNames(
    ["Debra Lynn married Ian Murdock of Purdue University.", "Bruce Perens met Bruce Schneier."]
)
N, E, L, B, D = ValueKind.NUMBER, ValueKind.ENTITY, ValueKind.LIST, ValueKind.BOOL, ValueKind.DATE


@pytest.mark.promise("questions:agreement")
@pytest.mark.parametrize(
    ("answer", "kind", "unit", "said", "expected"),
    [
        ("1 year", N, "years", "1 year and 9 months", False),
        ("4 years", N, "years", "4 years and 4 months", False),
        ("10", N, "years", "10 years 5 months", False),
        ("1 year and 9 months", N, "", "1 year, 9 months", True),
        ("1 year and 9 months", N, "", "21 months", True),
        ("1 year and 9 months", N, "", "1 year", False),
        ("5 feet 3 inches", N, "", "5 feet", False),
        ("5 feet 3 inches", N, "", "It is 63 inches long.", True),
        ("1 year", E, "", "1 year and 9 months", False),
        ("1 month and 3 days", E, "", "1 month", False),
        ("1 month and 3 days", N, "", "1 month, 3 days", True),
        ("130", N, "days", "130 days", True),
        ("130", N, "days", "131", False),
        ("Debra", E, "", "Debra Lynn", True),
        ("Purdue University", E, "", "Purdue", True),
        ("Bruce", E, "", "Bruce Perens", False),
        ("Ian Murdock", E, "", "Ada Quill", False),
        ("ia64, hppa and s390", L, "", "hppa, ia64, s390", True),
        ("ia64 and hppa", L, "", "ia64, hppa and s390", False),
        ("yes", B, "", "Yes, it does.", True),
        ("12 May 1841", D, "", "May 12, 1841", True),
        ("12 May 1841", D, "", "1841", False),
        ("hppa", E, "", "", False),
    ],
)
def test_an_answer_agrees_with_its_unit_and_precision_only(
    answer: str, kind: ValueKind, unit: str, said: str, expected: bool
) -> None:
    given = draft(notes(), question="Which is it?", answer=answer, answer_type=kind, unit=unit)
    assert agrees(given, said, NAMES) is expected


@pytest.mark.promise("questions:agreement")
def test_an_answer_in_another_unit_than_the_question_asks_for_agrees_with_none() -> None:
    for question, expected in (("How many weeks was it?", False), ("How many days was it?", True)):
        days = draft(notes(), question=question, answer="462", answer_type=N, unit="days")
        assert [agrees(days, said, NAMES) for said in ("462 days", "66 weeks")] == [expected, expected]


SINCE = "From which Python does fromisoformat() exist, and from which does it parse most ISO 8601 formats?"
STEPS = "At which release do row policies, triggers and the index check change?"


@pytest.mark.promise("questions:agreement")
@pytest.mark.parametrize(
    ("question", "answer", "said", "expected"),
    [
        (STEPS, "row policies: 15.4; triggers: 15.6; index check: 15.14", "15.4, 15.6, 15.14", True),
        (STEPS, "row policies: 15.4; triggers: 15.6; index check: 15.14", "15.6, 15.4, 15.14", False),
        (STEPS, "row policies: 15.4; triggers: 15.6", "row policies: 15.6, triggers: 15.4", False),
        (STEPS, "triggers: 15.6; index check: 15.14; row policies: 15.4", "15.4, 15.6, 15.14", True),
        (STEPS, "triggers: 15.6; index check: 15.14; row policies: 15.4", "15.6, 15.14, 15.4", False),
        (STEPS, "triggers: yes; index check: no", "yes, no", True),
        (SINCE, "exists from 3.7; most ISO 8601 formats from 3.11", "Python 3.7, Python 3.11", True),
        (SINCE, "exists from 3.7; most ISO 8601 formats from 3.11", "3.11, 3.7", False),
        (SINCE, "exists from 3.7; most ISO 8601 formats from 3.11", "3.7, 3.12", False),
        (SINCE, "exists from 3.7; most ISO 8601 formats from 3.11", "3.7, not before 3.11", False),
        (STEPS, "index check: no; triggers: yes", "no, yes", False),
        (STEPS, "triggers at 15.1", "triggers: 15.14", False),
        ("Which of Potato, Woody and Etch?", "Potato (2.2), Woody (3.0)", "3.0 Woody, 2.2 Potato", True),
        ("Which of Potato, Woody and Etch?", "Potato", "Woody", False),
        ("Which was first, with KDE or AppArmor?", "The first with KDE (Debian 3.0)", "the first Debian with KDE (3.0)", True),
        ("How many months after Potato did he leave?", "7", "7 months", True),
        ("How many months after Potato did he leave?", "7", "7 years", False),
    ],
)  # fmt: skip
def test_the_parts_of_a_list_agree_if_one_only_repeats_words_of_the_question(
    question: str, answer: str, said: str, expected: bool
) -> None:
    kind = N if answer.isdecimal() else ValueKind.TEXT
    given = draft(notes(), question=question, answer=answer, answer_type=kind, unit="")
    assert agrees(given, said, NAMES) is expected


@pytest.mark.promise("questions:agreement")
def test_texts_with_other_numbers_do_not_agree() -> None:
    known = draft(
        notes(),
        question="What are the top countries by GDP in 2024, and what is each one's GDP?",
        answer="Chile ($29.17 trillion), Peru ($18.53 trillion)",
        answer_type=ValueKind.TEXT,
        unit="",
    )
    names = KnownNames([])
    assert agrees(known, "In 2024 they are: 1. Chile ($29.17 trillion), 2. Peru ($18.53 trillion).", names)
    assert not agrees(known, "Chile ($29.17 trillion), Peru ($17.53 trillion)", names)
    assert not agrees(known, "Chile ($29.17 trillion)", names)
