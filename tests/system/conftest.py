"""Undisturbed runs for comparison."""

import pytest

from tests.system._runs import SEARCH, SEARCH_AND_RUN, Calm, calm


@pytest.fixture(scope="session")
def calm_search(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """Run that searches, one call after the other."""
    return calm(tmp_path_factory.mktemp("calm") / "search", SEARCH)


@pytest.fixture(scope="session")
def calm_run(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """Run that searches and has a shell and an interpreter, one call after the other."""
    return calm(tmp_path_factory.mktemp("calm") / "run", SEARCH_AND_RUN)
