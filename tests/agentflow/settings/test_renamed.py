"""Renamed keys load under their old names, with one warning for each."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field, ValidationError

from agentflow.errors import ConfigurationError
from agentflow.settings import RenamedSettingWarning, Section, Settings, load_settings


class Limits(Section):
    """A section with a renamed key."""

    renamed: ClassVar[dict[str, str]] = {"deep": "depth", "labels": "tags"}

    depth: int = 3
    tags: tuple[str, ...] = ()


class Base(Settings):
    """Settings that others extend."""

    renamed: ClassVar[dict[str, str]] = {"title": "name", "bounds": "limits"}

    name: str = "none"
    limits: Limits = Limits()
    models: dict[str, Limits] = Field(default_factory=dict[str, Limits])
    many: tuple[Limits, ...] = ()


class Program(Base):
    """Settings with renamed keys of their own and of their base."""

    renamed: ClassVar[dict[str, str]] = {"wide": "width"}

    width: int = 1


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def load(*overrides: str, file: str | None = None) -> tuple[Program, list[str]]:
    """Load the settings and return them with the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = load_settings(Program, file, overrides)
    assert all(warning.category is RenamedSettingWarning for warning in caught)
    assert all(Path(warning.filename) == Path(__file__) for warning in caught)
    return settings, [str(warning.message) for warning in caught]


@pytest.mark.promise("settings:renamed_keys")
@pytest.mark.parametrize(("name", "text"), [("run.yaml", "title: a"), ("run.json", '{"title": "a"}')])
def test_an_old_key_of_a_file_loads_as_the_new_key_with_one_warning(name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
    settings, hints = load("title=b", file=name)
    assert settings == Program(name="b")
    assert hints == [
        "key=value: title is now called name; rename it, the next release will not accept the old name"
    ]


@pytest.mark.promise("settings:renamed_keys")
def test_old_keys_load_in_nested_sections_mappings_and_lists() -> None:
    settings, hints = load("bounds.deep=1", "models.deep.deep=2", "many=[{deep: 3}, {deep: 4}]", "wide=5")
    assert settings == Program(
        limits=Limits(depth=1),
        models={"deep": Limits(depth=2)},
        many=(Limits(depth=3), Limits(depth=4)),
        width=5,
    )
    assert [hint.split(";")[0].removeprefix("key=value: ") for hint in hints] == [
        "bounds is now called limits",
        "limits.deep is now called limits.depth",
        "models.deep.deep is now called models.deep.depth",
        "many.0.deep is now called many.0.depth",
        "many.1.deep is now called many.1.depth",
        "wide is now called width",
    ]


@pytest.mark.promise("settings:renamed_keys")
def test_old_names_of_environment_variables_load(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("AGENTFLOW_TITLE=dotenv\nUNRELATED=1\n", encoding="utf-8")
    monkeypatch.setenv("AGENTFLOW_BOUNDS__DEEP", "1")
    monkeypatch.setenv("AGENTFLOW_BOUNDS__LABELS", '["x"]')
    settings, hints = load()
    assert settings == Program(name="dotenv", limits=Limits(depth=1, tags=("x",)))
    assert [hint.split(";")[0] for hint in hints] == [
        "environment: AGENTFLOW_BOUNDS__DEEP is now called AGENTFLOW_LIMITS__DEPTH",
        "environment: AGENTFLOW_BOUNDS__LABELS is now called AGENTFLOW_LIMITS__TAGS",
        ".env: AGENTFLOW_TITLE is now called AGENTFLOW_NAME",
    ]


@pytest.mark.promise("settings:renamed_keys")
def test_a_new_key_overrides_the_old_key_of_an_earlier_source() -> None:
    Path("run.yaml").write_text("limits: {deep: 1}", encoding="utf-8")
    settings, hints = load("limits.depth=2", file="run.yaml")
    assert settings.limits.depth == 2
    assert len(hints) == 1


@pytest.mark.promise("settings:renamed_keys")
def test_both_names_in_one_source_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load("limits.deep=1", "limits.depth=2")
    assert str(raised.value) == (
        "key=value: limits.deep is the old name of limits.depth and both are given; remove limits.deep"
    )
    with pytest.raises(ValidationError, match="deep is the old name of depth and both are given"):
        Limits.model_validate({"deep": 1, "depth": 2})
    monkeypatch.setenv("AGENTFLOW_TITLE", "a")
    monkeypatch.setenv("AGENTFLOW_NAME", "b")
    with pytest.raises(ConfigurationError, match=r"^environment: AGENTFLOW_TITLE is the old name of AGENTF"):
        load()


@pytest.mark.promise("settings:renamed_keys")
def test_old_keys_are_accepted_by_direct_construction() -> None:
    with pytest.warns(RenamedSettingWarning, match=r"^Limits: deep is now called depth;"):
        assert Limits.model_validate({"deep": 1}) == Limits(depth=1)
    with pytest.warns(RenamedSettingWarning, match=r"^Program: title is now called name;"):
        assert Program.model_validate({"title": "a"}) == Program(name="a")


@pytest.mark.promise("settings:renamed_keys")
def test_the_schema_shows_new_keys_and_a_typing_error_suggests_them() -> None:
    assert Limits.model_json_schema()["properties"].keys() == {"depth", "tags"}
    with pytest.raises(ConfigurationError, match=r"labls is unknown; did you mean tags\?"):
        load("limits.labls=[a]")


@pytest.mark.promise("settings:renamed_keys")
def test_a_user_sees_the_warning_on_stderr_once() -> None:
    program = (
        "from typing import ClassVar\n"
        "from agentflow.settings import Settings, load_settings\n"
        "class Program(Settings):\n"
        "    renamed: ClassVar[dict[str, str]] = {'title': 'name'}\n"
        "    name: str = 'none'\n"
        "print(load_settings(Program, overrides=['title=a']).name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "a\n"
    assert done.stderr.count("title is now called name") == 1
