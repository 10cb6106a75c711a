"""The team of roles."""

from agentflow.actors import ChildSpec
from agentflow.errors import ConfigurationError
from agentflow.models import Model
from agentflow.team._executor import Executor, PutBlob
from agentflow.team._generator import Generator
from agentflow.team._model_calls import ReadBlob
from agentflow.team._observations import ObservationLimits
from agentflow.team._planner import Planner
from agentflow.team._pool import EffectGate, Role, run_now
from agentflow.team._reader import Reader
from agentflow.team._verifier import Verifier, Verify


class Team:
    """A planner, an executor, a verifier, a generator and a reader, each with its own supervised workers.

    See docs/team.md.
    """

    def __init__(
        self,
        *,
        planner: Model,
        generator: Model,
        reader: Model | None = None,
        learner: Model | None = None,
        verifier: Model | None = None,
        analyst: Model | None = None,
        executor: Model | None = None,
        verify: Verify = "rule",
        put_blob: PutBlob,
        blob: ReadBlob,
        short_prompts: bool = False,
        workers: int = 512,
        observations: ObservationLimits | None = None,
        gate: EffectGate | None = None,
    ) -> None:
        """Create the roles; they work while their `specs` run under a supervisor.

        :param reader: model that checks questions; defaults to the generator's.
        :param learner: model that answers from memory; defaults to the reader's.
        :param verifier: model that verifies episodes and, for `verify="model"`, judges observations; defaults to the
            planner's.
        :param analyst: model that analyses tasks; defaults to the planner's.
        :param executor: model that writes the arguments of calls; defaults to the planner's.
        :param verify: method for judging observations during growth.
        :param put_blob: stores images.
        :param blob: reads images for models with vision.
        :param short_prompts: show an episode's planner only the question, the names of the tools and the results, for
            small models trained on such prompts.
        :param workers: maximum number of concurrent workers per role.
        :param observations: room for observations in a prompt of growth or synthesis.
        :param gate: gate in front of every request; an episode's agent has a gate of its own instead.
        :raises ConfigurationError: if a model is to judge and none is given.
        """
        if verify == "model" and verifier is None:
            raise ConfigurationError(
                "team: verify=model needs a model; give `verifier` one or set verify=rule"
            )
        room = observations or ObservationLimits()
        self.planner = Planner(
            planner,
            analyst or planner,
            blob,
            short_prompts=short_prompts,
            workers=workers,
            observations=room,
        )
        """Proposes what to do next and analyses tasks."""
        self.executor = Executor(put_blob, executor or planner, workers=workers)
        """Calls tools and writes their arguments."""
        self.verifier = Verifier(verify, verifier or planner, blob, workers=workers, observations=room)
        """Judges results."""
        self.generator = Generator(generator, blob, workers=workers)
        """Writes questions, answers and summaries."""
        self.reader = Reader(reader or generator, blob, learner=learner, workers=workers)
        """Checks questions."""
        for role in self._roles:
            role.gate = gate or run_now

    @property
    def _roles(self) -> tuple[Role, ...]:
        return self.planner, self.executor, self.verifier, self.generator, self.reader

    def specs(self) -> list[ChildSpec]:
        """Return the child specification of each role's pool."""
        return [role.pool.spec for role in self._roles]
