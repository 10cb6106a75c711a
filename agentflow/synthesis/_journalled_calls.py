"""Model calls and searches of a seed: each is made once, counted, and kept on the journal page."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec import Struct

from agentflow.actors import together
from agentflow.engine import ExecutorPort
from agentflow.errors import RunStopped
from agentflow.journal import Page
from agentflow.questions import ShownDocument, divided, documents_of
from agentflow.runs import RoleReplies
from agentflow.sandbox import Sandbox, Tool
from agentflow.trace import Action, ActionOutcome, Failure, Node, Reply, Usage, Verdict

MAX_RESULT_CHARS = 12_000
"""Characters of the results that a reader is shown."""
MAX_RESULTS = 10
"""Number of documents of the results that a reader is shown."""


class AlternativeSearch:
    """Searches with the first tool that has no state, changes nothing, and takes a query."""

    def __init__(self, sandbox: Sandbox, tools: Sequence[Tool], executor: ExecutorPort) -> None:
        """Find the tool."""
        self._sandbox = sandbox
        self._executor = executor
        self._tool = next((tool.name for tool in tools if _searches(tool)), None)

    def on(self, page: Page) -> "PageSearch | None":
        """Return the search of a seed, whose results are kept on its page; `None` without a tool."""
        return None if self._tool is None else PageSearch(self, page)

    async def act(self, question: str) -> ActionOutcome:
        """Search with the words of a question."""
        return await self._executor.act(self._sandbox, self.action(question))

    def action(self, query: str) -> Action:
        """Return the call for a query."""
        assert self._tool is not None  # there is no `PageSearch` otherwise
        return Action(self._tool, {"query": query})


@dataclass(frozen=True)
class PageSearch:
    """Search of one seed. Implements `CorpusSearch`."""

    searching: AlternativeSearch
    page: Page

    async def search(self, key: str, queries: Sequence[str]) -> tuple[ShownDocument, ...]:
        """Return the documents that match the queries; empty if all searches failed."""
        outcomes = await together(
            partial(self.page.once, f"{key}/{number}", ActionOutcome, partial(self.searching.act, query))
            for number, query in enumerate(queries)
        )
        nodes = [
            Node(
                id=f"{key}/{number}",
                parent="",
                depth=1,
                position=number,
                intent="",
                action=self.searching.action(query),
                outcome=outcome,
                verdict=Verdict.NEW,
            )
            for number, (query, outcome) in enumerate(zip(queries, outcomes, strict=True))
            if outcome.failure is None
        ]
        groups = divided(documents_of(nodes), characters=MAX_RESULT_CHARS, most=MAX_RESULTS)
        return groups[0] if groups else ()


def _searches(tool: Tool) -> bool:
    return (
        not tool.stateful and tool.hints.read_only is True and tool.input_schema.get("required") == ["query"]
    )


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
