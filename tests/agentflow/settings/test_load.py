"""Settings are read from all their sources, and problems are reported in one line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from agentflow.errors import ConfigurationError
from agentflow.learner import TrainConfig
from agentflow.rollouts import RolloutConfig
from agentflow.sandbox import SandboxSettings
from agentflow.serving import ServingSettings
from agentflow.settings import Section, Settings, load_settings
from agentflow.settings._load import misspelt_variables
from agentflow.synthesis import SynthesisConfig
from mcp_servers.serving._settings import ServerSettings


class Limits(Section):
    """A section of the settings."""

    depth: int = 3
    wall_seconds: float | None = 60.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """A section that is a dataclass of the standard library."""

    width: int = 1


class Program(Settings):
    """Settings of a program."""

    name: str = "none"
    limits: Limits = Limits()
    models: dict[str, Limits] = Field(default_factory=dict[str, Limits])
    size: Size = Size()
    tags: tuple[str, ...] = ()


class Titled(Program):
    """Settings with an alias."""

    aliases: ClassVar[dict[str, str]] = {"title": "name"}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def bomb() -> bytes:
    """Return YAML whose aliases stand for a million values, from line 6 on."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for above, name in zip("abcde", "bcdef", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{above}'] * 10)}]")
    return "\n".join(lines).encode()


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.promise("settings:sources")
def test_a_later_source_wins_over_an_earlier_one_and_keeps_what_it_does_not_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = write("run.yaml", "name: file\nlimits: {depth: 1, wall_seconds: 1}\ntags: [file]\n")
    assert load_settings(Program, file).name == "file"
    write(".env", "AGENTFLOW_NAME=dotenv\nAGENTFLOW_LIMITS__DEPTH=2\nUNRELATED=1\n")
    assert load_settings(Program, file).name == "dotenv"
    monkeypatch.setenv("AGENTFLOW_NAME", "environment")
    assert load_settings(Program, file).name == "environment"
    settings = load_settings(Program, file, ["name=word", "limits.wall_seconds=null"])
    assert settings == Program(name="word", limits=Limits(depth=2, wall_seconds=None), tags=("file",))


@pytest.mark.promise("settings:sources")
def test_direct_construction_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_NAME", "environment")
    assert Program().name == "none"


@pytest.mark.promise("settings:sources")
def test_json_and_yaml_files_are_equivalent() -> None:
    yaml = write("run.yaml", "limits:\n  depth: 7\ntags: [a, b]\n")
    json = write("run.json", '{"limits": {"depth": 7}, "tags": ["a", "b"]}')
    assert load_settings(Program, yaml) == load_settings(Program, json)
    assert load_settings(Program, write("empty.yaml", "# nothing\n")) == Program()


@pytest.mark.promise("settings:overrides")
def test_overrides_set_values_lists_and_mappings() -> None:
    settings = load_settings(
        Program, overrides=["name=a=b", "limits.depth=5", "tags=[x, 'y z']", "models.big={depth: 9}"]
    )
    assert settings.name == "a=b"
    assert settings.limits.depth == 5
    assert settings.tags == ("x", "y z")
    assert settings.models == {"big": Limits(depth=9)}


@pytest.mark.promise("settings:overrides")
@given(
    name=st.text(st.characters(exclude_categories=["Cs"])).filter(
        lambda text: text != "null" and text[:1] not in "[{"
    )
)
def test_an_override_is_plain_text(name: str) -> None:
    assert load_settings(Program, overrides=[f"name={name}"], dotenv=None).name == name


@pytest.mark.promise("settings:references")
def test_references_are_filled_from_the_environment_and_dotenv(monkeypatch: pytest.MonkeyPatch) -> None:
    write(".env", "FROM_DOTENV=d\nBOTH=dotenv\n")
    monkeypatch.setenv("BOTH", "environment")
    monkeypatch.setenv("EMPTY", "")
    file = write(
        "run.yaml", "tags: ['${FROM_DOTENV}${BOTH}', '${NONE:-x}', '${EMPTY:-y}', '${EMPTY}', '$${BOTH}', $5]"
    )
    assert load_settings(Program, file).tags == ("denvironment", "x", "y", "", "${BOTH}", "$5")


@pytest.mark.promise("settings:one_line")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits: {dept: 1}", "run.yaml: limits.dept is unknown; did you mean depth?"),
        ("models: {big: {dept: 1}}", "run.yaml: models.big.dept is unknown; did you mean depth?"),
        ("zzz: 1", "run.yaml: zzz is unknown; known here: limits, models, name, size, tags"),
        ("size: {with: 1}", "run.yaml: size.with is unknown; did you mean width?"),
        ("limits: {depth: many}", "run.yaml: limits.depth: input should be a valid integer"),
        ("zzz: 1\nyyy: 2", "(and 1 more)"),
        ("name: ${NOWHERE}", "run.yaml: name: ${NOWHERE} is not set; set it, or write ${NOWHERE:-default}"),
        ("- 1", "run.yaml: holds no mapping; write `key: value` lines"),
        ("a: [", "run.yaml:1: not YAML"),
    ],
)
def test_an_invalid_file_is_one_line_with_place_and_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_settings(Program, write("run.yaml", text))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.promise("settings:one_line")
def test_the_source_of_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"^key=value: limits\.depth: input"):
        load_settings(Program, overrides=["limits.depth=deep"])
    with pytest.raises(ConfigurationError, match=r"^depth: not an override; write key=value"):
        load_settings(Program, overrides=["depth"])
    with pytest.raises(ConfigurationError, match="neither a list"):
        load_settings(Program, overrides=["tags=[a"])
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml: no such file"):
        load_settings(Program, "nowhere.yaml")
    with pytest.raises(ConfigurationError, match=r"broken\.json:1: not JSON"):
        load_settings(Program, write("broken.json", "{"))
    monkeypatch.setenv("AGENTFLOW_LIMITS__DEPTH", "deep")
    with pytest.raises(ConfigurationError, match=r"^environment: limits\.depth: input"):
        load_settings(Program)


@pytest.mark.promise("settings:one_line")
def test_a_message_does_not_repeat_a_value_that_may_be_a_secret() -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_settings(Program, overrides=["limits.depth=sk-secret"])
    assert "sk-secret" not in str(raised.value)


@pytest.mark.promise("settings:one_line")
@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("run.yaml", "name: Zürich".encode("latin-1"), "run.yaml: not UTF-8 text; save it as UTF-8"),
        ("run.yaml", "name: a".encode("utf-16"), "run.yaml: not UTF-8 text; save it as UTF-8"),
        ("run.yaml", b"limits:\n\tdepth: 1\n", "run.yaml:2: not YAML: a tab indents a line; use spaces"),
        ("run.yaml", b"limits:\n  depth: 1\n wall_seconds: 1\n", "run.yaml:3: not YAML: "),
        ("run.yaml", b"name: a: b\n", "run.yaml:1: not YAML: mapping values are not allowed here"),
        ("run.yaml", b"name: \0\n", "run.yaml: not YAML: unacceptable character #x0000"),
        ("run.yaml", b"name: !!python/object:os.system {}\n", "run.yaml:1: not YAML: could not determine"),
        ("run.yaml", b"tags: &all [*all]\n", "run.yaml:1: a value contains itself; write it out"),
        ("run.yaml", b"limits: &all\n  depth: {a: *all}\n", "run.yaml:1: a value contains itself"),
        ("run.yaml", b"limits: &all\n  <<: *all\n", "run.yaml:1: a value contains itself"),
        ("run.yaml", bomb(), "run.yaml:5: more than 100,000 values; remove some, or use fewer aliases"),
        ("run.yaml", b"name: 2020-13-45\n", "run.yaml: not YAML: a number or date is not valid"),
        ("run.yaml", b"name: !!timestamp x\n", "run.yaml: not YAML: a number or date is not valid"),
        ("run.yaml", b"limits: {depth: " + b"9" * 5000 + b"}\n", "run.yaml:1: a number of 5,000 digits"),
        (
            "run.json",
            b'{"limits": {"depth": ' + b"9" * 5000 + b"}}",
            "run.json: a number of 5,000 digits",
        ),
        ("run.yaml", b"{" * 5000, "run.yaml: nested too deeply"),
        ("run.yaml", b"max_depth=3\n", "run.yaml: holds no mapping; write `key: value` lines"),
        ("run.json", b"", "run.json:1: not JSON: "),
        ("run.json", b'{"name": "a",}', "run.json:1: not JSON: "),
        ("run.json", b"[" * 100_000, "run.json: nested deeper than 100 levels"),
        ("run.yaml", b"name: a\ntags: []\nname: b\n", "run.yaml:3: name is given twice; remove one of them"),
        ("run.yaml", b"tags: []\nlimits:\n- {depth: 1, depth: 2}\n", "run.yaml:3: depth is given twice"),
        ("run.json", b'{"name": "a", "limits": {"depth": 1, "depth": 2}}', "run.json: depth is given twice"),
        (
            "run.yaml",
            b'"\\ud800\\e": 1\n"\\ud800\\e": 2\n',
            "run.yaml:2: �� is given twice; remove one of them",
        ),
        ("run.json", b'{"\\ud800": 1, "\\ud800": 2}', "run.json: � is given twice; remove one of them"),
        ("folder", None, "folder: can't be read: Is a directory"),
        ("nowhere/run.yaml", None, "nowhere/run.yaml: no such file"),
    ],
)
def test_a_file_that_cannot_be_read_gives_one_line(name: str, data: bytes | None, message: str) -> None:
    Path("folder").mkdir()
    if data is not None:
        Path(name).write_bytes(data)
    with pytest.raises(ConfigurationError) as refused:
        load_settings(Program, name)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("settings:one_line")
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("[&all [*all]]", "a value contains itself"),
        ("[" * 5000, "nested too deeply"),
        ("{a: 2020-13-45}", "not YAML: a number or date is not valid"),
        (bomb().decode().replace("\n", ", ").join("{}"), "more than 100,000 values"),
    ],
    ids=["cycle", "open", "date", "aliases"],
)
def test_an_override_that_cannot_be_used_gives_one_line(value: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(Program, overrides=[f"tags={value}"])
    assert str(refused.value).startswith(f"tags: {problem}")
    assert "\n" not in str(refused.value)


@pytest.mark.promise("settings:one_line")
@pytest.mark.parametrize("key", ["a\nb", "a\x1b[2Jb", "a\u2028b", "x" * 100_000])
@pytest.mark.parametrize("where", ["file", "override"])
def test_a_refused_key_is_repeated_on_one_short_line(key: str, where: str) -> None:
    file = write("run.json", json.dumps({key: 1})) if where == "file" else None
    with pytest.raises(ConfigurationError) as refused:
        load_settings(Program, file, [] if file else [f"{key}=1"])
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 3_000


@pytest.mark.promise("settings:one_line")
def test_a_variable_that_is_nested_too_deeply_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_TAGS", "[" * 10_000)
    with pytest.raises(
        ConfigurationError, match=r"^environment: a value is nested too deeply; write it flatter$"
    ):
        load_settings(Program)


@pytest.mark.promise("settings:sources")
@pytest.mark.parametrize(("name", "text"), [("run.yaml", "name: a"), ("run.json", '{"name": "a"}')])
def test_a_byte_order_mark_is_ignored(name: str, text: str) -> None:
    Path(name).write_bytes(text.encode("utf-8-sig"))
    assert load_settings(Program, name).name == "a"


@pytest.mark.promise("settings:sources")
def test_anchors_and_merged_keys_may_be_overridden() -> None:
    text = "models: {small: &small {depth: 1}, big: &big {<<: *small, depth: 2}, last: {<<: *big, depth: 3}}"
    settings = load_settings(Program, write("run.yaml", text))
    assert [own.depth for own in settings.models.values()] == [1, 2, 3]


@pytest.mark.promise("settings:misspelt_variables")
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("AGENTFLOW_TASG", "AGENTFLOW_TAGS"),
        ("AGENTFLOW_LIMTS__DEPTH", "AGENTFLOW_LIMITS"),
        ("agentflow_modles__mine__depth", "AGENTFLOW_MODELS"),
        ("AGENTFLOW_TITLES", "AGENTFLOW_TITLE"),
    ],
)
@pytest.mark.parametrize("dotenv", [True, False])
def test_a_nearly_known_variable_is_named_in_one_warning(
    name: str, meant: str, dotenv: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Each is named once per process.
    name = f"{name}X" if dotenv else name
    if dotenv:
        Path(".env").write_text(f"{name}=7\n")
    else:
        monkeypatch.setenv(name, "7")
    for _ in range(2):
        load_settings(Titled)
    assert caplog.messages == [f"environment: {name} is no setting and is ignored; did you mean {meant}?"]


@pytest.mark.promise("settings:misspelt_variables")
def test_known_and_distant_variables_are_not_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (
        "LIMITS__DEPTH",
        "MODELS__LIMTS__DEPTH",
        "TITLE",
        "TRACEBACK",
        "VERL_DEVICE",
        "SERVER_TOKEN",
        "ID",
    ):
        monkeypatch.setenv(f"AGENTFLOW_{name}", "7")
    monkeypatch.setenv("TASG", "7")
    load_settings(Titled)
    assert caplog.messages == []


@pytest.mark.promise("settings:misspelt_variables")
def test_no_setting_of_a_program_is_taken_for_a_misspelt_one_of_another() -> None:
    models = (RolloutConfig, SynthesisConfig, TrainConfig, SandboxSettings, ServingSettings, ServerSettings)
    for one in models:
        variables = [f"{one.model_config.get('env_prefix', '')}{key}" for key in one.model_fields]
        for other in models:
            assert misspelt_variables(other, variables) == {}, (one, other)
