"""Real calls of services: here of stand-ins that listen on this machine, over HTTP."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from msgspec import structs

from agentflow.cli import main
from agentflow.doctor import Diagnosis, DiagnosisState, RecordedAnswer, _live, examine_live
from agentflow.errors import ConfigurationError
from agentflow.models import PROVIDERS, cheapest_model
from tests.agentflow.models._providers import KEY as MODEL_KEY
from tests.agentflow.models._providers import Anthropic, Gemini, OpenAi, Turn, provider
from tests.mcp_servers.web._services import KEY as SEARCH_KEY
from tests.mcp_servers.web._services import Services, some_services

pytestmark = pytest.mark.promise("doctor:live")

SEARCHES = {
    "SERPER_API_KEY": SEARCH_KEY,
    "GOOGLE_API_KEY": SEARCH_KEY,
    "GOOGLE_CX": "engine-1",
    "GEMINI_API_KEY": SEARCH_KEY,
    "JINA_API_KEY": SEARCH_KEY,
}
RECORDED = Path(__file__).parent / "recorded"
"""Records of `agentflow doctor --live`."""
NAMES = ["serper", "google", "gemini-search", "searxng", "jina"]


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a page whose name needs no resolution. Only the stand-in of the reader gets it."""
    monkeypatch.setattr(_live, "PAGE", "https://93.184.215.14/")


async def searches(
    services: Services, environment: Mapping[str, str] = SEARCHES, names: list[str] = NAMES
) -> tuple[dict[str, Diagnosis], list[RecordedAnswer]]:
    """Call the search services and the page reader."""
    own = {**environment, "SEARXNG_URL": f"{services.url}/searxng"}
    found, answers = await examine_live(names, own, web=services.settings())
    return {one.name: one for one in found}, answers


async def test_each_search_service_is_called_once_and_its_answer_recorded_without_the_key() -> None:
    async with some_services() as services:
        found, answers = await searches(services)
    assert {name: one.text for name, one in found.items()} == dict.fromkeys(NAMES, "as expected")
    assert [answer.service for answer in answers] == NAMES
    assert [answer.status for answer in answers] == [200] * len(NAMES)
    assert len(services.requests) == len(NAMES)
    assert json.loads(answers[0].body)["organic"]
    assert SEARCH_KEY not in msgspec.json.encode(answers).decode()


async def test_a_wrong_key_that_the_service_repeats_is_in_neither_the_line_nor_the_record() -> None:
    wrong = "a+wrong/key&"
    async with some_services() as services:
        found, answers = await searches(
            services, dict.fromkeys(SEARCHES, wrong), ["serper", "google", "jina"]
        )
    shown = msgspec.json.encode([list(found.values()), answers]).decode()
    assert all(one.state is DiagnosisState.MISSING for one in found.values())
    assert "403; check its key" in found["serper"].text
    assert "400; check its key" in found["google"].text
    assert [answer.status for answer in answers] == [403, 400, 401]
    assert "*** is no key" in answers[0].body
    assert "wrong" not in shown


async def test_a_failing_changed_or_unreachable_service_is_one_line() -> None:
    async with some_services() as services:
        services.fails(500, "no\nroom")
        services.fails(200, '{"hits": [{"link": "https://a.example/"}]}')
        services.fails(200, '{"organic": "none"}')
        found = [(await searches(services, names=["serper"]))[0]["serper"] for _ in range(3)]
        settings = {**services.settings(), "serper_url": "http://127.0.0.1:9"}
    unreachable, answers = await examine_live(["serper"], SEARCHES, web=settings)
    lines = [one.text for one in (*found, *unreachable)]
    for line, part in zip(
        lines, ("status 500", "another form", "invalid response", "can't be reached"), strict=True
    ):
        assert part in line.replace("cannot", "can't")
        assert "\n" not in line
    assert answers == []


@pytest.mark.parametrize(
    ("name", "speech"), [("openai", OpenAi), ("anthropic", Anthropic), ("gemini", Gemini)]
)
async def test_a_model_of_each_api_is_called_once(
    name: str, speech: type[OpenAi | Anthropic | Gemini], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, variable = cheapest_model(name), PROVIDERS[name].key_variable
    monkeypatch.setattr(Gemini, "path", f"/models/{model}:generateContent")
    async with provider(speech(), Turn("ready")) as stand_in:
        moved = structs.replace(PROVIDERS[name], url=stand_in.url)
        monkeypatch.setitem(PROVIDERS, name, moved)  # pyright: ignore[reportArgumentType]
        right, answers = await examine_live([name], {variable: MODEL_KEY})
        wrong, refused = await examine_live([name], {variable: "another-key"})
    assert [one.text for one in right] == ["as expected"]
    assert [answer.status for answer in answers] == [200]
    assert len(stand_in.bodies) == 2
    assert wrong[0].state is DiagnosisState.MISSING
    shown = msgspec.json.encode([wrong, refused]).decode()
    assert "another-key" not in shown


@asynccontextmanager
async def model_server(answer: object, models: object) -> AsyncGenerator[str]:
    """Serve a list of models and one answer."""

    async def reply(request: web.Request) -> web.Response:
        return web.json_response(models if request.method == "GET" else answer)

    app = web.Application()
    app.router.add_get("/v1/models", reply)
    app.router.add_post("/v1/chat/completions", reply)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("answer", "models", "text"),
    [
        (OpenAi().says(Turn("ready")), {"data": [{"id": "small"}]}, "as expected"),
        (OpenAi().says(Turn("")), {"data": [{"id": "small"}]}, "small returned no text"),
        ({**OpenAi().says(Turn("ready")), "usage": "much"}, {"data": [{"id": "small"}]}, "another form: "),
        ({"choices": "none"}, {"data": [{"id": "small"}]}, "choices"),
        ({}, {"list": []}, "its list of models has another form"),
        ({}, ["small"], "lists no models"),
    ],
    ids=["right", "no text", "no usage", "no choices", "no list", "no object"],
)
async def test_another_server_is_asked_for_its_first_model(answer: object, models: object, text: str) -> None:
    async with model_server(answer, models) as url:
        found, _ = await examine_live(["openai"], {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": url})
    assert text in found[0].text
    assert "\n" not in found[0].text


async def test_a_service_without_a_key_or_with_an_unknown_name_is_refused() -> None:
    for names, line in (
        ([], "no service has a key; set one of SERPER_API_KEY"),
        (["xai"], "set XAI_API_KEY"),
    ):
        with pytest.raises(ConfigurationError, match=line):
            await examine_live(names, {})
    with pytest.raises(ConfigurationError, match=r"'serpr' is unknown\. Did you mean 'serper'"):
        await examine_live(["serpr"], SEARCHES)


async def test_a_record_serves_the_clients_as_the_services_did() -> None:
    decode = msgspec.json.Decoder(RecordedAnswer).decode_lines
    # No real service was called yet, so the folder is not there.
    records = [decode(path.read_bytes()) for path in sorted(RECORDED.glob("*.jsonl"))]
    async with some_services() as services:
        records.append((await searches(services))[1])
        for record in records:
            answers = [answer for answer in record if answer.service in NAMES and answer.status == 200]
            for answer in answers:
                services.fails(answer.status, answer.body)
            found, again = await searches(services, names=[answer.service for answer in answers])
            assert all(one.state is DiagnosisState.WORKS for one in found.values())
            assert [answer.body for answer in again] == [answer.body for answer in answers]


def test_the_command_appends_the_answers_to_a_private_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [*SEARCHES, *(one.key_variable for one in PROVIDERS.values()), "GROK_API_KEY"]:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("SEARXNG_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--live"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(some_services()) as services:
        monkeypatch.setenv("SEARXNG_URL", f"{services.url}/searxng")
        assert [main(["doctor", "--live"]), main(["doctor", "--live", "searxng"])] == [0, 0]
        services.fails(403, "format is not allowed")
        assert main(["doctor", "--live", "--json", "--record", "other.jsonl"]) == 1
        assert main(["doctor", "--live", "--record", "no/folder.jsonl"]) == 2
    shown = capsys.readouterr()
    assert "searxng" in shown.out
    assert "--record no/folder.jsonl: No such file or directory" in shown.err
    record = tmp_path / "live-answers.jsonl"
    assert [json.loads(line)["service"] for line in record.read_text().splitlines()] == ["searxng"] * 2
    assert record.stat().st_mode & 0o777 == 0o600
