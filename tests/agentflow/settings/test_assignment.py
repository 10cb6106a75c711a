"""Values given to settings in Python, at construction or later, are checked like those of a file."""

from collections.abc import Callable
from typing import ClassVar

import pytest
from pydantic import Field, model_validator

from agentflow.errors import ConfigurationError
from agentflow.learner import TrainConfig
from agentflow.models import ModelSettings
from agentflow.rollouts import RolloutConfig
from agentflow.runs import RoleModel
from agentflow.sandbox import SandboxSettings
from agentflow.settings import Section, Settings, load_settings
from agentflow.synthesis import SynthesisConfig


class Limits(Section):
    """A section of the settings."""

    depth: int = Field(default=3, ge=1)


class Program(Settings):
    """Settings of a program."""

    aliases: ClassVar[dict[str, str]] = {"tools": "available_tools"}

    low: int = 1
    high: int = 5
    available_tools: list[str] = Field(default_factory=list[str])
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _ordered(self) -> "Program":
        if self.low > self.high:
            raise ValueError("low: above high; lower it")
        return self


@pytest.mark.promise("settings:assignment")
def test_assigned_values_are_taken_and_converted() -> None:
    settings = Program()
    settings.low = 4
    settings.limits.depth = 7
    setattr(settings, "high", "9")  # noqa: B010 - a value that a type checker would refuse
    assert (settings.low, settings.high, settings.limits.depth) == (4, 9, 7)
    assert settings.model_fields_set == {"low", "high"}
    assert Program().limits.depth == 3


@pytest.mark.promise("settings:assignment")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("low", 6, "Program: low: above high; lower it"),
        ("low", "many", "Program: low: input should be a valid integer"),
        ("hihg", 6, "Program: hihg is unknown; did you mean high?"),
        ("limits", {"dept": 1}, "Program: limits.dept is unknown; did you mean depth?"),
    ],
)
def test_a_refused_value_gives_one_line_and_changes_nothing(name: str, value: object, message: str) -> None:
    settings = Program()
    with pytest.raises(ConfigurationError) as refused:
        setattr(settings, name, value)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert settings == Program()
    assert settings.model_fields_set == set()


@pytest.mark.promise("settings:construction")
@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (Program, {"hihg": 6}, "Program: hihg is unknown; did you mean high?"),
        (Program, {"low": 6, "high": 5}, "Program: low: above high; lower it"),
        (Program, {"limits": {"dept": 1}}, "Program: limits.dept is unknown; did you mean depth?"),
        (Limits, {"dept": 1}, "Limits: dept is unknown; did you mean depth?"),
        (RolloutConfig, {"max_trun": 3}, "RolloutConfig: max_trun is unknown; did you mean max_turns?"),
        (
            SynthesisConfig,
            {"planner_model": {"temprature": 1}},
            "SynthesisConfig: planner_model.temprature is unknown; did you mean temperature?",
        ),
        (
            TrainConfig,
            {"policy": {"modle": "m"}},
            "TrainConfig: policy.modle is unknown; did you mean model?",
        ),
        (SandboxSettings, {"timeuot": 3}, "SandboxSettings: timeuot is unknown; did you mean timeout?"),
        (
            RoleModel,
            {"temperature": -1},
            "RoleModel: temperature: input should be greater than or equal to 0",
        ),
        (ModelSettings, {"name": "m", "tempratur": 1}, "did you mean temperature?"),
    ],
)
def test_settings_made_directly_are_refused_like_those_of_a_file(
    model: Callable[..., object], given: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        model(**given)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("settings:aliases")
@pytest.mark.filterwarnings("error")
def test_an_alias_is_accepted_everywhere_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_TOOLS", '["b"]')
    assert load_settings(Program, dotenv=None).available_tools == ["b"]
    settings = load_settings(Program, overrides=["tools=[a]"], dotenv=None)
    assert settings == Program.model_validate({"tools": ["a"]}) == Program(available_tools=["a"])
    setattr(settings, "tools", ["c"])  # noqa: B010 - as above
    assert settings.available_tools == getattr(settings, "tools") == ["c"]  # noqa: B009 - as above


@pytest.mark.promise("settings:aliases")
def test_both_names_of_a_setting_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="tools is another name of available_tools and both are given"
    ):
        load_settings(Program, overrides=["tools=[a]", "available_tools=[b]"], dotenv=None)
    with pytest.raises(ConfigurationError, match=r"toolz is unknown; did you mean tools\?"):
        load_settings(Program, overrides=["toolz=[a]"], dotenv=None)
