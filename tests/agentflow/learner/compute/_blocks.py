"""Small blocks of queries, so that small trees have several."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

__all__ = ["blocks_of"]


@contextmanager
def blocks_of(queries: int) -> Generator[None]:
    """Attention in blocks of so many queries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentflow.learner.compute._attention.QUERIES", queries)
        patch.setattr("agentflow.learner.compute._attention.BLOCK_COST", 16 * queries)
        patch.setattr("agentflow.learner.compute._attention.KEY_COST", 1)
        yield
