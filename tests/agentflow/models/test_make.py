"""From settings to a model: names, addresses, keys, and what is said when something is missing."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from agentflow.errors import ConfigurationError
from agentflow.models import Accounts, Call, ModelSettings, Prices, make_model
from agentflow.models._providers import PROVIDERS, find_address
from agentflow.models._settings import Structured
from agentflow.trajectory import Answer, AnswerRequest
from tests.agentflow.models._serving import call, painter, says, script, settings


@pytest.mark.promise("models:names")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_known_provider_before_the_name_gives_its_address_and_its_variable(provider: str) -> None:
    named = ModelSettings(name=f"{provider}/some/model-1")
    address = find_address(named, {PROVIDERS[provider].variable: "its-key"})
    assert (address.url, address.key, address.model) == (PROVIDERS[provider].url, "its-key", "some/model-1")


@pytest.mark.promise("models:names")
def test_any_other_name_goes_unchanged_to_the_address() -> None:
    environment = {"OPENAI_API_KEY": "k"}
    plain = find_address(ModelSettings(name="gpt-4.1-2025-04-14"), environment)
    assert (plain.url, plain.model) == ("https://api.openai.com/v1", "gpt-4.1-2025-04-14")
    unknown = find_address(ModelSettings(name="nobody/model"), environment)
    assert (unknown.url, unknown.model) == ("https://api.openai.com/v1", "nobody/model")
    own = ModelSettings(name="openai/gpt-oss", base_url="https://models.example.org/v1/")
    address = find_address(own, environment)
    assert (address.url, address.model) == ("https://models.example.org/v1", "openai/gpt-oss")


@pytest.mark.promise("models:keys")
def test_a_named_model_without_its_key_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_model(ModelSettings(name="deepseek/deepseek-chat"), Accounts(), environment={})
    assert str(refused.value) == (
        "model deepseek/deepseek-chat: no key for https://api.deepseek.com/v1;"
        " set DEEPSEEK_API_KEY or the setting api_key"
    )
    with pytest.raises(ConfigurationError, match="set OPENAI_API_KEY or the setting api_key"):
        make_model(ModelSettings(name="m", base_url="http://10.0.0.7:8000/v1"), Accounts(), environment={})


@pytest.mark.promise("models:keys")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.0.1"])
def test_an_endpoint_on_this_machine_needs_no_key(host: str) -> None:
    address = find_address(ModelSettings(name="m", base_url=f"http://{host}:1/v1"), {})
    assert address.key == ""


@pytest.mark.promise("models:keys")
async def test_the_key_of_the_settings_wins_over_the_variable_and_goes_along() -> None:
    async with script(says()) as endpoint:
        for own, sent in (("own", "Bearer own"), ("", "Bearer theirs")):
            made = make_model(
                settings(endpoint.url, api_key=own), Accounts(), environment={"OPENAI_API_KEY": "theirs"}
            )
            async with made as model:
                await model.complete(call())
            assert endpoint.headers[-1]["authorization"] == sent
        async with painter(endpoint.url) as model:
            await model.complete(call())
        assert "authorization" not in endpoint.headers[-1]


@pytest.mark.promise("models:keys")
def test_a_key_is_shown_nowhere() -> None:
    said = settings("http://127.0.0.1:1/v1", api_key="very-secret")
    assert "very-secret" not in f"{said!r} {said.model_dump_json()}"


@pytest.mark.promise("models:budgets")
def test_a_budget_of_money_without_prices_is_refused_in_one_line() -> None:
    local = settings("http://127.0.0.1:1/v1")
    with pytest.raises(ConfigurationError, match=r"^model painter: .* needs its prices; set prices"):
        make_model(local, Accounts(max_cost=1.0), environment={})
    priced = settings("http://127.0.0.1:1/v1", prices=Prices(input=1, output=1))
    assert make_model(priced, Accounts(max_cost=1.0), environment={}).name == "painter"


@pytest.mark.promise("models:sampling")
async def test_the_longest_answer_is_called_as_the_provider_calls_it() -> None:
    openai = find_address(ModelSettings(name="gpt-5"), {"OPENAI_API_KEY": "k"})
    other = find_address(ModelSettings(name="xai/grok"), {"XAI_API_KEY": "k"})
    assert (openai.longest, other.longest) == ("max_completion_tokens", "max_tokens")


@pytest.mark.promise("models:offline")
async def test_the_offline_engine_has_the_same_doors_and_needs_neither_key_nor_prices() -> None:
    accounts = Accounts(max_cost=1.0)
    request = AnswerRequest(question="How tall is the lighthouse?")
    asked = Call(role="generator", messages=(), reply=Answer, request=request)
    async with make_model(ModelSettings(name="offline"), accounts, environment={}) as model:
        assert (await model.complete(asked)).value == Answer("")
        assert (model.name, model.sees, model.statistics().calls) == ("offline", False, 1)
    assert accounts.by_role["generator"].calls == 1


BAD: list[dict[str, object]] = [
    {"name": ""},
    {"base_url": "api.example.org"},
    {"temperature": -1},
    {"attempts": 0},
    {"max_in_flight": 0},
    {"call_seconds": 0},
    {"structured": "xml"},
    {"unknown": 1},
]


@pytest.mark.promise("models:settings")
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: next(iter(bad)))
def test_settings_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ModelSettings.model_validate({"name": "m", **bad})


@pytest.mark.promise("models:settings")
@pytest.mark.parametrize("structured", ["auto", "json_schema", "json_object", "text"])
def test_every_way_to_hold_an_answer_to_its_schema_is_a_setting(structured: Structured) -> None:
    assert ModelSettings(name="m", structured=structured).structured == structured


@pytest.mark.promise("models:keys")
def test_a_key_may_stand_in_the_dotenv_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    (tmp_path / ".env").write_text("DEEPSEEK_API_KEY=k\n", encoding="utf-8")
    assert (
        make_model(ModelSettings(name="deepseek/deepseek-chat"), Accounts()).name == "deepseek/deepseek-chat"
    )
