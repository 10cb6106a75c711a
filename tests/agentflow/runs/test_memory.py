"""A run collects garbage seldom, and leaves the collector as it was."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from agentflow.runs import _run
from agentflow.runs._run import infrequent_gc


@pytest.fixture(autouse=True)
def fresh_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process of its own, whatever ran in this one before."""
    before = gc.get_threshold()
    monkeypatch.setattr(_run, "_collector", _run._Collector())  # pyright: ignore[reportPrivateUsage]
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.promise("supervisor:collector")
def test_a_run_restores_the_garbage_collector() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), infrequent_gc():
        assert gc.get_threshold() > before
        assert gc.get_freeze_count() > 0
        raise KeyError
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_objects_left_by_a_run_are_not_scanned_at_its_end() -> None:
    ages: list[int] = []
    with infrequent_gc():
        kept = [[number] for number in range(50_000)]
    gc.callbacks.append(lambda phase, info: ages.append(info["generation"]))
    try:
        assert gc.get_count()[0] < len(kept)
        assert ages == []
    finally:
        gc.callbacks.pop()


@pytest.mark.promise("supervisor:collector")
def test_large_garbage_of_earlier_runs_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left:
        def __init__(self) -> None:
            self.itself = self

    def leave() -> weakref.ref[Left]:
        with infrequent_gc():
            left = [Left() for _ in range(15_000)]
            return weakref.ref(left[0])

    monkeypatch.setattr(_run, "YOUNG", 20_000)
    first = leave()
    second = leave()
    assert first() is not None
    leave()
    assert (first(), second()) == (None, None)


@pytest.mark.promise("supervisor:collector")
def test_the_last_of_overlapping_runs_restores_the_garbage_collector() -> None:
    before = gc.get_threshold()
    one, other = infrequent_gc(), infrequent_gc()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert gc.get_threshold() > before
    other.__exit__(None, None, None)
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
