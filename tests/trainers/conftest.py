"""Exports of small runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentflow.exports import export_run
from tests.agentflow.exports._trees import roll_out, synthesise, tune_agent
from tests.trainers._runs import roll_out_with_mistakes, store_training, synthesise_with_mistakes


@pytest.fixture(scope="package")
def synthesis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesise(tmp_path_factory.mktemp("synthesis"))


@pytest.fixture(scope="package")
def rollout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return roll_out(tmp_path_factory.mktemp("rollout"))


@pytest.fixture(scope="package")
def mixed_synthesis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesise_with_mistakes(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="package")
def mixed_rollout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return roll_out_with_mistakes(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="package")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tune_agent(tmp_path_factory.mktemp("tuning"))


@pytest.fixture(scope="package")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_training(tmp_path_factory.mktemp("training"))


@pytest.fixture
def exported(tmp_path: Path) -> Callable[[Path, str], Path]:
    """Export a run in a format, all answers; return the folder."""

    def export(run: Path, format: str) -> Path:
        folder = tmp_path / format
        export_run(run, format, folder, take="all")
        return folder

    return export
