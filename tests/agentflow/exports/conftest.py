"""Finished runs of the offline engine."""

from pathlib import Path

import pytest

from tests.agentflow.exports._trees import roll_out, synthesise


@pytest.fixture(scope="package")
def synthesis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesise(tmp_path_factory.mktemp("synthesis"))


@pytest.fixture(scope="package")
def rollout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return roll_out(tmp_path_factory.mktemp("rollout"))
