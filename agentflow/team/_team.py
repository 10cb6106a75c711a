"""The team: four roles, each with its own workers."""

from functools import partial

from agentflow.actors import ChildSpec
from agentflow.errors import ConfigurationError
from agentflow.models import Model
from agentflow.team._asking import ReadBlob
from agentflow.team._executor import Executor, Executors, PutBlob
from agentflow.team._generator import Generator, Generators
from agentflow.team._planner import Planner, Planners
from agentflow.team._verifier import Verifier, Verifiers, Verify

__all__ = ["Team"]


class Team:
    """Planners, executors, verifiers and generators, to be put under a supervisor."""

    def __init__(
        self,
        *,
        planner: Model,
        generator: Model,
        verifier: Model | None = None,
        analyst: Model | None = None,
        executor: Model | None = None,
        verify: Verify = "rule",
        put_blob: PutBlob,
        blob: ReadBlob,
        short_prompts: bool = False,
        workers: int = 512,
    ) -> None:
        """Put it together; it works while its `specs` run.

        :param verifier: the model that judges, for `verify="model"`, and that verifies in an episode; there the planner's,
            if there is none.
        :param analyst: the model that analyses a task; without one the planner's.
        :param executor: the model that writes the calls of an episode; without one the planner's.
        :param verify: how observations are judged in growing.
        :param put_blob: keeps a picture.
        :param blob: gives it back, for models that see.
        :param short_prompts: the planner of an episode is told no word more than the question, the names of tools, and
            results: for small models that were trained to it.
        :param workers: the most there are of each role at once.
        :raises ConfigurationError: if a model is to judge and there is none.
        """
        if verify == "model" and verifier is None:
            raise ConfigurationError(
                "team: verify=model needs a model; give `verifier` one or set verify=rule"
            )
        self.planner = Planners(
            "planners", partial(Planner, planner, analyst or planner, blob, short_prompts), workers=workers
        )
        """Proposes what to do next; analyses tasks."""
        self.executor = Executors(
            "executors", partial(Executor, put_blob, executor or planner), workers=workers
        )
        """Does it; writes the call first, if there is none."""
        self.verifier = Verifiers(
            verify, partial(Verifier, verify, verifier or planner, blob), workers=workers
        )
        """Says what came of it, and whether that is enough."""
        self.generator = Generators("generators", partial(Generator, generator, blob), workers=workers)
        """Writes questions with their answers, and answers."""

    def specs(self) -> list[ChildSpec]:
        """A supervisor for each role."""
        pools = (self.planner, self.executor, self.verifier, self.generator)
        return [pool.spec for pool in pools]
