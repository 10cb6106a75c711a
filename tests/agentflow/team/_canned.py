"""A tool that returns given texts."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from agentflow.sandbox import Backend, tool


class Canned(Backend):
    """Returns texts by name."""

    name = "canned"
    description = "Texts."

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    @tool(read_only=True)
    async def show(self, name: Annotated[str, Field(description="Which.")]) -> str:
        """Show a text."""
        return self._texts[name]
