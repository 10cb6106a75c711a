"""The whole backend: keys, settings and unusable tools."""

import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from aiohttp import web as http
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow import Sandbox
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.runs import choose_tools
from agentflow.synthesis import load_config
from mcp_servers.web import WebBackend
from tests.mcp_servers.web._services import KEY, Services
from tests.mcp_servers.web._site import PUBLIC, Site
from tests.mcp_servers.web._tools import Web, rows, web_tools


def unusable_tools(environment: dict[str, str] | None = None, **settings: object) -> dict[str, str]:
    """The tools that can't work, and why."""
    return dict(WebBackend(environment=lambda: environment or {}).unusable(settings))


@pytest.mark.promise("web:keys")
def test_tools_without_their_keys_say_what_to_set() -> None:
    nothing = unusable_tools()
    assert set(nothing) == {"search", "image_search", "reverse_image_search"}
    assert "SERPER_API_KEY" in nothing["search"]
    assert "SEARXNG_URL" in nothing["search"]
    assert unusable_tools(serper_api_key="k") == {}
    assert unusable_tools({"SERPER_API_KEY": "k"}) == {}
    assert set(unusable_tools({"SERPER_API_KEY": ""}, serper_api_key="")) == set(nothing)
    assert set(unusable_tools({"SEARXNG_URL": "http://s.example"})) == {"reverse_image_search"}
    assert set(unusable_tools({"GEMINI_API_KEY": "k"})) == {"image_search", "reverse_image_search"}
    assert "GOOGLE_CX" in unusable_tools({"GOOGLE_API_KEY": "k"}, search="google")["search"]
    assert "search" not in unusable_tools({"GOOGLE_API_KEY": "k", "GOOGLE_CX": "e"}, search="google")
    assert "JINA_API_KEY" in unusable_tools(visit_method="jina")["visit"]
    assert "visit" not in unusable_tools(visit_method="crawl4ai")
    assert all("\n" not in line for line in nothing.values())


@pytest.mark.promise("web:keys")
async def test_a_call_without_its_key_is_refused_in_that_line(site: Site, services: Services) -> None:
    async with web_tools(site, **services.settings()) as web:
        kind, message = await web.failure("search", query="x")
        assert (kind, "set SERPER_API_KEY" in message) == (ErrorKind.UNAVAILABLE, True)
    environment = {"SERPER_API_KEY": KEY, "GOOGLE_API_KEY": "other"}
    async with web_tools(site, environment, **services.settings()) as web:
        await web.data("search", query="x")
    assert [path for path, _ in services.requests] == ["/serper/search"]


@pytest.mark.promise("web:keys")
async def test_a_run_that_wants_a_search_without_a_key_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SERPER_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CX", "GEMINI_API_KEY", "SEARXNG_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(
        '{"available_tools": ["web_search", "browse_url"], "resource_types": ["web"]}'
    )
    config = load_config("config.json")
    async with Sandbox(backends=["web"]) as sandbox:
        with pytest.raises(
            ConfigurationError, match=r"web_search can't be used: .*SERPER_API_KEY"
        ) as refused:
            await choose_tools(sandbox, config, {})
        assert "\n" not in str(refused.value)
        dropping = config.model_copy(update={"on_missing_tool": "drop"})
        chosen = await choose_tools(sandbox, dropping, {})
        assert [tool.name for tool in chosen.tools] == ["web_visit"]
        assert list(chosen.dropped) == ["web_search"]


@pytest.mark.promise("web:settings")
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"serper_key": "k"}, "serper_key"),
        ({"search": "altavista"}, "search"),
        ({"visit_method": "carrier pigeon"}, "visit_method"),
        ({"searxng_url": "searx.example"}, "must start with https://"),
        ({"max_workers": 0}, "max_workers"),
        ({"cache": {"bytes": -1}}, "cache.bytes"),
        ({"enable_llm_summary": True}, "set summary_model"),
        ({"enable_llm_summary": True, "summary_model": "m"}, "set OPENAI_API_KEY"),
    ],
)
def test_settings_that_can_not_be_used_are_refused_in_one_line(
    wrong: dict[str, object], expected: str
) -> None:
    backend = WebBackend(environment=dict)
    with pytest.raises(ConfigurationError) as refused:
        backend.check(wrong)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
    assert backend.unusable(wrong) == {}


@pytest.mark.promise("web:settings")
def test_the_settings_of_the_other_system_are_taken_as_they_are() -> None:
    WebBackend(environment=dict).check(
        {
            "serper_api_key": "k",
            "jina_api_key": "k",
            "visit_method": "crawl4ai",
            "content_limit": 50_000,
            "enable_llm_summary": False,
            "summary_model": "gpt-4.1-mini",
            "openai_api_key": "k",
            "openai_api_url": "https://api.openai.com/v1",
            "max_workers": 5,
            "retry_times": 5,
        }
    )


@pytest.mark.promise("web:shared")
async def test_its_tools_need_no_session_and_no_session_sets_its_keys() -> None:
    tools = WebBackend().tools
    assert not any(tool.stateful for tool in tools)
    assert all(tool.hints.read_only and tool.hints.open_world for tool in tools)
    async with Sandbox(backends=["web"]) as sandbox:
        for settings in ({"serper_url": "http://evil.example"}, {"allow_private": True}):
            with pytest.raises(ToolFailure, match="can only be set by the server"):
                await sandbox.create_session("web", settings)


@pytest.mark.promise("web:search:several")
async def test_items_of_one_call_run_concurrently_up_to_the_limit(site: Site) -> None:
    together, most = 0, 0
    both = anyio.Event()

    async def slow(request: http.Request) -> http.Response:
        nonlocal together, most
        together += 1
        most = max(most, together)
        if together == 2:
            both.set()
        with anyio.fail_after(60):
            await both.wait()
        together -= 1
        return http.json_response({"organic": []})

    application = http.Application()
    application.router.add_post("/search", slow)
    runner = http.AppRunner(application)
    await runner.setup()
    await http.TCPSite(runner, "127.0.0.1", 0).start()
    serper_settings = {"serper_api_key": KEY, "serper_url": f"http://127.0.0.1:{runner.addresses[0][1]}"}
    try:
        async with web_tools(site, max_workers=2, **serper_settings) as web:
            result = await web.data("search", query=[f"query {n}" for n in range(6)])
            assert [row["query"] for row in rows(result["results"])] == [f"query {n}" for n in range(6)]
    finally:
        await runner.cleanup()
    assert most == 2


ANYTHING = st.text(st.characters(), max_size=60)


@pytest.mark.promise("web:arguments")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.one_of(ANYTHING, ANYTHING.map("http://{}".format), ANYTHING.map("http://public.example/{}".format)))
async def test_any_address_is_read_or_refused(shared_web: Web, shared_site: Site, url: str) -> None:
    shared_site.names["public.example"] = [PUBLIC]
    result = await shared_web.call("visit", urls=url)
    refused = {ErrorKind.BAD_ARGUMENTS, ErrorKind.DENIED, ErrorKind.NOT_FOUND}
    assert result.ok or (result.error is not None and result.error.kind in refused), (url, result)


@pytest.mark.promise("web:arguments")
async def test_an_unsendable_query_is_refused(site: Site, services: Services) -> None:
    async with web_tools(site, **services.settings(serper_api_key=KEY)) as web:
        refused: list[tuple[str, dict[str, object]]] = [
            ("search", {"query": "a\ud800"}),
            ("search", {"query": []}),
            ("search", {"query": ["a", "b\udfff"]}),
            ("search", {"query": ""}),
            ("search", {"query": "x", "count": 1000}),
            ("visit", {"urls": []}),
            ("visit", {"urls": ["http://public.example/"] * 21}),
            ("visit", {"urls": "http://public.example/", "goal": "\ud800"}),
            ("read", {"url": "http://public.example/", "query": "\ud800"}),
            ("image_search", {"query": "\ud800"}),
            ("reverse_image_search", {"image_url": "\ud800"}),
            ("wikipedia", {"title": "\ud800"}),
        ]
        for tool, arguments in refused:
            site.names["public.example"] = [PUBLIC]
            kind, _ = await web.failure(tool, **arguments)
            assert kind in (ErrorKind.BAD_ARGUMENTS, ErrorKind.NOT_FOUND), (tool, arguments)
    assert services.requests == []


@pytest.mark.promise("web:light")
def test_nothing_heavy_is_loaded_before_it_is_used() -> None:
    code = (
        "import sys, mcp_servers.web\n"
        "print([name for name in ('aiohttp', 'lxml', 'trafilatura', 'pypdfium2', 'libzim', 'protego')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
