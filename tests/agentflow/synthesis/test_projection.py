"""Choice of the pairs that are written: quotas, duplicates by facts, contradictions between trees."""

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentflow.facts import (
    BoolValue,
    Claim,
    DateValue,
    EntityValue,
    NumberValue,
    TextValue,
    Value,
    claims_of,
)
from agentflow.synthesis import PAIRS, REPORT, SURPLUS, SynthesisConfig
from agentflow.synthesis._config import QuotaSettings
from agentflow.synthesis._projection import (
    MIN_OF_KIND,
    MIN_OF_RELATION,
    CorpusClaims,
    PairKey,
    QuestionIndex,
    Surplus,
    surplus_of,
)
from tests.agentflow.synthesis._grown import SEED, chain
from tests.agentflow.synthesis.test_files import OTHER, harvested, written

KINDS = ("bridge", "comparison", "count", "temporal", "list")


def key(number: int, *, kind: str, relations: tuple[str, ...], answer: Value | None = None) -> PairKey:
    """A pair unlike any other."""
    return PairKey(
        id=str(number),
        question=f"Question {number} about thing {number * 7919}?",
        answer=answer or EntityValue(f"Thing {number}"),
        kind=kind,
        asks=str(number),
        relations=relations,
        facts=(f"thing {number}\tname\t",),
    )


def kept(pairs: list[PairKey], quotas: QuotaSettings | None = None) -> tuple[list[PairKey], Counter[Surplus]]:
    """The pairs that are written, and the number of the others by reason."""
    surplus = surplus_of(pairs, (), QuestionIndex(0.85), quotas or QuotaSettings())
    return [pair for place, pair in enumerate(pairs) if place not in surplus], Counter(surplus.values())


@pytest.mark.promise("synthesis:files:quotas")
def test_no_kind_and_no_relation_and_no_answer_has_more_than_its_share() -> None:
    pairs = [
        key(
            number,
            kind="bridge" if number % 2 else KINDS[number % 5],
            relations=("population",) if number % 3 == 0 else (f"relation {number % 40}",),
            answer=EntityValue("Alba") if number % 10 == 0 else None,
        )
        for number in range(600)
    ]
    left, reasons = kept(pairs)
    total = len(left)
    assert total > 200
    assert max(Counter(pair.kind for pair in left).values()) <= total / 4
    assert max(Counter(relation for pair in left for relation in pair.relations).values()) <= total / 10
    assert sum(pair.answer == EntityValue("Alba") for pair in left) <= max(2, total / 100)
    assert set(reasons) == {Surplus.KIND, Surplus.RELATION, Surplus.ANSWER}
    # The earlier ones stay, and nothing else decides.
    assert kept(pairs)[0] == left
    assert left[0] == pairs[0]


@pytest.mark.promise("synthesis:files:quotas")
@pytest.mark.parametrize(
    ("pairs", "quotas", "reasons"),
    [
        # A small file may have a few of everything.
        ([key(n, kind="bridge", relations=(f"r{n}",)) for n in range(MIN_OF_KIND)], None, {}),
        ([key(n, kind=KINDS[n % 5], relations=("r",)) for n in range(MIN_OF_RELATION)], None, {}),
        # Of three kinds, one always has more than a quarter; of five relations, one has more than a tenth.
        ([key(n, kind=KINDS[n % 3], relations=(f"r{n}",)) for n in range(60)], None, {}),
        ([key(n, kind=KINDS[n % 5], relations=(f"r{n % 5}",)) for n in range(60)], None, {}),
        # Yes and no are answers to many questions.
        ([key(n, kind=KINDS[n % 5], relations=(f"r{n}",), answer=BoolValue(True)) for n in range(60)], None, {}),
        (
            [key(n, kind=KINDS[n % 5], relations=(f"r{n}",), answer=EntityValue("Alba")) for n in range(60)],
            None,
            {Surplus.ANSWER: 58},
        ),
        (
            [key(n, kind=KINDS[n % 5], relations=(f"r{n}",), answer=EntityValue("Alba")) for n in range(60)],
            QuotaSettings(answer=1),
            {},
        ),
        ([], None, {}),
    ],
)  # fmt: skip
def test_quotas_hold_where_they_can_be_met(
    pairs: list[PairKey], quotas: QuotaSettings | None, reasons: dict[Surplus, int]
) -> None:
    assert kept(pairs, quotas)[1] == reasons


@pytest.mark.promise("synthesis:files:near-duplicates")
def test_questions_about_the_same_facts_are_duplicates_and_typed_answers_are_compared() -> None:
    asked = QuestionIndex(0.85)
    twelve = NumberValue(Decimal(12), "km")
    asked.add("How far is Alba from Brenn by the coast road?", twelve, "first", ("alba\tdistance\t",), "a")
    far = "How far is Alba from Brenn by the coast path?"
    assert asked.before(far, NumberValue(Decimal(12000), "metres")) == "first"
    assert asked.before(far, NumberValue(Decimal(13), "km")) is None
    assert asked.before("Which is nearer?", EntityValue("Alba"), ("alba\tdistance\t",)) == "first"
    assert asked.before("Which is nearer?", EntityValue("Alba"), ("hull\tdistance\t",)) is None
    assert asked.before("Which is nearer?", EntityValue("Alba"), (), "a") == "first"


A, B = EntityValue("Ada Holm"), EntityValue("Jon Berg")
OTHERS = [Claim(f"Light {number}", "keeper", EntityValue(f"Keeper {number}")) for number in range(2)]


@pytest.mark.promise("synthesis:files:contradictions")
@pytest.mark.parametrize(
    ("one", "two", "count"),
    [
        ([Claim("Alba", "height", DateValue(1204))], [Claim("the alba", "height", DateValue(1205))], 1),
        ([Claim("Alba", "built", DateValue(1204))], [Claim("Alba", "built", DateValue(1204, 5, 1))], 0),
        ([Claim("Alba", "height", DateValue(1204))], [Claim("Alba", "width", DateValue(1205))], 0),
        ([Claim("Alba", "n", DateValue(1), DateValue(1900))], [Claim("Alba", "n", DateValue(2), DateValue(1950))], 0),
        # Two values of one tree are compared there.
        ([Claim("Alba", "n", DateValue(1)), Claim("Alba", "n", DateValue(2))], [], 0),
        ([Claim("Alba", "keeper", A), *OTHERS], [Claim("Alba", "keeper", B)], 1),
        ([Claim("Alba", "keeper", A)], [Claim("Alba", "keeper", B)], 0),
        ([Claim("Alba", "keeper", A), *OTHERS], [Claim("Alba", "keeper", B, several=True)], 0),
        ([Claim("Alba", "keeper", A), *OTHERS], [Claim("Alba", "keeper", EntityValue("Holm"))], 0),
        # Things of different kinds have the same name.
        (
            [Claim("Alba", "n", DateValue(1)), Claim("Alba", "kind", TextValue("town"))],
            [Claim("Alba", "n", DateValue(2)), Claim("Alba", "kind", TextValue("ship"))],
            0,
        ),
    ],
)  # fmt: skip
def test_values_of_different_trees_that_exclude_each_other_are_found(
    one: list[Claim], two: list[Claim], count: int
) -> None:
    corpus = CorpusClaims()
    corpus.add("seed_001", one)
    corpus.add("seed_002", two)
    assert len(corpus.contradicted()) == count
    corpus.close()


@pytest.mark.promise("synthesis:files:contradictions")
async def test_pairs_that_another_tree_contradicts_are_written_with_the_reason(tmp_path: Path) -> None:
    result = await harvested(chain())
    assert {claim.subject for claim in result.claims} >= {"Ada Holm"}
    other = replace(
        result,
        pairs=(),
        claims=tuple(
            replace(claim, value=EntityValue("Port Null")) if claim.relation == "birthplace" else claim
            for claim in result.claims
        ),
    )
    report = await written(tmp_path, (SEED, result), (OTHER, other))
    doubtful = [pair for pair in result.pairs if any(fact.relation == "birthplace" for fact in pair.facts)]
    assert report.surplus == {"contradiction": len(doubtful)}
    assert report.pairs == len(result.pairs) - len(doubtful) > 0
    surplus = [json.loads(line) for line in (tmp_path / SURPLUS).read_text().splitlines()]
    assert [(one["question"], one["reason"]) for one in surplus] == [
        (pair.question, "contradiction") for pair in doubtful
    ]
    assert json.loads((tmp_path / REPORT).read_text())["surplus"] == report.surplus


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
            asks=str(number),
            facts=tuple(replace(fact, subject=f"{fact.subject} {number}") for fact in first.facts),
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


def test_claims_have_the_facts_of_a_tree_without_their_places() -> None:
    assert claims_of(()) == ()
