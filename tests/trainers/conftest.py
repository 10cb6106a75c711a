"""Exports of small runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentflow.exports import export_run
from tests.agentflow.exports._trees import roll_out, synthesise


@pytest.fixture(scope="package")
def synthesis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesise(tmp_path_factory.mktemp("synthesis"))


@pytest.fixture(scope="package")
def rollout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return roll_out(tmp_path_factory.mktemp("rollout"))


@pytest.fixture
def exported(tmp_path: Path) -> Callable[[Path, str], Path]:
    """Export a run in a format, all answers; return the folder."""

    def export(run: Path, format: str) -> Path:
        folder = tmp_path / format
        export_run(run, format, folder, take="all")
        return folder

    return export
