"""The same small database in every engine."""

from collections.abc import AsyncGenerator
from typing import Literal

import pytest

from tests._postgres import PostgresServer
from tests.mcp_servers.sql._asking import Asking, asking, make_duckdb, make_postgres, make_sqlite


@pytest.fixture(scope="module")
async def databases(
    anyio_backend: Literal["asyncio"], tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> dict[str, str]:
    """A path or an address of each engine's."""
    folder = tmp_path_factory.mktemp("databases")
    return {
        "sqlite": str(make_sqlite(folder / "people.sqlite")),
        "duckdb": str(make_duckdb(folder / "people.duckdb")),
        "postgres": await make_postgres(postgres),
    }


@pytest.fixture(scope="module")
async def reading(anyio_backend: Literal["asyncio"], databases: dict[str, str]) -> AsyncGenerator[Asking]:
    """All three, for reading only; one sandbox for the tests of a module, since it keeps no state."""
    async with asking(databases=databases, memory_bytes=128 * 1024 * 1024, timeout=100) as session:
        yield session


@pytest.fixture(params=["sqlite", "duckdb", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn; also the id of its database."""
    return str(request.param)
