"""Settings files, overrides and variables: any text loads, or is refused in one line."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import Field

from agentflow.errors import ConfigurationError
from agentflow.settings import Section, Settings, load_settings
from mcp_servers.serving._settings import ServerSettings
from tests.fuzz._budget import FuzzBudget, fuzzed

YAML = (
    b"host: 127.0.0.1\nport: 18890\ntokens: {a: ${FUZZ_TOKEN}, b: {token: t, backends: [bash]}}\n",
    b"backends: &all {bash: , code: {output_characters: 300}}\nwarmup: [bash]\nsessions: {idle_seconds: 1e3}\n",
    b"&x\nworkers: 1\ncalls: &c\n  max_seconds: 600\nclient_profiles: {my-*: {structured: false, event_bytes: null}}\n",
    b"a: &a [1, 2]\nb: &b [*a, *a]\nsessions: {limits: &l {wall_seconds: 1}, <<: *l}\n",
    b'? [1, 2]\n: !!set {a, b}\n"\\ud800": 2020-02-02\nx: !!binary aGk=\ny: 0b1\nz: 1:2:3\n',
)
JSON = (
    b'{"port": 1, "tokens": {"a": {"token": "t", "backends": ["bash"]}}, "backends": {"bash": null}}',
    b'{"sessions": {"limits": {"wall_seconds": 1e3}}, "calls": {"max_waiting": 9}, "rate_limit": -0.0}',
)
OVERRIDES = (b"backends={bash: {a: &a [*a]}}", b"port=1", b"tokens.a={token: t}", b"warmup=[bash, 'x']")
PIECES = (b"&a ", b"*a", b"<<: *a", b"!!int ", b"{", b"[", b": ", b"- ", b"\n", b"?", b"|", b">", b"${", b"#")


class Part(Section):
    """A part of settings."""

    parts: list["Part"] = Field(default_factory=list["Part"])
    by_name: dict[str, "Part | list[str]"] = Field(default_factory=dict[str, "Part | list[str]"])
    size: float | None = None


class Whole(Settings):
    """Settings of many types."""

    part: Part = Part()
    names: tuple[str, ...] = ()
    path: Path = Path("a")


def is_one_line(data: bytes, model: type[Settings], path: Path, overrides: Sequence[str] = ()) -> bool:
    """Load settings; return true if they are valid, or the refusal is one short line."""
    path.write_bytes(data)
    try:
        load_settings(model, path, overrides)
    except ConfigurationError as refused:
        # Bytes of file names that are no text are shown as escapes.
        message = re.sub("[\udc80-\udcff]", "", str(refused))
        return message.isprintable() and len(message) < 5_000
    return True


@fuzzed
@pytest.mark.filterwarnings("ignore::agentflow.settings.RenamedSettingWarning")
@pytest.mark.promise("settings:one_line")
def test_any_settings_load_or_are_refused_in_one_line(
    budget: FuzzBudget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUZZ_TOKEN", "f")
    for case in budget.cases(short=300):
        with case:
            suffix, corpus = case.choice([(".yaml", YAML), (".yaml", YAML), (".json", JSON)])
            data = case.choice(corpus)
            if case.random() < 0.5:
                place = case.randint(0, len(data))
                data = data[:place] + case.choice(PIECES) * case.choice((1, 2, 300)) + data[place:]
            override = ""
            with suppress(UnicodeDecodeError):
                override = case.mutated(case.choice(OVERRIDES)).decode()
            model = case.choice((ServerSettings, Whole))
            assert is_one_line(case.mutated(data), model, Path(f"run{suffix}"))
            assert is_one_line(b"{}", model, Path(f"run{suffix}"), [override])
