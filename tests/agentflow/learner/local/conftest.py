"""A tiny model shared by all tests; its folder is read-only by convention."""

from pathlib import Path

import pytest

from tests.agentflow.learner._models import save_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
