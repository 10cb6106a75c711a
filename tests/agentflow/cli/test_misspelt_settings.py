"""A misspelt key of any shipped settings file gives one line that names the nearest key, before anything begins."""

import json
import random
import re
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from pathlib import Path

import pytest
import yaml

from agentflow import Sandbox
from agentflow._typeguards import is_list, is_object
from agentflow.errors import ConfigurationError
from agentflow.learner import load_train_config
from agentflow.rollouts import load_rollout_config
from agentflow.settings import load_settings
from agentflow.synthesis import load_synthesis_config
from mcp_servers.serving._settings import ServerSettings
from tests.behaviour._tree import ROOT

FREE = frozenset({"databases", "tokens", "servers", "env", "options"})
"""Sections whose keys are the user's own names, or those of another program."""
KeyPath = tuple[str, ...]
NEAREST = re.compile(r"did you mean (\S+)\?")


def load_server(path: Path) -> ServerSettings:
    return load_settings(ServerSettings, path)


LOADERS: dict[str, Callable[[Path], object]] = {
    "rollout": load_rollout_config,
    "sandbox": Sandbox,
    "sandbox-server": load_server,
    "synthesis": load_synthesis_config,
    "train": load_train_config,
}


def keys(values: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of all keys that the program knows."""
    if is_object(values):
        for name, value in values.items():
            if not path or path[-1] not in FREE:
                yield (*path, name)
            yield from keys(value, (*path, name))
    elif is_list(values):
        for index, value in enumerate(values):
            yield from keys(value, (*path, str(index)))


def alike(one: str, other: str) -> float:
    return SequenceMatcher(None, other, one).ratio()


def misspelt(name: str, chance: random.Random) -> str:
    """Return the name with a letter left out, doubled, replaced, or two exchanged."""
    place = chance.randrange(len(name) - 1)
    before, one, two, after = name[:place], name[place], name[place + 1], name[place + 2 :]
    edits = (
        before + two + after,
        f"{before}{one}{one}{two}{after}",
        f"{before}x{two}{after}",
        f"{before}{two}{one}{after}",
    )
    return chance.choice([edit for edit in edits if edit != name])


def renamed(values: object, path: KeyPath, wrong: str) -> object:
    """Return the values with the last key of a path renamed."""
    if is_list(values):
        return [
            renamed(value, path[1:], wrong) if str(index) == path[0] else value
            for index, value in enumerate(values)
        ]
    assert is_object(values)
    if len(path) == 1:
        return {wrong if name == path[0] else name: value for name, value in values.items()}
    return {
        name: renamed(value, path[1:], wrong) if name == path[0] else value for name, value in values.items()
    }


def check_misspellings(folder: str, rounds: int, chance: random.Random, tmp_path: Path) -> None:
    for file in sorted((ROOT / "configs" / folder).iterdir()):
        values: object = yaml.safe_load(file.read_text(encoding="utf-8"))
        copy = tmp_path / file.name
        for path in [path for path in keys(values) for _ in range(rounds)]:
            wrong = misspelt(path[-1], chance)
            copy.write_text(json.dumps(renamed(values, path, wrong)), encoding="utf-8")
            with pytest.raises(ConfigurationError) as refused:
                LOADERS[folder](copy)
            message = str(refused.value)
            assert "\n" not in message
            assert wrong in message, (path, message)
            found = NEAREST.search(message)
            assert found is not None, (path, wrong, message)
            # Another key may be as near: `token` and `tokens`.
            assert alike(found[1], wrong) >= alike(path[-1], wrong), (path, wrong, message)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set the variables that the files need."""
    monkeypatch.chdir(tmp_path)
    for name in ("RESEARCH_TOKEN", "DESKTOP_TOKEN", "TRAINER_TOKEN", "EVALUATOR_TOKEN"):
        monkeypatch.setenv(name, name)


@pytest.mark.promise("settings:misspelt")
@pytest.mark.parametrize("folder", LOADERS)
def test_a_misspelt_key_of_a_shipped_file_names_the_nearest(folder: str, tmp_path: Path) -> None:
    check_misspellings(folder, 1, random.Random(4), tmp_path)


@pytest.mark.soak
@pytest.mark.promise("settings:misspelt")
@pytest.mark.parametrize("folder", LOADERS)
def test_any_misspelling_names_the_nearest(folder: str, tmp_path: Path) -> None:
    check_misspellings(folder, 20, random.Random(), tmp_path)
