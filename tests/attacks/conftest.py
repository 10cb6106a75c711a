"""Fixtures of the attack battery."""

from tests.runtimes.process.conftest import users

__all__ = ["users"]
