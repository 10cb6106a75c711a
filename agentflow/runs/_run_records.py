"""Records of a run itself in its journal, for those who read it: its beginning, its tools and its models."""

import time
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from agentflow.models import ModelSettings, Prices
from agentflow.runs._supervised_resources import prices_of
from agentflow.runs._tools import ChosenTools
from agentflow.trace import ToolCard

RUN_START: Final = "start"
"""Key of `RunStart`."""
RUN_MODELS: Final = "models"
"""Key of `RunModels`."""


class RunStart(Struct, frozen=True, kw_only=True):
    """Beginning of a run. That of its first process is kept."""

    kind: str
    """`synthesis` or `rollout`."""
    started: float
    """Seconds since 1970."""
    tools: tuple[ToolCard, ...] = ()
    """Tools with their schemas, with the arguments that a seed may fix."""
    inputs: tuple[str, ...] = ()
    """Input files and folders as the tools see them, one line each."""


class RunModels(Struct, frozen=True, kw_only=True):
    """Models of a run by role."""

    names: dict[str, str]
    """Names."""
    prices: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Prices of a million prompt tokens and of a million generated tokens, if they are known."""

    def priced(self) -> dict[str, Prices]:
        """Return the prices by role."""
        return {role: Prices(input=read, output=written) for role, (read, written) in self.prices.items()}


def start_of(kind: str, chosen: ChosenTools) -> RunStart:
    """Describe the beginning of a run, now."""
    tools = (
        ToolCard(
            tool.name,
            tool.description,
            dict(tool.input_schema),
            limits=tool.limits,
            practices=tool.practices,
            examples=tuple(map(dict, tool.examples)),
        )
        for tool in chosen.tools
    )
    return RunStart(kind=kind, started=time.time(), tools=tuple(tools), inputs=chosen.inputs)


def models_of(models: Mapping[str, ModelSettings]) -> RunModels:
    """Describe the models of a run."""
    return RunModels(
        names={role: settings.name for role, settings in models.items()},
        prices={role: (price.input, price.output) for role, price in prices_of(models).items()},
    )
