"""What every part of the suite may use."""

import pytest

from tests import _plain_user
from tests._plain_user import PlainUser


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def plain_user(tmp_path_factory: pytest.TempPathFactory) -> PlainUser:
    """An ordinary user, whoever runs the suite: `plain_user.run_python("print(1)").stdout`."""
    try:
        return _plain_user.plain_user(tmp_path_factory.mktemp)
    except _plain_user.Unavailable as reason:
        pytest.skip(str(reason))
