"""A run collects garbage seldom, and leaves the collector as it was."""

import gc

import pytest

from agentflow.runs import seldom_collected


@pytest.mark.promise("supervisor:collector")
def test_a_run_leaves_the_collector_as_it_found_it() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), seldom_collected():
        assert gc.get_threshold() > before
        assert gc.get_freeze_count() > 0
        raise KeyError
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_what_a_run_leaves_is_not_looked_at_because_it_has_ended() -> None:
    ages: list[int] = []
    with seldom_collected():
        kept = [[number] for number in range(50_000)]
        gc.callbacks.append(lambda phase, info: ages.append(info["generation"]))
    try:
        assert gc.get_count()[0] < len(kept)
        assert ages == []
    finally:
        gc.callbacks.pop()
