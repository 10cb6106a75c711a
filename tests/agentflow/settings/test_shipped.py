"""Settings files that ship with the installation."""

from pathlib import Path

import pytest

from agentflow.errors import ConfigurationError
from agentflow.rollouts import load_rollout_config
from tests.behaviour._tree import ROOT

pytestmark = pytest.mark.promise("settings:shipped")
NAME = "configs/rollout/corpus.yaml"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave the checkout."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_shipped_file_is_found_from_every_directory() -> None:
    assert load_rollout_config(NAME) == load_rollout_config(ROOT / NAME)


def test_a_file_of_the_user_wins(elsewhere: Path) -> None:
    own = elsewhere / NAME
    own.parent.mkdir(parents=True)
    own.write_text("max_turns: 3\n", encoding="utf-8")
    assert load_rollout_config(NAME).max_turns == 3


@pytest.mark.parametrize(
    "name", ["configs/rollout/corpsu.yaml", "config/rollout/corpus.yaml", "pyproject.toml"]
)
def test_other_files_are_not_looked_for(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}: no such file"):
        load_rollout_config(name)
