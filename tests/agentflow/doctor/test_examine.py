"""What an examination finds, on the machine that runs the tests."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web
from msgspec import structs

from agentflow.doctor import DiagnosisState, examine
from agentflow.doctor._models import examine_provider
from agentflow.doctor._networks import examine_host
from agentflow.errors import ConfigurationError
from agentflow.models import PROVIDERS
from agentflow.serving._ports import kept_port
from mcp_servers import BACKENDS


@pytest.mark.promise("doctor:tries")
async def test_a_sandbox_and_backends_are_tried() -> None:
    findings = await examine(["process", "files", "rag"], {})
    assert [(one.area, one.name) for one in findings] == [
        ("runtimes", "process"),
        ("backends", "files"),
        ("backends", "rag"),
    ]
    assert all(one.state is not DiagnosisState.MISSING for one in findings)


@pytest.mark.promise("doctor:mends")
async def test_what_is_missing_says_in_one_line_what_to_set() -> None:
    [model] = await examine(["openai"], {})
    [backend] = await examine(["document"], {})
    assert (model.state, backend.state) == (DiagnosisState.MISSING, DiagnosisState.MISSING)
    assert "OPENAI_API_KEY" in model.said
    assert "folder" in backend.said
    assert "\n" not in model.said + backend.said


@pytest.mark.promise("doctor:mends")
async def test_a_backend_without_keys_names_the_tools_that_need_them() -> None:
    [found] = await examine(["web"], {})
    assert found.state is DiagnosisState.PARTLY
    assert "web_search" in found.said


@pytest.mark.promise("doctor:all")
async def test_whatever_a_part_raises_is_what_is_wrong_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "files", "tests.agentflow.doctor.test_examine:broken")
    [found] = await examine(["files"], {})
    assert found.state is DiagnosisState.MISSING
    assert "the shelf is gone" in found.said


def broken() -> None:
    raise RuntimeError("the shelf is gone")


@pytest.mark.promise("doctor:unknown")
async def test_a_name_that_means_nothing_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(ConfigurationError, match=r"'brwser'.*browser"):
        await examine(["brwser"], {})


@asynccontextmanager
async def endpoint(seen: list[str]) -> AsyncGenerator[str]:
    """An endpoint that knows one key."""

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
async def test_a_provider_is_asked_with_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    async with endpoint(seen) as url:
        xai = structs.replace(PROVIDERS["xai"], url=url)
        monkeypatch.setitem(PROVIDERS, "xai", xai)  # pyright: ignore[reportArgumentType]
        right = await examine_provider("xai", {"XAI_API_KEY": "right", "OPENAI_API_KEY": "other"})
        wrong = await examine_provider("xai", {"XAI_API_KEY": "wrong"})
    assert right.state is DiagnosisState.WORKS
    assert wrong.state is DiagnosisState.MISSING
    assert "XAI_API_KEY" in wrong.said
    assert "wrong" not in wrong.said
    assert seen == ["Bearer right", "Bearer wrong"]


@pytest.mark.promise("doctor:models")
async def test_each_provider_is_asked_where_it_is_and_as_it_wants() -> None:
    seen: list[str] = []
    async with endpoint(seen) as url:
        nowhere = await examine_provider("azure", {"AZURE_OPENAI_API_KEY": "k"})
        there = await examine_provider("vllm", {"VLLM_BASE_URL": url, "VLLM_API_KEY": "right"})
    assert "AZURE_OPENAI_ENDPOINT" in nowhere.said
    assert (there.state, seen) == (DiagnosisState.WORKS, ["Bearer right"])


@pytest.mark.promise("doctor:networks")
async def test_a_host_is_connected_to() -> None:
    with kept_port("127.0.0.1") as port:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port):
            assert (await examine_host("127.0.0.1", port)).state is DiagnosisState.WORKS
        assert (await examine_host("127.0.0.1", port)).state is DiagnosisState.MISSING
