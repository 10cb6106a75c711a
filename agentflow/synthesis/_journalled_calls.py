"""Model calls and searches of a seed: each is made once, counted, and kept on the journal page."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from agentflow.journal import Page
from agentflow.trajectory import Failure, Reply, Usage

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
