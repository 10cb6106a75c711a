"""Trees that the policy grows: the steps of its episodes, taken from every node, are the branches."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs

from agentflow.actors import together
from agentflow.engine import PlannerPort
from agentflow.journal import Run
from agentflow.learner._engine import PolicyEngine
from agentflow.learner._episode_runner import with_seed
from agentflow.models import Call, Completion, Model, ModelSettings, ModelWrapper
from agentflow.runs import Resume
from agentflow.synthesis import SynthesisConfig
from agentflow.synthesis.pipeline import SynthesisRun
from agentflow.team import ObservationLimits, Team, path_memory
from agentflow.trace import (
    Action,
    Assessment,
    CommandRequest,
    Decision,
    DecisionRequest,
    NextStep,
    NextStepRequest,
    Node,
    Plan,
    PlanRequest,
    Proposal,
    QueryAnalysis,
    Reply,
    Turn,
    Usage,
    canonical,
)

if TYPE_CHECKING:
    from agentflow.learner._config import EpisodeRules

T = TypeVar("T")

PLANNER = "planner"
ROUNDS_OF_DRAWS = 3
"""Times that missing branches of a node are drawn."""
_NO_ANALYSIS = QueryAnalysis("", "", "", "")
_CONTINUE = Decision("", Assessment.INCOMPLETE, stop=False)
"""The decision after each step of a path: exploration never ends before its depth."""


class DrawnStepRequest(NextStepRequest, frozen=True, kw_only=True):
    """Ask for a step of the policy, one of several draws from the same node."""

    draw: tuple[object, ...]
    """Source of the seed of its tokens."""


class DrawSeededModel(ModelWrapper):
    """The policy with a seed per draw, so that trees do not depend on the order of calls."""

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Complete one call."""
        request = call.request.next if isinstance(call.request, DecisionRequest) else call.request
        if isinstance(request, DrawnStepRequest):
            call = with_seed(call, request.draw)
        return await self._model.complete(call)


class PolicyExplorer:
    """Planner of trees whose proposals are steps of the policy, drawn as in its episodes. Implements `PlannerPort`.

    The seed is the question of such an episode. A draw that is not usable, or repeats another one, is drawn again.
    """

    def __init__(
        self, team: Team, rules: "EpisodeRules", limits: ObservationLimits, source: Sequence[object]
    ) -> None:
        """:param limits: room for observations in a prompt.
        :param source: source of the seeds of all draws: the seed of the run and the version of the weights.
        """
        self._team = team
        self._rules = rules
        self._limits = limits
        self._source = tuple(source)

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        """Return different steps, as many as requested if the policy takes as many."""
        known = {canonical(action) for action in (*(step.call for step in request.path), *request.taken)}
        proposals: list[Proposal] = []
        usage = Usage()
        for attempt in range(ROUNDS_OF_DRAWS):
            missing = request.count - len(proposals)
            draws = [partial(self._draw, request, (attempt, number)) for number in range(missing)]
            for reply in await together(draws):
                usage += reply.usage
                for proposal in () if reply.value is None else reply.value.proposals:
                    form = canonical(Action(proposal.tool, proposal.arguments))
                    if form not in known:
                        known.add(form)
                        proposals.append(proposal)
        return Reply(value=Plan(tuple(proposals)), usage=usage)

    async def _draw(self, request: PlanRequest, place: tuple[int, int]) -> Reply[Plan]:
        """Draw a step and have the executor write its call; the plan has one proposal, or none."""
        cards = {card.name: card for card in request.tools}
        reply = await self._step(request, place)
        step, usage = reply.value, reply.usage
        tool = None if step is None else cards.get(step.tool_name.replace(":", "_"))
        if step is None or tool is None:
            return Reply(value=Plan(()), usage=usage)
        asked = CommandRequest(question=request.seed, step=step, tool=tool)
        command = await self._team.executor.command(asked)
        usage += command.usage
        if command.value is None:
            return Reply(value=Plan(()), usage=usage)
        intent = step.sub_goal or step.justification
        return Reply(value=Plan((Proposal(intent, tool.name, command.value.arguments),)), usage=usage)

    async def _step(self, request: PlanRequest, place: tuple[int, int]) -> Reply[NextStep]:
        path = [canonical(step.call) for step in request.path]
        taken = [canonical(action) for action in request.taken]
        memory = path_memory(request.seed, request.path, len(request.path) + request.remaining, self._limits)
        turns = tuple(
            _turn(turn, node) for turn, node in zip(memory.turns, _actions(request.path), strict=True)
        )
        next_request = DrawnStepRequest(
            question=request.seed,
            # A short prompt shows nothing but what the policy was trained on.
            instructions="" if self._rules.short_prompts else request.tips,
            tools=request.tools,
            analysis=_NO_ANALYSIS,
            memory=structs.replace(memory, turns=turns),
            turns_left=request.remaining,
            draw=(*self._source, request.seed, path, taken, *place),
        )
        planner = self._team.planner
        if self._rules.verify == "separate" or not turns:
            return await planner.next_step(next_request)
        decided = await planner.decide(DecisionRequest(next=next_request))
        step = None if decided.value is None else decided.value.next
        return Reply(value=step, failure=decided.failure, usage=decided.usage)


def _actions(path: Sequence[Node]) -> list[Node]:
    return [node for node in path if node.action is not None]


def _turn(turn: Turn, node: Node) -> Turn:
    """Return the turn of a node as the policy would have written it: a tree keeps the call of a step, not its words."""
    context = "\n".join(f"{name}: {value}" for name, value in node.call.arguments.items())
    step = NextStep(node.intent, context, "", node.call.tool)
    return structs.replace(turn, step=step, decision=_CONTINUE)


class RoundSynthesis(SynthesisRun):
    """A synthesis whose trees the policy grows, or one beside it."""

    def __init__(
        self,
        config: SynthesisConfig,
        output_dir: Path,
        *,
        engine: PolicyEngine,
        rules: "EpisodeRules | None",
        source: Sequence[object],
        resume: Resume = "auto",
    ) -> None:
        """:param engine: serves the policy.
        :param rules: episodes whose steps are the branches; `None`: the planner of the settings grows the trees.
        :param source: source of the seeds of all draws.
        """
        super().__init__(config, output_dir, resume=resume)
        self._engine = engine
        self._rules = rules
        self._source = source
        self._short_prompts = rules is not None and rules.short_prompts

    @property
    def _models(self) -> dict[str, ModelSettings]:
        """Models of the roles that use one; the planner's is the policy."""
        models = super()._models
        if self._rules is not None:
            # Its calls are written as in the episodes.
            models |= {role: self._rules.models[role] for role in (PLANNER, "executor")}
        return self._engine.models(models)

    async def _open_models(self, run: Run, models: Mapping[str, ModelSettings]) -> dict[str, Model]:
        opened = await super()._open_models(run, models)
        if self._rules is not None:
            opened[PLANNER] = DrawSeededModel(opened[PLANNER])
        return opened

    def _planner(self, team: Team) -> PlannerPort:
        """Return the planner of the trees."""
        if self._rules is None:
            return super()._planner(team)
        limits = ObservationLimits(each=self._rules.max_observation_chars, total=self._rules.memory_chars)
        return PolicyExplorer(team, self._rules, limits, self._source)
