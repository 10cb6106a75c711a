"""Choosing the actions of a level: every node's planner is asked, and asked again for duplicates."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Protocol

from msgspec import Struct, field
from rapidfuzz import fuzz

from agentflow.actors import together
from agentflow.engine._search import GrowthSettings
from agentflow.engine._tool_cards import bind_action, card_of
from agentflow.journal import Page
from agentflow.sandbox import Tool
from agentflow.trace import (
    Action,
    Node,
    Plan,
    PlanRequest,
    Proposal,
    Reply,
    Seed,
    Usage,
    Verdict,
    canonical,
)

_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"\w+")


class PlannerPort(Protocol):
    """Planner of a grower: `agentflow.team.Planner`, or any class with this method. See docs/engine.md."""

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        """Propose different actions, as many as requested if possible. A failed call is a failed reply."""
        ...


class NodeChoices(Struct):
    """Choices of one node."""

    key: str
    """Path key of the node."""
    path: tuple[Node, ...]
    """Steps from the root to the node."""
    wanted: int
    """Number of children wanted."""
    choices: list[Node] = field(default_factory=list[Node])
    """Steps chosen so far, each an intent and an action."""
    drawn: Counter[str] = field(default_factory=Counter[str])
    """Number of proposals of each action by its canonical form, if duplicates are merged."""
    taken: list[Action] = field(default_factory=list[Action])
    """Duplicates that the planner proposed."""
    refused: list[str] = field(default_factory=list[str])
    """Reasons for which other proposals were refused."""
    ended: str = ""
    """Reason for which the planner is not asked again."""
    reasoning: str = ""
    """Reasoning of the planner's model."""

    @property
    def short(self) -> bool:
        """More actions are wanted, and the planner may be asked."""
        return len(self.choices) < self.wanted and not self.ended

    @property
    def stalled(self) -> str:
        """Reason for fewer children than wanted; empty if there are enough."""
        missing = self.wanted - len(self.choices)
        if missing == 0:
            return ""
        if self.ended:
            return self.ended
        reason = "nothing new to try" if self.taken or not self.refused else self.refused[-1]
        return f"{missing} of {self.wanted} children: {reason}"


class TakenActions:
    """Actions of a tree, for finding duplicates: exact ones in the whole tree, similar ones among near nodes."""

    def __init__(self, similarity: float, searches: Iterable[str]) -> None:
        """Start empty.

        :param similarity: similarity from which two searches count as duplicates.
        :param searches: tools whose arguments are search terms. For other tools (code, commands) a single character
            matters, so only exact duplicates count.
        """
        self._similarity = similarity * 100
        self._searches = frozenset(searches)
        self._exact: set[str] = set()

    def add(self, action: Action) -> None:
        """Add an action of the tree."""
        self._exact.add(canonical(action))

    def is_duplicate(self, action: Action, near: Iterable[Action]) -> bool:
        """Tell whether the tree has this action, or a sibling or ancestor is a similar search."""
        form = canonical(action)
        if form in self._exact:
            return True
        if action.tool not in self._searches:
            return False
        words, numbers = _search_terms(form)
        for other in near:
            if other.tool != action.tool:
                continue
            other_words, other_numbers = _search_terms(canonical(other))
            # Another year or page number makes a different search, however similar the words.
            if other_numbers == numbers and fuzz.ratio(words, other_words) >= self._similarity:
                return True
        return False


@lru_cache(maxsize=4096)
def _search_terms(form: str) -> tuple[str, list[str]]:
    """Return the words in alphabetical order, because their order does not matter, and the numbers."""
    return " ".join(sorted(_WORD.findall(form.casefold()))), _NUMBER.findall(form)


class ActionChooser:
    """Chooses the actions of one tree."""

    def __init__(
        self,
        seed: Seed,
        page: Page,
        settings: GrowthSettings,
        planner: PlannerPort,
        tools: Mapping[str, Tool],
    ) -> None:
        self._seed = seed
        self._page = page
        self._settings = settings
        self._planner = planner
        self._tools = tools
        self._cards = tuple(card_of(tool, seed.kwargs, tools) for tool in tools.values())
        searches = [name for name, tool in tools.items() if tool.hints.read_only and not tool.stateful]
        self._taken = TakenActions(settings.action_similarity, searches)
        self.duplicates = 0
        """Number of proposals refused as duplicates."""
        self.usage = Usage()
        """Usage of the planner."""

    async def choose(self, level: Sequence[NodeChoices]) -> None:
        """Fill in the choices of every node of a level.

        All nodes ask concurrently; then, in path order, new actions are chosen and duplicates are asked for again. The
        result does not depend on the order of answers or on the number of concurrent calls.
        """
        for ask in range(1 if self._settings.merge_duplicates else self._settings.max_asks):
            asking = [node for node in level if node.short]
            replies = await together([partial(self._ask, node, ask) for node in asking])
            for node, reply in zip(asking, replies, strict=True):
                self.usage += reply.usage
                node.reasoning = "\n\n".join(filter(None, (node.reasoning, reply.reasoning)))
                if reply.value is None:
                    node.ended = f"planner failed: {reply.failure.message if reply.failure else 'no answer'}"
                else:
                    self._take(node, reply.value)

    async def _ask(self, node: NodeChoices, ask: int) -> Reply[Plan]:
        request = PlanRequest(
            seed=self._seed.content,
            seed_description=self._settings.seed_description,
            tips=self._settings.tips,
            aims=self._settings.aims_of(self._seed.index),
            tools=self._cards,
            path=node.path,
            count=node.wanted - len(node.choices),
            taken=(*(choice.call for choice in node.choices), *node.taken),
            refused=tuple(node.refused),
            remaining=self._settings.max_depth - len(node.path),
            kwargs=self._seed.kwargs,
            inputs=self._settings.inputs,
        )
        key = f"plan/{node.key}/{ask}"
        return await self._page.once(key, Reply[Plan], lambda: self._planner.plan(request))

    def _take(self, node: NodeChoices, plan: Plan) -> None:
        if self._settings.merge_duplicates:
            self._merge(node, plan)
            return
        # A failed search may be tried again with other words, however similar.
        path = [step.call for step in node.path if step.verdict not in (Verdict.ERROR, Verdict.EMPTY)]
        for proposal in plan.proposals:
            if len(node.choices) == node.wanted:
                return
            action = self._action(proposal)
            siblings = [choice.call for choice in node.choices]
            if isinstance(action, str):
                node.refused.append(action)
            elif self._taken.is_duplicate(action, [*path, *siblings]):
                self.duplicates += 1
                if action not in node.taken and action not in siblings:
                    node.taken.append(action)
            else:
                self._taken.add(action)
                node.choices.append(Node(intent=proposal.intent, action=action))

    def _merge(self, node: NodeChoices, plan: Plan) -> None:
        """Choose every valid action once, and count repeated proposals."""
        for proposal in plan.proposals[: node.wanted]:
            action = self._action(proposal)
            if isinstance(action, str):
                node.refused.append(action)
                continue
            form = canonical(action)
            node.drawn[form] += 1
            if node.drawn[form] > 1:
                self.duplicates += 1
            else:
                node.choices.append(Node(intent=proposal.intent, action=action))

    def _action(self, proposal: Proposal) -> Action | str:
        """Return the proposed action with the seed's fixed arguments, or the reason why it is invalid."""
        tool = self._tools.get(proposal.tool.replace(":", "_"))
        if tool is None:
            return f"there is no tool {proposal.tool!r}"
        action, failure = bind_action(tool, proposal.arguments, self._seed.kwargs)
        return action if failure is None else failure.message
