"""The team of roles."""

from collections.abc import Mapping
from typing import Final

from agentflow.actors import ChildSpec
from agentflow.engine import EffectGate, run_now
from agentflow.errors import ConfigurationError
from agentflow.models import Model
from agentflow.team._executor import Executor
from agentflow.team._generator import Generator
from agentflow.team._planner import Planner, PlannerFormat
from agentflow.team._pool import Role
from agentflow.team._reader import Reader
from agentflow.team._rendering import ObservationLimits
from agentflow.team._verifier import Verifier, Verify
from agentflow.trace import BlobStore, MemoryBlobStore

ROLES: Final = ("planner", "executor", "verifier", "generator", "analyst", "reader", "learner")
"""Roles with a model."""


class Team:
    """A planner, an executor, a verifier, a generator and a reader, each with its own supervised workers.

    See docs/team.md.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        *,
        blobs: BlobStore | None = None,
        verify: Verify = "rule",
        short_prompts: bool = False,
        planner_format: PlannerFormat = "json",
        workers: int = 512,
        observations: ObservationLimits | None = None,
        gate: EffectGate = run_now,
    ) -> None:
        """Create the roles; they work while their `specs` run under a supervisor.

        :param models: model of each role. `planner` and `generator` are needed; `reader`, which checks questions, defaults
            to the generator, `learner`, which answers from memory, to the reader, and `analyst`, which analyses tasks,
            `executor`, which writes the arguments of calls, and `verifier` to the planner.
        :param blobs: store of images; `None`: in memory.
        :param verify: method for judging observations during growth.
        :param short_prompts: show an episode's planner only the question, the names of the tools and the results, for
            small models trained on such prompts.
        :param planner_format: format of the planner's steps: `labelled` is that of the released planners of AgentFlow.
        :param workers: maximum number of concurrent workers per role.
        :param observations: room for observations in a prompt of growth or synthesis.
        :param gate: gate in front of every request; the engine of episodes has a gate of its own instead.
        :raises ConfigurationError: if a model is missing, or belongs to no role.
        """
        _check(models)
        if verify == "model" and "verifier" not in models:
            raise ConfigurationError(
                "team: verify=model needs a model; give `verifier` one or set verify=rule"
            )
        planner, generator = models["planner"], models["generator"]
        reader = models.get("reader", generator)
        blobs = blobs or MemoryBlobStore()
        room = observations or ObservationLimits()
        self.planner = Planner(
            planner,
            models.get("analyst", planner),
            blobs,
            short_prompts=short_prompts,
            format=planner_format,
            workers=workers,
            observations=room,
        )
        """Proposes what to do next and analyses tasks."""
        self.executor = Executor(blobs, models.get("executor", planner), workers=workers)
        """Calls tools and writes their arguments."""
        self.verifier = Verifier(
            verify, models.get("verifier", planner), blobs, workers=workers, observations=room
        )
        """Judges results."""
        self.generator = Generator(generator, blobs, workers=workers)
        """Writes questions, answers and summaries."""
        self.reader = Reader(reader, blobs, learner=models.get("learner"), workers=workers)
        """Checks questions."""
        for role in self._roles:
            role.gate = gate

    @property
    def _roles(self) -> tuple[Role, ...]:
        return self.planner, self.executor, self.verifier, self.generator, self.reader

    def specs(self) -> list[ChildSpec]:
        """Return the child specification of each role's pool."""
        return [role.pool.spec for role in self._roles]


def _check(models: Mapping[str, Model]) -> None:
    """Check the models of the roles.

    :raises ConfigurationError: if one is missing, or belongs to no role.
    """
    if unknown := models.keys() - set(ROLES):
        raise ConfigurationError(f"team: there is no role {min(unknown)}; the roles are {', '.join(ROLES)}")
    for role in ("planner", "generator"):
        if role not in models:
            raise ConfigurationError(f"team: no model for the {role}; add it to `models`")
