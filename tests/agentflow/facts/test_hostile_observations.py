import sys
from collections.abc import Callable
from types import FrameType

import pytest

from agentflow.facts import (
    ChunkExtraction,
    DateValue,
    EntityValue,
    Extraction,
    Fact,
    FactSpan,
    FactStore,
    build_store,
    chunks_of,
    passages_for,
)
from agentflow.facts._aliases import link_names
from agentflow.facts._locating import new_fact
from tests.agentflow.facts._observations import observed, reported

LENGTH = 30_000
PATTERNS = [
    "x", " ", "\n", "|", "[", '"', '[{"a\n', '[{"a":1},', "a | b\n", "(AB) ", "one hundred and ", "1,", "12 May ",
    "the two a ", "#\n",
]  # fmt: skip
REPORTS = Extraction(
    (
        reported("Ada Holm | keeper | e Bram Oster | the keeper was Bram Oster"),
        reported("Ab Ab | number of rooms | n 1 | one hundred and one hundred"),
    )
)


@pytest.mark.promise("facts:building:linear")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_hostile_observation_is_read_in_linear_time(pattern: str) -> None:
    text = (pattern * (LENGTH // len(pattern) + 1))[:LENGTH]
    node = observed(text)
    # A quadratic step would run into the time limit of the test.
    reports = [ChunkExtraction(node.id, chunk, REPORTS) for chunk in chunks_of(text)]
    build_store([node], reports)
    span = FactSpan(node.id, LENGTH // 2, LENGTH // 2 + 10)
    fact = new_fact("Ab Ab Ab", "captain", DateValue(1841, 5, 12), (span,))
    passages = passages_for(FactStore([fact]), [node], [fact], hidden=[fact], budget=3_000)
    assert all(len(passage.text) < 10_000 for passage in passages)


def calls(run: Callable[[], object]) -> int:
    """Return the number of calls of Python and C functions."""
    count = 0

    def counted(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def people(count: int) -> list[Fact]:
    """Return facts about people of which many share a first name, a last name, or both with initials."""
    names = [f"{first} Holm{number}" for number in range(count // 4) for first in ("Ada", "A.", "Bram", "")]
    span = FactSpan("node_1", 0, 10)
    return [
        new_fact(name.strip() if number % 3 else f"{name} Holm", "birthplace", EntityValue("Holm"), (span,))
        for number, name in enumerate(names)
    ]


@pytest.mark.promise("facts:building:linear")
def test_the_work_for_names_grows_with_their_number() -> None:
    few, many = people(400), people(1_600)
    link_names(many, [], {})  # Fill the caches.
    assert calls(lambda: link_names(many, [], {})) < 5 * calls(lambda: link_names(few, [], {}))
    table = "Name | Height\n" + "\n".join(f"Tower{number} Holm | {number}" for number in range(1_200))
    build_store([observed(table)])
    short = table[: table.index("\nTower300 ")]
    assert calls(lambda: build_store([observed(table)])) < 5 * calls(lambda: build_store([observed(short)]))
