"""Package installation: only where the server allows it, and without running package code in the server."""

import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from mcp_servers import ToolTable
from mcp_servers.code import CodeBackend
from runtimes import Runtime
from tests.mcp_servers.live import Live

WHEEL = "nothing_like_it-1.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path) -> str:
    """A hand-made index with one package."""
    folder = tmp_path / "simple" / "nothing-like-it"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("nothing_like_it/__init__.py", "ANSWER = 42\n")
        wheel.writestr("nothing_like_it-1.0.data/purelib/beside_it.py", "ANSWER = 43\n")
        about = "nothing_like_it-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: nothing-like-it\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{WHEEL}">{WHEEL}</a>')
    return (tmp_path / "simple").as_uri()


@pytest.fixture
async def allowed(runtime: Runtime, index: str) -> AsyncGenerator[Live]:
    async def get_runtime() -> Runtime:
        return runtime

    settings = {"code": {"install": {"index_url": index, "packages": ["Nothing_like.it", "absent"]}}}
    async with ToolTable([CodeBackend()], runtime=get_runtime, settings=settings) as table:
        started = await table.call("session_start")
        yield Live(table, str(started.data["session"]))


@pytest.mark.promise("code:install:off")
async def test_installing_is_denied_unless_the_server_allows_it(live: Live) -> None:
    kind, message = await live.failure("code_install", packages=["rich"])
    assert kind == "denied"
    assert "install: {index_url: …}" in message


@pytest.mark.promise("code:install:reserved")
async def test_a_client_cannot_allow_installing_for_its_session(live: Live) -> None:
    settings = {"code": {"install": {"index_url": "file:///"}}}
    result = await live.table.call("session_start", {"settings": settings})
    assert result.error is not None
    assert result.error.kind == "denied"


@pytest.mark.promise("code:install:wheels")
async def test_a_package_is_installed_from_its_wheel(allowed: Live) -> None:
    data = await allowed.data("code_install", packages=["nothing-like-it>=1"])
    assert data["wheels"] == [WHEEL]
    source = "import nothing_like_it, beside_it\nnothing_like_it.ANSWER, beside_it.ANSWER"
    assert await allowed.python(source) == "(42, 43)"


async def test_a_new_interpreter_still_finds_an_installed_package(allowed: Live) -> None:
    await allowed.data("code_install", packages=["nothing-like-it"])
    await allowed.data("code_run", code="import os; os._exit(0)")
    assert await allowed.python("import nothing_like_it\nnothing_like_it.ANSWER") == "42"


@pytest.mark.parametrize(
    ("package", "kind"),
    [
        ("--index-url=file:///etc", "bad_arguments"),
        ("x @ file:///etc/passwd", "bad_arguments"),
        ("./local.whl", "bad_arguments"),
        ("https://example.org/x.whl", "bad_arguments"),
        ("another", "denied"),
        ("absent", "failed"),
    ],
)
async def test_a_package_that_is_not_allowed_is_refused(allowed: Live, package: str, kind: str) -> None:
    assert (await allowed.failure("code_install", packages=[package]))[0] == kind


async def test_a_failure_does_not_reveal_the_index_url(allowed: Live, index: str) -> None:
    _, message = await allowed.failure("code_install", packages=["absent"])
    assert index not in message
