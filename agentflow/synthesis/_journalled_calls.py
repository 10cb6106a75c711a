"""Model calls, searches and repeated calls of a seed: each is made once, counted, and kept on the journal page."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec import Struct

from agentflow.actors import together
from agentflow.errors import RunStopped
from agentflow.growth import BranchSandboxes, ExecutorPort
from agentflow.journal import Page
from agentflow.questions import ShownDocument, divided, documents_of
from agentflow.runs import RoleReplies
from agentflow.sandbox import Sandbox, Tool
from agentflow.synthesis._selection import trimmed_path
from agentflow.trace import Action, ActionOutcome, Failure, Node, Observation, Reply, Tree, Usage, Verdict

MAX_RESULT_CHARS = 12_000
"""Characters of the results that a reader is shown."""
MAX_RESULTS = 10
"""Number of documents of the results that a reader is shown."""


def search_tool(tools: Sequence[Tool]) -> str | None:
    """Return the first tool that has no state, changes nothing, and takes a query."""
    return next((tool.name for tool in tools if _searches(tool)), None)


def _searches(tool: Tool) -> bool:
    return (
        not tool.stateful and tool.hints.read_only is True and tool.input_schema.get("required") == ["query"]
    )


@dataclass(frozen=True)
class PageSearch:
    """Search for one seed, whose results are kept on its page. Implements `CorpusSearch`."""

    sandbox: Sandbox
    executor: ExecutorPort
    tool: str
    page: Page

    async def search(self, key: str, queries: Sequence[str]) -> tuple[ShownDocument, ...]:
        """Return the documents that match the queries; empty if all searches failed."""
        actions = [Action(self.tool, {"query": query}) for query in queries]
        outcomes = await together(
            partial(
                self.page.once,
                f"{key}/{number}",
                ActionOutcome,
                partial(self.executor.act, self.sandbox, action),
            )
            for number, action in enumerate(actions)
        )
        nodes = [
            Node(
                id=f"{key}/{number}",
                parent="",
                depth=1,
                position=number,
                intent="",
                action=action,
                outcome=outcome,
                verdict=Verdict.NEW,
            )
            for number, (action, outcome) in enumerate(zip(actions, outcomes, strict=True))
            if outcome.failure is None
        ]
        groups = divided(documents_of(nodes), characters=MAX_RESULT_CHARS, most=MAX_RESULTS)
        return groups[0] if groups else ()


@dataclass(frozen=True)
class TreeCalls:
    """Calls of a tree, made again in fresh sandboxes: a question rests on results that anybody can get again.

    Implements `RepeatedCalls`; new outcomes are kept on the page of the tree.
    """

    sandboxes: BranchSandboxes
    executor: ExecutorPort
    tree: Tree
    page: Page

    async def fault(self, node: str) -> str:
        """Return why the call of a node does not give its result again; empty if it does, or must not be repeated."""
        nodes = (self.tree.by_id[id] for id in trimmed_path(self.tree, [node]))
        # The calls that it rests on come first.
        actions = [made.action for made in nodes if made.action is not None]
        tools, is_repeatable = self.sandboxes.tools, self.sandboxes.is_repeatable
        if any(tools[action.tool].hints.open_world and not is_repeatable(action) for action in actions):
            return ""
        outcome = await self.page.once(f"again/{node}", ActionOutcome, partial(self._make, actions))
        if outcome.failure is not None:
            return f"the call that it rests on fails when it is made again: {outcome.failure.message}"
        if outcome.observation != self.tree.by_id[node].observation:
            return "the call that it rests on gives another result when it is made again"
        return ""

    async def _make(self, actions: Sequence[Action]) -> ActionOutcome:
        """Make calls one after the other; return the outcome of the last one."""
        outcome = ActionOutcome(Observation())
        base = self.sandboxes.base
        async with self.sandboxes.reserve(1):
            sandbox = await base.fork() if self.sandboxes.stateful else base
            try:
                for action in actions:
                    outcome = await self.executor.act(sandbox, action)
            finally:
                if sandbox is not base:
                    await sandbox.close()
        return outcome


T = TypeVar("T")

GROWTH_KEYS = ("plan/", "act/", "node/", "level/", "diverged/")
"""Beginnings of the keys of growing."""
_ROLES = {
    "plan": "planner", "node": "verifier", "recall": "learner",
    **dict.fromkeys(("hidden", "hidden2", "evidence", "others"), "reader"),
    **dict.fromkeys(("propose", "repair", "fuzz", "look", "instruct", "task"), "generator"),
}  # fmt: skip
"""Roles by the first part of the keys of their model calls."""
_AGENT_CALLS = ("/agent", "/solution")
"""Ends of the keys of model calls in attempts."""


def replies_on(page: Page) -> RoleReplies:
    """Return the replies on the page of a seed of all models whose answers are needed: the learner may say anything."""
    replies = RoleReplies()
    for key in tuple(page.keys()):
        role = _ROLES.get(key.partition("/")[0], "agent")
        if role != "learner" and (reply := _reply(page, key)) is not None and reply.usage is not None:
            replies.add(role, reply.failure)
    return replies


def _reply(page: Page, key: str) -> "_Recorded | None":
    """Return the reply of a model under a key; `None`: another effect."""
    first = key.partition("/")[0]
    try:
        if first == "attempt" and key.endswith(_AGENT_CALLS):
            timed = page.recall(key, _TimedRecord)
            return None if timed is None else timed.value
        return page.recall(key, _Recorded) if first in _ROLES else None
    except RunStopped:
        # Tasks record effects of other types, too.
        return None


def keys_to_keep(replies: RoleReplies) -> tuple[str, ...]:
    """Return the beginnings of the keys that stay when a seed is worked on again: those of a tree that was well grown."""
    return () if {"planner", "verifier"} & replies.failed.keys() else GROWTH_KEYS


class JournalledCalls:
    """Makes calls whose results are kept on a page: after a crash, none is repeated."""

    def __init__(self, page: Page) -> None:
        """Count calls of a page."""
        self.page = page
        """The page."""
        self.usage: dict[str, Usage] = {}
        """Usage of models by role."""

    async def reply(
        self, key: str, kind: type[Reply[T]], role: str, call: Callable[[], Awaitable[Reply[T]]]
    ) -> Reply[T]:
        """Return the reply to a model call."""
        reply = await self.page.once(key, kind, call)
        self.count(role, reply.usage)
        return reply

    def count(self, role: str, usage: Usage) -> None:
        """Count the usage of a role."""
        self.usage[role] = self.usage.get(role, Usage()) + usage

    def failures(self) -> dict[str, int]:
        """Count the failed model calls on the page, by kind; those of growing, too."""
        kinds: Counter[str] = Counter()
        for key in tuple(self.page.keys()):
            if not key.startswith("attempt/"):
                reply = _reply(self.page, key)
                if reply is not None and reply.failure is not None:
                    kinds[reply.failure.kind] += 1
        return dict(sorted(kinds.items()))


class _Recorded(Struct, frozen=True):
    """Reply of any type."""

    failure: Failure | None = None
    usage: Usage | None = None
    """`None`: another effect."""


class _TimedRecord(Struct, frozen=True):
    """Reply in an attempt."""

    value: _Recorded
