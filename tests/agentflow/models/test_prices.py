"""Built-in prices of well-known models."""

import tomllib
from datetime import date
from pathlib import Path

import pytest

import agentflow.models
from agentflow.errors import ConfigurationError
from agentflow.models import PROVIDERS, Accounts, ModelSettings, Prices, make_model
from agentflow.runs import cost_text, prices_as_of
from agentflow.trace import Usage

LIST = tomllib.loads(Path(agentflow.models.__path__[0], "prices.toml").read_text(encoding="utf-8"))
MILLION = Usage(1, 1_000_000, 1_000_000)


@pytest.mark.promise("models:prices")
@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("gpt-4o", 12.5),
        ("openai/gpt-4o", 12.5),
        ("gpt-4o-2024-08-06", 12.5),
        ("gpt-4o-2024-05-13", 20.0),
        ("gpt-4.1-2025-04-14", 10.0),
        ("o3-mini", 5.5),
        ("claude-sonnet-4-5", 18.0),
        ("claude-sonnet-4-5-20250929", 18.0),
        ("anthropic/claude-sonnet-4-5", 18.0),
        ("gemini", 2.8),
        ("deepseek-chat", 0.7),
        ("together-openai/gpt-oss-20b", 0.25),
        ("gpt-4o-mini-of-my-own", 0.0),
        ("gpt-4-32k", 0.0),
        ("azure/gpt-4o", 0.0),
        ("vllm/gpt-4o", 0.0),
        ("offline", 0.0),
    ],
)
def test_well_known_models_have_prices_and_others_have_none(name: str, cost: float) -> None:
    settings = ModelSettings(name=name)
    assert settings.cost(MILLION) == pytest.approx(cost)
    assert (settings.known_prices is None) == (cost == 0.0)


@pytest.mark.promise("models:prices")
def test_own_prices_win_and_a_base_url_has_no_prices() -> None:
    own = ModelSettings(name="gpt-4o", prices=Prices(input=1.0, output=1.0))
    assert own.cost(MILLION) == 2.0
    assert ModelSettings(name="gpt-4o", base_url="http://127.0.0.1:1/v1").known_prices is None


@pytest.mark.promise("models:prices")
def test_a_budget_of_money_needs_no_prices_of_a_well_known_model() -> None:
    make_model(ModelSettings(name="gpt-4o"), Accounts(max_cost=1.0), environment={"OPENAI_API_KEY": "k"})
    with pytest.raises(ConfigurationError, match="max_cost needs the prices"):
        make_model(ModelSettings(name="gpt-x"), Accounts(max_cost=1.0), environment={"OPENAI_API_KEY": "k"})


@pytest.mark.promise("models:prices")
def test_the_list_of_prices_is_dated_and_names_known_providers() -> None:
    assert isinstance(LIST["date"], date)
    assert LIST["source"]
    assert LIST["models"].keys() <= PROVIDERS.keys()
    for table in LIST["models"].values():
        assert all(0 < prompt <= 4 * completion for prompt, completion in table.values())


@pytest.mark.promise("models:prices")
def test_a_cost_in_a_report_names_the_date_of_built_in_prices_or_the_settings() -> None:
    listed, own = (
        ModelSettings(name="gpt-4o"),
        ModelSettings(name="gpt-4o", prices=Prices(input=1.0, output=1.0)),
    )
    assert prices_as_of([own, ModelSettings(name="any")]) == ""
    assert prices_as_of([own, listed]) == str(LIST["date"])
    assert cost_text({"agent": 1.5}, prices_as_of([listed]), 3, "task") == (
        f"1.5000, 0.5000 per task (US dollars, list prices as of {LIST['date']}; `prices` in the settings overrides them)"
    )
    assert cost_text({"agent": 1.5}, "") == "1.5000, by the prices of the settings"
