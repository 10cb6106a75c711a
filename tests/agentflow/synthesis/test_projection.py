"""Choice of the pairs that are written: quotas, and duplicates by words or by answers from the same documents."""

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentflow.synthesis import PAIRS, SURPLUS, SynthesisConfig
from agentflow.synthesis._config import QuotaSettings
from agentflow.synthesis._files import (
    MIN_OF_KIND,
    PairKey,
    QuestionIndex,
    Surplus,
    surplus_of,
)
from agentflow.values import BoolValue, EntityValue, NumberValue, Value
from tests.agentflow.synthesis._grown import SEED, chain
from tests.agentflow.synthesis.test_files import OTHER, harvested, written

KINDS = ("bridge", "comparison", "count", "temporal", "list")


def key(number: int, *, kind: str, answer: Value | None = None) -> PairKey:
    """Return a pair unlike any other."""
    return PairKey(
        id=str(number),
        question=f"Question {number} about thing {number * 7919}?",
        answer=answer or EntityValue(f"Thing {number}"),
        kind=kind,
        documents=frozenset({f"document {number}", "document"}),
    )


def kept(pairs: list[PairKey], quotas: QuotaSettings | None = None) -> tuple[list[PairKey], Counter[Surplus]]:
    """Return the pairs that are written, and the number of the others by reason."""
    surplus = surplus_of(pairs, QuestionIndex(0.85), quotas or QuotaSettings())
    return [pair for place, pair in enumerate(pairs) if place not in surplus], Counter(surplus.values())


@pytest.mark.promise("synthesis:files:quotas")
def test_no_kind_and_no_answer_has_more_than_its_share() -> None:
    pairs = [
        key(
            number,
            kind="bridge" if number % 2 else KINDS[number % 5],
            answer=EntityValue("Alba") if number % 10 == 0 else None,
        )
        for number in range(600)
    ]
    left, reasons = kept(pairs)
    total = len(left)
    assert total > 200
    assert max(Counter(pair.kind for pair in left).values()) <= total / 4
    assert sum(pair.answer == EntityValue("Alba") for pair in left) <= max(2, total / 100)
    assert set(reasons) == {Surplus.KIND, Surplus.ANSWER}
    # The earlier ones stay, and nothing else decides.
    assert kept(pairs)[0] == left
    assert left[0] == pairs[0]


@pytest.mark.promise("synthesis:files:quotas")
@pytest.mark.parametrize(
    ("pairs", "quotas", "reasons"),
    [
        # A small file may have a few of everything.
        ([key(n, kind="bridge") for n in range(MIN_OF_KIND)], None, {}),
        # Of three kinds, one always has more than a quarter.
        ([key(n, kind=KINDS[n % 3]) for n in range(60)], None, {}),
        # Yes and no are answers to many questions.
        ([key(n, kind=KINDS[n % 5], answer=BoolValue(True)) for n in range(60)], None, {}),
        ([key(n, kind=KINDS[n % 5], answer=EntityValue("Alba")) for n in range(60)], None, {Surplus.ANSWER: 58}),
        ([key(n, kind=KINDS[n % 5], answer=EntityValue("Alba")) for n in range(60)], QuotaSettings(answer=1), {}),
        ([], None, {}),
    ],
)  # fmt: skip
def test_quotas_hold_where_they_can_be_met(
    pairs: list[PairKey], quotas: QuotaSettings | None, reasons: dict[Surplus, int]
) -> None:
    assert kept(pairs, quotas)[1] == reasons


@pytest.mark.promise("synthesis:files:near-duplicates")
def test_answers_from_the_same_documents_are_duplicates_and_typed_answers_are_compared() -> None:
    asked = QuestionIndex(0.85)
    twelve = NumberValue(Decimal(12), "km")
    asked.add("How far is Alba from Brenn by the coast road?", twelve, "first", {"alba", "brenn"})
    far = "How far is Alba from Brenn by the coast path?"
    assert asked.before(far, NumberValue(Decimal(12000), "metres")) == "first"
    assert asked.before(far, NumberValue(Decimal(13), "km")) is None
    assert asked.before("What is the distance?", twelve, {"brenn", "alba"}) == "first"
    assert asked.before("What is the distance?", twelve, {"hull", "alba"}) is None


@pytest.mark.promise("synthesis:files:quotas")
async def test_surplus_pairs_are_not_lost(tmp_path: Path) -> None:
    result = await harvested(chain())
    first = result.pairs[0]
    many = tuple(
        replace(
            first,
            number=number,
            question=" ".join(f"{word}{number}" for word in ("Who", "founded", "this", "old", "school"))
            + "?",
            documents=tuple(replace(each, id=f"{each.id} {number}") for each in first.documents),
        )
        for number in range(9)
    )
    config = SynthesisConfig.model_validate({"quotas": {"answer": 0.3}})
    results = (SEED, replace(result, pairs=many[:5])), (OTHER, replace(result, pairs=many[5:]))
    report = await written(tmp_path, *results, config=config)
    pairs, surplus = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in (PAIRS, SURPLUS)
    )
    assert [one["question"] for one in pairs + surplus] == [pair.question for pair in many]
    assert report.surplus == {"answer": len(surplus)} == {"answer": 7}
