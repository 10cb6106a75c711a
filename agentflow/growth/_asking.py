"""Choosing what a level does next: every node's planner is asked, duplicates are asked for again."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from agentflow.actors import together
from agentflow.errors import ToolFailure
from agentflow.growth._duplicates import Taken
from agentflow.growth._ports import Planner
from agentflow.growth._settings import GrowthSettings
from agentflow.journal import Page
from agentflow.sandbox import Tool
from agentflow.team import card_of, fixed_arguments
from agentflow.trajectory import Action, Plan, PlanRequest, Proposal, Reply, Seed, Step, Usage, canonical

__all__ = ["Asker", "Choice", "Chosen"]


class Choice(NamedTuple):
    """An action that a node is going to try."""

    intent: str
    """Why."""
    action: Action
    """What."""
    drawn: int = 1
    """How often it was proposed, where duplicates are merged."""


class Chosen(Struct):
    """What one node is going to try."""

    spot: str
    """The node, as its path."""
    path: tuple[Step, ...]
    """What was done up to it."""
    wanted: int
    """How many children it is to have."""
    choices: list[Choice]
    """What it has so far."""
    taken: list[Action]
    """Duplicates that its planner came up with."""
    refused: list[str]
    """Why other proposals were no good."""
    ended: str = ""
    """Why its planner is not asked again."""

    @property
    def short(self) -> bool:
        """It wants more, and may ask for it."""
        return len(self.choices) < self.wanted and not self.ended

    @property
    def stalled(self) -> str:
        """Why it got fewer children than it was to have; empty: it did not."""
        missing = self.wanted - len(self.choices)
        if missing == 0:
            return ""
        if self.ended:
            return self.ended
        why = "nothing new to try" if self.taken or not self.refused else self.refused[-1]
        return f"{missing} of {self.wanted} children: {why}"


class Asker:
    """Asks the planner, for one tree."""

    def __init__(
        self,
        seed: Seed,
        page: Page,
        settings: GrowthSettings,
        planner: Planner,
        tools: Mapping[str, Tool],
    ) -> None:
        self._seed = seed
        self._page = page
        self._settings = settings
        self._planner = planner
        self._tools = tools
        self._cards = tuple(card_of(tool, seed.kwargs) for tool in tools.values())
        searches = [name for name, tool in tools.items() if tool.hints.read_only and not tool.stateful]
        self._taken = Taken(settings.action_similarity, searches)
        self.duplicates = 0
        """Proposals refused as duplicates."""
        self.usage = Usage()
        """What asking has consumed."""

    async def choose(self, level: Sequence[Chosen]) -> None:
        """Fill in the choices of every node of a level.

        All nodes ask at once; then, in path order, what is new is taken and what is a duplicate is asked for again.
        So neither who answers first nor how many may ask at once changes anything.
        """
        for ask in range(1 if self._settings.merge_duplicates else self._settings.max_asks):
            asking = [node for node in level if node.short]
            replies = await together([partial(self._ask, node, ask) for node in asking])
            for node, reply in zip(asking, replies, strict=True):
                self.usage += reply.usage
                if reply.value is None:
                    node.ended = f"planner failed: {reply.failure.message if reply.failure else 'no answer'}"
                else:
                    self._take(node, reply.value)

    async def _ask(self, node: Chosen, ask: int) -> Reply[Plan]:
        key = f"plan/{node.spot}/{ask}"
        known = self._page.recall(key, Reply[Plan])
        if known is not None:
            return known
        request = PlanRequest(
            seed=self._seed.content,
            seed_description=self._settings.seed_description,
            tips=self._settings.tips,
            tools=self._cards,
            path=node.path,
            count=node.wanted - len(node.choices),
            taken=(*(choice.action for choice in node.choices), *node.taken),
            refused=tuple(node.refused),
        )
        reply = await self._planner.plan(request)
        await self._page.note(key, reply)
        return reply

    def _take(self, node: Chosen, plan: Plan) -> None:
        if self._settings.merge_duplicates:
            self._merge(node, plan)
            return
        path = [step.action for step in node.path]
        for proposal in plan.proposals:
            if len(node.choices) == node.wanted:
                return
            action = self._action(proposal)
            siblings = [choice.action for choice in node.choices]
            if isinstance(action, str):
                node.refused.append(action)
            elif self._taken.duplicate(action, [*path, *siblings]):
                self.duplicates += 1
                if action not in node.taken and action not in siblings:
                    node.taken.append(action)
            else:
                self._taken.add(action)
                node.choices.append(Choice(proposal.intent, action))

    def _merge(self, node: Chosen, plan: Plan) -> None:
        """Everything that can be done, once; what was proposed again counts as often."""
        drawn: dict[str, Choice] = {}
        for proposal in plan.proposals[: node.wanted]:
            action = self._action(proposal)
            if isinstance(action, str):
                node.refused.append(action)
                continue
            form = canonical(action)
            if form in drawn:
                self.duplicates += 1
                drawn[form] = drawn[form]._replace(drawn=drawn[form].drawn + 1)
            else:
                drawn[form] = Choice(proposal.intent, action)
        node.choices.extend(drawn.values())

    def _action(self, proposal: Proposal) -> Action | str:
        """The action that is proposed, with what the seed fixes; or why it can't be done."""
        tool = self._tools.get(proposal.tool.replace(":", "_"))
        if tool is None:
            return f"there is no tool {proposal.tool!r}"
        arguments = {**proposal.arguments, **fixed_arguments(tool, self._seed.kwargs)}
        try:
            tool.bind(arguments)
        except ToolFailure as failure:
            return failure.message
        return Action(tool.name, arguments)
