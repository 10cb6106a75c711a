"""Diagnoses of the machine that runs the tests."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web
from msgspec import structs

from agentflow.doctor import DiagnosisState, examine
from agentflow.doctor._checks import examine_host, examine_provider
from agentflow.errors import ConfigurationError
from agentflow.models import PROVIDERS
from agentflow.serving._server import kept_port
from mcp_servers import BACKENDS
from runtimes.desktop._desktop import PANEL_PROGRAMS


@pytest.mark.promise("doctor:tries")
async def test_a_runtime_and_backends_are_tried() -> None:
    diagnoses = await examine(["process", "files", "rag"], {})
    assert [(one.area, one.name) for one in diagnoses] == [
        ("runtimes", "process"),
        ("backends", "files"),
        ("backends", "rag"),
    ]
    assert all(one.state is not DiagnosisState.MISSING for one in diagnoses)


@pytest.mark.promise("doctor:panel")
async def test_a_desktop_with_a_panel_is_tried_and_a_missing_program_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [found] = await examine(["panel"], {})
    assert (found.area, found.state) == ("backends", DiagnosisState.WORKS)
    assert "a browser" in found.text
    monkeypatch.setitem(PANEL_PROGRAMS, "/usr/bin/no-editor", "l3afpad")
    [found] = await examine(["panel"], {})
    assert found.state is DiagnosisState.MISSING
    assert "apt-get install l3afpad" in found.text


@pytest.mark.promise("doctor:mends")
async def test_a_missing_part_gives_one_line_about_what_to_set() -> None:
    [model] = await examine(["openai"], {})
    [backend] = await examine(["document"], {})
    assert (model.state, backend.state) == (DiagnosisState.MISSING, DiagnosisState.MISSING)
    assert "OPENAI_API_KEY" in model.text
    assert "folder" in backend.text
    assert "\n" not in model.text + backend.text


@pytest.mark.promise("doctor:mends")
async def test_a_backend_without_keys_names_the_tools_that_need_them() -> None:
    [found] = await examine(["web"], {})
    assert found.state is DiagnosisState.PARTLY
    assert "web_search" in found.text


@pytest.mark.promise("doctor:all")
async def test_any_error_of_a_check_becomes_its_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "files", "tests.agentflow.doctor.test_examine:broken")
    [found] = await examine(["files"], {})
    assert found.state is DiagnosisState.MISSING
    assert "the shelf is gone" in found.text


def broken() -> None:
    raise RuntimeError("the shelf is gone")


@pytest.mark.promise("doctor:unknown")
async def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match=r"'brwser'.*browser"):
        await examine(["brwser"], {})


@asynccontextmanager
async def endpoint(seen: list[str]) -> AsyncGenerator[str]:
    """Endpoint that accepts one key."""

    async def models(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        return web.json_response({"data": []}, status=200 if seen[-1] == "Bearer right" else 401)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()


@pytest.mark.promise("doctor:models")
async def test_a_provider_is_requested_with_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    async with endpoint(seen) as url:
        xai = structs.replace(PROVIDERS["xai"], url=url)
        monkeypatch.setitem(PROVIDERS, "xai", xai)  # pyright: ignore[reportArgumentType]
        right = await examine_provider("xai", {"XAI_API_KEY": "right", "OPENAI_API_KEY": "other"})
        wrong = await examine_provider("xai", {"XAI_API_KEY": "wrong"})
    assert right.state is DiagnosisState.WORKS
    assert wrong.state is DiagnosisState.MISSING
    assert "XAI_API_KEY" in wrong.text
    assert "wrong" not in wrong.text
    assert seen == ["Bearer right", "Bearer wrong"]


@pytest.mark.promise("doctor:models")
async def test_each_provider_is_requested_at_its_own_address() -> None:
    seen: list[str] = []
    async with endpoint(seen) as url:
        nowhere = await examine_provider("azure", {"AZURE_OPENAI_API_KEY": "k"})
        there = await examine_provider("vllm", {"VLLM_BASE_URL": url, "VLLM_API_KEY": "right"})
    assert "AZURE_OPENAI_ENDPOINT" in nowhere.text
    assert (there.state, seen) == (DiagnosisState.WORKS, ["Bearer right"])


@pytest.mark.promise("doctor:networks")
async def test_a_connection_to_a_host_is_tried() -> None:
    with kept_port("127.0.0.1") as port:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port):
            assert (await examine_host("127.0.0.1", port)).state is DiagnosisState.WORKS
        assert (await examine_host("127.0.0.1", port)).state is DiagnosisState.MISSING
