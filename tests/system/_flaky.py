"""Backend that fails as configured: the failing calls are a pure function of their arguments."""

from collections.abc import Mapping
from hashlib import blake2b
from random import Random
from typing import Annotated

from pydantic import Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers import Backend, tool

__all__ = ["FLAKY", "FlakyBackend", "failure_of"]

FLAKY = "tests.system._flaky:FlakyBackend"
"""Import path in settings."""

KINDS = (ErrorKind.TIMEOUT, ErrorKind.NOT_FOUND, ErrorKind.OUTPUT_LIMIT, ErrorKind.FAILED)
BUILDINGS = ("harbour", "granary", "lighthouse", "cloister", "theatre", "windmill", "archive", "observatory")
PLACES = ("Orm", "Sandrell", "Low Varn", "Hesper", "Quill", "Tarn", "Umberly", "Wick")
PEOPLE = (
    "Ida Holt",
    "Bram Oster",
    "Edda Quist",
    "Jonet Harl",
    "Lucan Thorne",
    "Ilsa Venn",
    "Perrin Sole",
    "Ada Lind",
)
"""Founders of the places; each was born in another one."""
VERBS = ("founded", "restored", "burned", "surveyed", "painted", "abandoned", "extended", "flooded")


def failure_of(query: str, share: float) -> ErrorKind | None:
    """Return the failure of a query, if it belongs to the failing share; the last kind is a crash."""
    dice = blake2b(query.encode(), digest_size=8).digest()
    fails = int.from_bytes(dice[:4], "big") / 2**32 < share
    return KINDS[dice[4] % len(KINDS)] if fails else None


class FlakyBackend(Backend):
    """Looks things up, and fails."""

    name = "flaky"
    description = "Looks things up."

    def __init__(self) -> None:
        self._share = 0.0

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the share of calls that fail."""
        share = settings.get("share", 0.0)
        assert isinstance(share, float)
        self._share = share

    @tool(read_only=True)
    async def look(self, query: Annotated[str, Field(description="What.")]) -> dict[str, object]:
        """Look something up. Use it to find out."""
        kind = failure_of(query, self._share)
        if kind is ErrorKind.FAILED:
            raise LookupError("nobody expected this")
        if kind is not None:
            raise ToolFailure(kind, f"it did not work ({kind}).")
        chance = Random(query)
        founded, born = chance.randrange(len(PLACES)), chance.randrange(len(PLACES))
        building, place, verb = chance.choice(BUILDINGS), chance.choice(PLACES), chance.choice(VERBS)
        said = (
            f"In the account of {query} the {building} of {place} was {verb} in {chance.randrange(1200, 1950)}.",
            f"{PLACES[founded]} was founded by {PEOPLE[founded]}.",
            f"{PEOPLE[born]} was born in {PLACES[(born + 3) % len(PLACES)]}.",
        )
        return {"text": " ".join(said)}
