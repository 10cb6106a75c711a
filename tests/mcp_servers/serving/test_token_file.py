"""Token files of servers without a configured token."""

from pathlib import Path

import pytest

from agentflow.errors import ConfigurationError
from mcp_servers.serving import token_file, token_path


def test_the_token_file_is_deleted_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "token-1"
    with token_file(path, "secret"):
        assert path.read_text(encoding="utf-8") == "secret\n"
    assert list(path.parent.iterdir()) == []


def test_the_token_file_of_a_later_server_stays(tmp_path: Path) -> None:
    path = tmp_path / "token-1"
    with token_file(path, "secret"):
        path.write_text("another\n", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "another\n"


def test_a_token_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with (
        pytest.raises(ConfigurationError, match="cannot write the token"),
        token_file(tmp_path / "file" / "t", "secret"),
    ):
        raise AssertionError("there is no file")


def test_each_port_has_its_own_token_file() -> None:
    assert token_path(1, {"XDG_STATE_HOME": "/s"}) == Path("/s/agentflow/token-1")
    assert token_path(2, {"HOME": "/h"}) == Path("/h/.local/state/agentflow/token-2")
