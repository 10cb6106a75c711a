"""Journals on both databases, and their only run."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentflow.inspection import RunReader, open_runs
from tests._postgres import PostgresServer
from tests.agentflow.inspection._journals import OnlyRun


@pytest.fixture
def only_run() -> Iterator[OnlyRun]:
    """Return a function that opens the only run of a place."""
    with ExitStack() as stack:

        def open_one(place: str | Path) -> RunReader:
            collection = stack.enter_context(open_runs(place))
            (summary,) = collection.runs()
            return collection.run(summary.id)

        yield open_one


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty journal."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.db"
    server: object = request.getfixturevalue("postgres")
    assert isinstance(server, PostgresServer)
    return server.new_database()
