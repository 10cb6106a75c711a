"""From settings to a model: names, addresses, keys, and errors for missing ones."""

from pathlib import Path

import msgspec
import pytest
from pydantic import ValidationError

from agentflow.errors import ConfigurationError
from agentflow.models import Accounts, Call, ModelSettings, Prices, Sampling, make_model
from agentflow.models._apis import PreparedCall
from agentflow.models._providers import PROVIDERS, find_address
from agentflow.models._settings import StructuredOutput
from agentflow.questions import Recalled, RecallRequest
from agentflow.settings import RenamedSettingWarning
from tests.agentflow.models._serving import call, painter, says, script, settings


@pytest.mark.promise("models:names")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_prefix_selects_its_address_and_key_variable(provider: str) -> None:
    named = ModelSettings(name=f"{provider}/some/model-1")
    known = PROVIDERS[provider]
    # A provider with a URL per customer has no default URL.
    own = {} if known.url else {known.url_variable: "https://own.example.org/"}
    for variable in (known.key_variable, *known.other_key_variables):
        address = find_address(named, {variable: "its-key", **own})
        assert (address.url, address.key) == (known.url or "https://own.example.org", "its-key")
        assert (address.model, address.api.name) == ("some/model-1", known.api)


@pytest.mark.promise("models:names")
@pytest.mark.parametrize("provider", [name for name, known in PROVIDERS.items() if known.url_variable])
def test_a_variable_overrides_the_address_of_a_provider(provider: str) -> None:
    environment = {PROVIDERS[provider].url_variable: "http://127.0.0.1:99/there/"}
    address = find_address(ModelSettings(name=f"{provider}/m"), environment)
    assert address.url == "http://127.0.0.1:99/there"


@pytest.mark.promise("models:names")
def test_openai_base_url_is_the_address_of_openai_models_unless_a_setting_names_one() -> None:
    environment = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:99/v1/"}
    asked = PreparedCall("m", (), Sampling(max_tokens=5))
    for name in ("gpt-4.1", "openai/gpt-4.1"):
        address = find_address(ModelSettings(name=name, tokens=True), environment)
        assert (address.url, address.key, address.model) == ("http://127.0.0.1:99/v1", "k", "gpt-4.1")
        # Compatible servers may not know OpenAI's name of the limit.
        assert b'"max_tokens"' in address.api.encode(asked).body
    named = ModelSettings(name="gpt-4.1", base_url="https://own.example.org/v1")
    assert find_address(named, environment).url == "https://own.example.org/v1"
    empty = {**environment, "OPENAI_BASE_URL": ""}
    assert find_address(ModelSettings(name="gpt-4.1"), empty).url == "https://api.openai.com/v1"
    other = find_address(ModelSettings(name="claude-x"), {**environment, "ANTHROPIC_API_KEY": "k"})
    assert other.url == "https://api.anthropic.com/v1"


@pytest.mark.promise("models:names")
def test_azure_reads_address_deployment_and_version_from_variables() -> None:
    environment = {"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_ENDPOINT": "https://own.example.org/openai/v1/"}
    with pytest.raises(ConfigurationError, match=r"^model azure: no deployment; set AZURE_OPENAI_DEPLOYMENT"):
        find_address(ModelSettings(name="azure"), environment)
    with pytest.raises(ConfigurationError, match=r"^model azure/m: no address; set AZURE_OPENAI_ENDPOINT"):
        find_address(ModelSettings(name="azure/m"), {"AZURE_OPENAI_API_KEY": "k"})
    address = find_address(ModelSettings(name="azure"), {**environment, "AZURE_OPENAI_DEPLOYMENT": "own"})
    assert (address.url, address.model) == ("https://own.example.org", "own")
    asked = PreparedCall(address.model, (), Sampling())
    assert address.api.encode(asked).path == "/openai/v1/chat/completions"
    dated = find_address(
        ModelSettings(name="azure/m"), {**environment, "AZURE_OPENAI_API_VERSION": "2025-04-01"}
    )
    assert dated.api.encode(asked).path.endswith("api-version=2025-04-01")


@pytest.mark.promise("models:names")
def test_the_api_of_a_base_url_is_a_setting() -> None:
    own = ModelSettings(name="claude-x", base_url="https://own.example.org/v1", api="anthropic")
    address = find_address(own, {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "other"})
    assert (address.url, address.key, address.api.name) == (
        "https://own.example.org/v1",
        "k",
        "anthropic",
    )
    there = find_address(ModelSettings(name="claude-x", api="anthropic"), {"ANTHROPIC_API_KEY": "k"})
    assert (there.url, there.model) == ("https://api.anthropic.com/v1", "claude-x")
    with pytest.raises(
        ConfigurationError, match=r"^model gemini/m: gemini does not have the API openai; set base_url"
    ):
        find_address(ModelSettings(name="gemini/m", api="openai"), {"GEMINI_API_KEY": "k"})


@pytest.mark.promise("models:names")
@pytest.mark.parametrize(
    ("name", "url", "model"),
    [
        ("claude-3-5-sonnet", "https://api.anthropic.com/v1", "claude-3-5-sonnet"),
        ("grok-3", "https://api.x.ai/v1", "grok-3"),
        ("gemini-2.5-pro", PROVIDERS["gemini"].url, "gemini-2.5-pro"),
        ("deepseek-reasoner", "https://api.deepseek.com/v1", "deepseek-reasoner"),
        ("together", "https://api.together.xyz/v1", "Qwen/Qwen2.5-7B-Instruct-Turbo"),
        ("together-meta-llama/Llama-3", "https://api.together.xyz/v1", "meta-llama/Llama-3"),
        ("together/meta-llama/Llama-3", "https://api.together.xyz/v1", "meta-llama/Llama-3"),
        ("dashscope", PROVIDERS["dashscope"].url, "qwen2.5-7b-instruct"),
        ("dashscope-qwen2.5-7b-instruct", PROVIDERS["dashscope"].url, "qwen2.5-7b-instruct"),
        ("vllm-openai/gpt-oss-20b", "http://127.0.0.1:8000/v1", "openai/gpt-oss-20b"),
        ("ollama-gpt-oss", "http://127.0.0.1:11434", "gpt-oss"),
        ("litellm-gpt-4o", "litellm", "gpt-4o"),
    ],
)
def test_the_documented_beginning_of_a_name_selects_its_provider(name: str, url: str, model: str) -> None:
    keys = {provider.key_variable: "k" for provider in PROVIDERS.values()}
    address = find_address(ModelSettings(name=name), keys)
    assert (address.url, address.model) == (url, model)


@pytest.mark.promise("models:names")
def test_a_documented_name_at_a_base_url_is_sent_unchanged() -> None:
    for name in ("claude-3", "together", "vllm-a", "deepseek-chat"):
        address = find_address(ModelSettings(name=name, base_url="http://127.0.0.1:8000/v1"), {})
        assert (address.url, address.model) == ("http://127.0.0.1:8000/v1", name)


@pytest.mark.promise("models:names")
@pytest.mark.parametrize(
    "name", ["gpt-oss-claude", "o1/claude", "my-gemini", "deepseek-ai/DeepSeek-R1", "claude", "vllm-"]
)
def test_a_provider_is_never_guessed_from_a_part_of_a_name(name: str) -> None:
    address = find_address(ModelSettings(name=name), {"OPENAI_API_KEY": "k"})
    assert (address.url, address.model, address.api.name) == ("https://api.openai.com/v1", name, "openai")


@pytest.mark.promise("models:fallback")
async def test_a_provider_without_schemas_starts_with_json_object() -> None:
    address = find_address(ModelSettings(name="deepseek/deepseek-chat"), {"DEEPSEEK_API_KEY": "k"})
    assert address.answer_format == "json_object"


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
async def test_a_configured_key_overrides_the_variable_and_is_sent() -> None:
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
def test_a_key_is_never_shown() -> None:
    said = settings("http://127.0.0.1:1/v1", api_key="very-secret")
    assert "very-secret" not in f"{said!r} {said.model_dump_json()}"


@pytest.mark.promise("models:budgets")
def test_a_budget_of_money_without_prices_is_refused_in_one_line() -> None:
    local = settings("http://127.0.0.1:1/v1")
    with pytest.raises(
        ConfigurationError, match=r"^model painter: .* needs the prices of its tokens; set prices"
    ):
        make_model(local, Accounts(max_cost=1.0), environment={})
    priced = settings("http://127.0.0.1:1/v1", prices=Prices(input=1, output=1))
    assert make_model(priced, Accounts(max_cost=1.0), environment={}).name == "painter"


@pytest.mark.promise("models:sampling")
async def test_max_tokens_is_sent_under_the_providers_name() -> None:
    names = {
        "gpt-5": "max_completion_tokens",
        "openai/gpt-5": "max_completion_tokens",
        "xai/grok": "max_tokens",
    }
    for name, longest in names.items():
        address = find_address(ModelSettings(name=name), {"OPENAI_API_KEY": "k", "XAI_API_KEY": "k"})
        body = address.api.encode(PreparedCall(address.model, (), Sampling(max_tokens=7))).body
        assert msgspec.json.decode(body) == {"model": address.model, "messages": [], longest: 7}


@pytest.mark.promise("models:offline")
async def test_the_offline_engine_has_the_same_interface_and_needs_neither_key_nor_prices() -> None:
    accounts = Accounts(max_cost=1.0)
    request = RecallRequest(question="How tall is the lighthouse?")
    asked = Call(role="generator", messages=(), reply=Recalled, request=request)
    async with make_model(ModelSettings(name="offline"), accounts, environment={}) as model:
        assert (await model.complete(asked)).value == Recalled("", is_certain=False)
        assert (model.name, model.vision, model.statistics().calls) == ("offline", False, 1)
    assert accounts.by_role["generator"].calls == 1


BAD: list[dict[str, object]] = [
    {"name": ""},
    {"base_url": "api.example.org"},
    {"temperature": -1},
    {"max_attempts": 0},
    {"max_concurrency": 0},
    {"call_seconds": 0},
    {"structured": "xml"},
    {"unknown": 1},
]


@pytest.mark.promise("models:settings")
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: next(iter(bad)))
def test_invalid_model_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ModelSettings.model_validate({"name": "m", **bad})


@pytest.mark.promise("models:settings")
@pytest.mark.parametrize("structured", ["auto", "json_schema", "json_object", "text", "known"])
def test_every_structured_output_mode_is_a_setting(structured: StructuredOutput) -> None:
    assert ModelSettings(name="m", structured=structured).structured == structured


@pytest.mark.promise("models:keys")
def test_a_key_can_come_from_the_dotenv_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    (tmp_path / ".env").write_text("DEEPSEEK_API_KEY=k\n", encoding="utf-8")
    assert (
        make_model(ModelSettings(name="deepseek/deepseek-chat"), Accounts()).name == "deepseek/deepseek-chat"
    )


@pytest.mark.promise("models:keys")
def test_the_template_of_the_dotenv_file_lists_every_variable_of_a_provider() -> None:
    listed = Path(__file__).parents[3].joinpath(".env.template").read_text(encoding="utf-8")
    for provider in PROVIDERS.values():
        for variable in filter(
            None, (provider.key_variable, *provider.other_key_variables, provider.url_variable)
        ):
            assert f"\n#{variable}=" in listed
    assert "\n#AZURE_OPENAI_API_VERSION=" in listed
    assert "\n#AZURE_OPENAI_DEPLOYMENT=" in listed


@pytest.mark.promise("settings:renamed_keys")
def test_old_keys_of_model_settings_load() -> None:
    old = {
        "name": "m",
        "attempts": 2,
        "longest_text": 9,
        "max_in_flight": 3,
        "sees": False,
        "speaks": "ollama",
    }
    with pytest.warns(RenamedSettingWarning):
        settings = ModelSettings.model_validate(old)
    assert settings == ModelSettings(
        name="m", max_attempts=2, max_text_chars=9, max_concurrency=3, vision=False, api="ollama"
    )
