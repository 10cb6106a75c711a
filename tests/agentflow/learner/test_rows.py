"""Rows that continue each other are merged without loss."""

from dataclasses import replace

import numpy as np

from agentflow.learner.packing import Row, longest_trained, merge_rows


def _row(ids: str, trained: str, unit: int) -> Row:
    """`trained` marks with x what is trained; token values encode the unit and the position."""
    mask = np.array([mark == "x" for mark in trained])
    places = np.flatnonzero(mask)
    return Row(
        ids=np.array([ord(letter) for letter in ids], np.int32),
        trained=mask,
        behaviour=(-places).astype(np.float32),
        advantages=np.full(len(places), unit, np.float32),
        weights=np.full(len(places), unit + 0.5),
        units=np.full(len(places), unit, np.int32),
    )


def test_calls_of_one_conversation_are_one_row() -> None:
    (merged,) = merge_rows([_row("askone", "...xxx", 0), _row("askonetooltwo", "..........xxx", 1)])
    assert merged.ids.tobytes() == _row("askonetooltwo", "." * 13, 0).ids.tobytes()
    assert np.flatnonzero(merged.trained).tolist() == [3, 4, 5, 10, 11, 12]
    assert merged.behaviour.tolist() == [-3, -4, -5, -10, -11, -12]
    assert merged.units.tolist() == [0, 0, 0, 1, 1, 1]
    assert merged.weights.tolist() == [0.5] * 3 + [1.5] * 3


def test_of_several_branches_one_is_merged_with_the_parent() -> None:
    rows = [_row("aB", ".x", 0), _row("aBcD", "...x", 1), _row("aBcE", "...x", 2), _row("xY", ".x", 3)]
    merged = merge_rows(rows)
    assert sorted(unit for row in merged for unit in row.units.tolist()) == [0, 1, 2, 3]
    assert [len(row.ids) for row in merged] == [4, 4, 2]
    assert [row.units.tolist() for row in merged] == [[0, 1], [2], [3]]


def test_a_token_sampled_twice_stays_in_two_rows() -> None:
    merged = merge_rows([_row("aB", ".x", 0), _row("aB", ".x", 1), _row("aBcD", "...x", 2)])
    assert sorted(row.units.tolist() for row in merged) == [[0], [1, 2]]


def test_rows_with_other_sampling_are_not_merged() -> None:
    short, long = _row("aB", ".x", 0), _row("aBcD", "...x", 1)
    assert len(merge_rows([replace(short, temperature=0.5), long])) == 2
    assert len(merge_rows([replace(short, reference=short.behaviour), long])) == 2
    both = [replace(row, reference=row.behaviour, proximal=row.behaviour) for row in (short, long)]
    (merged,) = merge_rows(both)
    assert merged.reference is not None
    assert merged.proximal is not None
    assert merged.reference.tolist() == merged.proximal.tolist() == [-1, -3]


def test_the_width_of_rows_is_that_of_the_longest() -> None:
    assert longest_trained([]) == 0
    assert longest_trained([_row("aB", ".x", 0), _row("aBCd", ".xx.", 1)]) == 2
