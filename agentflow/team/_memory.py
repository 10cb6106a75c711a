"""What an episode knows: every turn is kept, the oldest ones are shown in short where it gets too long."""

from collections.abc import Awaitable, Callable
from functools import partial

from msgspec.structs import replace

from agentflow.team._ledger import Ledger
from agentflow.team._rendering import called, cut
from agentflow.team._task_messages import turn_size
from agentflow.trajectory import Decision, Memory, Reply, Summary, SummaryRequest, Turn, Words

__all__ = ["Notebook"]

_PLAIN = Words()


class Notebook:
    """The memory of one episode."""

    def __init__(
        self,
        question: str,
        ledger: Ledger,
        summarise: Callable[[SummaryRequest], Awaitable[Reply[Summary]]],
        *,
        longest: int,
    ) -> None:
        """Begin with nothing.

        :param longest: how many characters of it roles are shown.
        """
        self.turns: list[Turn] = []
        """All turns, as they were."""
        self._question = question
        self._ledger = ledger
        self._summarise = summarise
        self._longest = longest
        self._summary = ""
        self._summarised = 0

    @property
    def shown(self) -> Memory:
        """What roles are shown of it."""
        kept = tuple(self.turns[self._summarised :])
        return Memory(summary=self._summary, summarised=self._summarised, turns=kept)

    def decide(self, decision: Decision, said: Words = _PLAIN) -> None:
        """The last turn was verified.

        :param said: in these words.
        """
        self.turns[-1] = replace(self.turns[-1], decision=decision, decided=said)

    async def shorten(self) -> None:
        """Put the oldest turns in short, if it got too long: so many that it is half as long as it may be.

        :raises Over: if the episode's turns end before that.
        """
        sizes = [turn_size(turn) for turn in self.turns[self._summarised :]]
        if len(self._summary) + sum(sizes) <= self._longest:
            return
        room, kept = self._longest // 2 - sizes[-1], 1
        while kept < len(sizes) and (room := room - sizes[-kept - 1]) >= 0:
            kept += 1
        oldest = tuple(self.turns[self._summarised : len(self.turns) - kept])
        if not oldest:
            return
        request = SummaryRequest(question=self._question, summary=self._summary, turns=oldest)
        key = f"summary/{len(self.turns)}"
        reply = await self._ledger.ask(key, "generator", Summary, partial(self._summarise, request))
        told = _in_lines(self._summary, oldest) if reply.value is None else reply.value.summary
        self._summary = cut(told, self._longest // 4)
        self._summarised = len(self.turns) - kept


def _in_lines(summary: str, turns: tuple[Turn, ...]) -> str:
    """In short without a model: what was called, and how it began."""
    lines = [f"{turn.number}. {called(turn.action) if turn.action else '-'}: {turn.result}" for turn in turns]
    return "\n".join([summary, *(cut(" ".join(line.split()), 300) for line in lines)]).strip()
