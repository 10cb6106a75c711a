"""Search for alternative answers with a tool of the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from agentflow.growth import ExecutorPort
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, Tool
from agentflow.trajectory import Action, ActionOutcome

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
