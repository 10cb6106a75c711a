"""Model calls and searches of a seed: each is made once, counted, and kept on the journal page."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec import Struct

from agentflow.growth import ExecutorPort
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, Tool
from agentflow.trajectory import Action, ActionOutcome, Failure, Reply, Usage

MAX_RESULT_CHARS = 8_000
"""Characters of the results that a reader is shown."""


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
        assert self._tool is not None  # there is no `PageSearch` otherwise
        return await self._executor.act(self._sandbox, Action(self._tool, {"query": question}))


@dataclass(frozen=True)
class PageSearch:
    """Search of one seed."""

    searching: AlternativeSearch
    page: Page

    async def search(self, key: str, question: str) -> str:
        """Return the text of the results; empty if the search failed."""
        outcome = await self.page.once(key, ActionOutcome, partial(self.searching.act, question))
        return outcome.observation.text[:MAX_RESULT_CHARS]


def _searches(tool: Tool) -> bool:
    return (
        not tool.stateful and tool.hints.read_only is True and tool.input_schema.get("required") == ["query"]
    )


T = TypeVar("T")

MODEL_CALLS = frozenset({"plan", "node", "facts", "aliases", "word", "look", "translate", "read", "recall"})
"""First parts of the keys of model calls."""


class JournalledCalls:
    """Makes calls whose results are kept on a page: after a crash, none is repeated."""

    def __init__(self, page: Page) -> None:
        """Count calls of a page."""
        self.page = page
        """The page."""
        self.usage: dict[str, Usage] = {}
        """Usage of models by role."""

    async def ask(
        self, key: str, kind: type[Reply[T]], role: str, call: Callable[[], Awaitable[Reply[T]]]
    ) -> T | None:
        """Return the answer to a model call; `None` if it failed."""
        reply = await self.page.once(key, kind, call)
        self.count(role, reply.usage)
        return reply.value

    def count(self, role: str, usage: Usage) -> None:
        """Count the usage of a role."""
        self.usage[role] = self.usage.get(role, Usage()) + usage

    def failures(self) -> dict[str, int]:
        """Count the failed model calls on the page, by kind; those of growing, too."""
        kinds: Counter[str] = Counter()
        for key in tuple(self.page.keys()):
            if key.partition("/")[0] in MODEL_CALLS:
                reply = self.page.recall(key, _Failed)
                if reply is not None and reply.failure is not None:
                    kinds[reply.failure.kind] += 1
        return dict(sorted(kinds.items()))


class _Failed(Struct, frozen=True):
    """Failure of a reply of any type."""

    failure: Failure | None = None
