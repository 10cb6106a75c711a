"""Packing: every token once, every row complete, no part over its budget."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import ConfigurationError
from agentflow.learner.packing import Packed, Row, cuts, pack, sort_rows
from tests.agentflow.learner._packed_rows import forking_rows, plain_row, prefixes


def rows_of(packed: Packed, rows: Sequence[Row]) -> list[Row]:
    """The rows it holds, in its order."""
    numbers: list[int] = packed.rows.tolist()
    return [rows[number] for number in numbers]


def path(packed: Packed, token: int) -> list[int]:
    """The tokens from the root to this one, as attention sees them."""
    seen = np.flatnonzero((np.arange(len(packed)) <= token) & (token < packed.ends))
    assert packed.positions[seen].tolist() == list(range(len(seen)))
    return packed.ids[seen].tolist()


def check_whole(packed: Packed, rows: Sequence[Row]) -> None:
    """Each trained token of each row is a label after exactly the tokens before it, at the row's temperature."""
    for line, row in enumerate(rows_of(packed, rows)):
        trained = np.flatnonzero(row.trained).tolist()
        assert packed.mask[line].sum() == len(trained)
        for place, token in enumerate(trained):
            assert packed.mask[line, place]
            label = packed.gather[line, place]
            asked = packed.lines[label]
            assert packed.labels[label] == row.ids[token]
            assert path(packed, int(packed.predicting[asked])) == row.ids[:token].tolist()
            assert packed.temperatures[asked] == np.float32(row.temperature)


@given(forking_rows())
@settings(max_examples=150, deadline=None)
def test_every_token_is_stored_once_and_every_row_finds_its_labels(rows: list[Row]) -> None:
    [packed] = pack(rows)
    check_whole(packed, rows)
    assert len(packed) == len(prefixes(rows))
    assert {tuple(path(packed, token)) for token in range(len(packed))} == prefixes(rows)
    assert sorted(packed.rows.tolist()) == list(range(len(rows)))


@given(forking_rows())
@settings(max_examples=100, deadline=None)
def test_labels_and_lines_of_logits_are_distinct(rows: list[Row]) -> None:
    [packed] = pack(rows)
    lines = list(zip(packed.predicting.tolist(), packed.temperatures.tolist(), strict=True))
    labels = list(zip(packed.lines.tolist(), packed.labels.tolist(), strict=True))
    assert len(lines) == len(set(lines))
    assert len(labels) == len(set(labels))
    assert packed.lines.tolist() == sorted(packed.lines.tolist())
    asked = {
        (tuple(row.ids[:token].tolist()), row.temperature, int(row.ids[token]))
        for row in rows
        for token in np.flatnonzero(row.trained)
    }
    assert len(labels) == len(asked)
    assert len(lines) == len({(before, temperature) for before, temperature, _ in asked})


@given(forking_rows(), st.integers(23, 60))
@settings(max_examples=100, deadline=None)
def test_parts_respect_the_budget_and_every_row_is_in_one(rows: list[Row], budget: int) -> None:
    budget = max(budget, max(len(row.ids) for row in rows))
    parts = pack(rows, budget)
    for packed in parts:
        assert len(packed) <= budget
        check_whole(packed, rows)
        assert len(packed) == len(prefixes(rows_of(packed, rows)))
    assert sorted(number for packed in parts for number in packed.rows.tolist()) == list(range(len(rows)))


@given(forking_rows(), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_cuts_repeat_as_few_tokens_as_any_cuts_of_the_walk_and_make_as_few_parts(
    rows: list[Row], more: int
) -> None:
    budget = max(len(row.ids) for row in rows) + more
    order, common = sort_rows(rows)
    in_order = [rows[number] for number in order]

    def cost(places: Sequence[int]) -> tuple[int, int] | None:
        sizes = [len(prefixes(in_order[begin:end])) for begin, end in pairwise(places)]
        return None if max(sizes) > budget else (sum(sizes), len(sizes))

    every = [
        cost([0, *inner, len(rows)])
        for count in range(len(rows))
        for inner in combinations(range(1, len(rows)), count)
    ]
    ours = cost(cuts([len(row.ids) for row in in_order], common, budget))
    assert ours is not None
    assert ours == min(one for one in every if one is not None)


def test_small_trees_share_a_part_and_a_large_one_is_cut_where_it_forks_highest() -> None:
    small = [plain_row([token, 1, 2], [False, True, True]) for token in (10, 11, 12)]
    assert [len(packed) for packed in pack(small, 9)] == [9]
    forked = [
        plain_row([1, *middle, end], [False, *[True] * (len(middle) + 1)])
        for middle in ([2] * 10, [3] * 10)
        for end in (4, 5, 6)
    ]
    assert [len(packed) for packed in pack(forked)] == [1 + 2 * 13]
    assert [len(packed) for packed in pack(forked, 20)] == [14, 14]


def test_a_chain_of_a_thousand_calls_is_its_longest_row() -> None:
    ids = np.arange(20_000) % 977
    rows = [
        plain_row(ids[: 20 * turn].tolist(), (np.arange(20 * turn) >= 20 * turn - 10).tolist())
        for turn in range(1, 1001)
    ]
    [packed] = pack(rows)
    assert packed.ids.tolist() == ids.tolist()
    assert packed.labels.size == 10_000


def test_rows_without_a_trained_token_and_no_rows_are_packed() -> None:
    assert pack([]) == []
    [packed] = pack([plain_row([1, 2], [False, False])])
    assert len(packed) == 2
    assert packed.gather.shape == (1, 0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (plain_row([], []), "row 1 is invalid"),
        (plain_row([1, 2], [True, False]), "row 1 is invalid"),
        (plain_row([1, 2], [False]), "row 1 is invalid"),
        (plain_row([1, -2], [False, True]), "row 1 is invalid"),
        (plain_row([1, 2], [False, True], temperature=0.0), "temperature 0.0"),
        (plain_row([1, 2], [False, True], temperature=float("nan")), "temperature nan"),
        (plain_row([1, 2, 3, 4, 5], [False] * 5), "row 1 has 5 tokens, more than the budget of 4"),
    ],
)
def test_an_invalid_or_too_long_row_is_refused_in_one_line(row: Row, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        pack([plain_row([1, 2], [False, True]), row], 4)
    assert "\n" not in str(refused.value)


@given(forking_rows(), st.integers(12, 120))
@settings(max_examples=100, deadline=None)
def test_rows_one_by_one_fit_with_their_padding_and_find_their_labels(rows: list[Row], budget: int) -> None:
    budget = max(budget, *(len(row.ids) for row in rows))
    parts = pack(rows, budget, by_row=True)
    assert sorted(number for part in parts for number in part.rows.tolist()) == list(range(len(rows)))
    for part in parts:
        ids, index = part.paths()
        assert len(part) == ids.size <= budget
        # A row that continues another is not read again.
        assert len(ids) == len(part.leaves) <= len({row.ids.tobytes() for row in rows_of(part, rows)})
        assert ids.reshape(-1)[index].tolist() == part.ids.tolist()
        for line, row in enumerate(rows_of(part, rows)):
            labels = part.gather[line][part.mask[line]]
            for label, token in zip(labels.tolist(), np.flatnonzero(row.trained).tolist(), strict=True):
                place = int(index[part.predicting[part.lines[label]]])
                path, depth = divmod(place, ids.shape[1])
                assert depth == token - 1
                assert ids[path, :token].tolist() == row.ids[:token].tolist()
                assert part.labels[label] == row.ids[token]
