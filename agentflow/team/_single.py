"""An episode of one agent that calls tools by itself."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from agentflow.actors import SYSTEM_CLOCK, Clock, together
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.journal import Page
from agentflow.models import Call, Message, Model, Prices, Text, ToolCall, ToolReply, ToolSpec
from agentflow.sandbox import Sandbox, Tool
from agentflow.team._asking import ReadBlob, reply_of, seen_by
from agentflow.team._cards import card_of, fixed_arguments
from agentflow.team._executor import Deed, PutBlob, carry_out
from agentflow.team._ledger import Ledger, Over, Stamped, Through
from agentflow.team._prompts import prompt
from agentflow.team._rendering import card_notes, cut, pictured, system
from agentflow.team._settings import EpisodeSettings
from agentflow.team._solving import turn_of
from agentflow.team._tool_replay import Hands
from agentflow.trajectory import (
    Action,
    Ending,
    Episode,
    Failure,
    NextStep,
    Observation,
    Outcome,
    Reply,
    Solution,
    Task,
    Turn,
)

__all__ = ["solve_alone"]

SHORT = 200
"""Characters that are left of an old result where all of them together got too long."""


_LATE = Failure(ErrorKind.CANCELLED, "not done: the episode ended before")


class Said(Struct, frozen=True):
    """What the agent said."""

    text: str
    """In words."""
    calls: tuple[ToolCall, ...] = ()
    """Tools that it wants called."""


async def solve_alone(
    task: Task,
    *,
    model: Model,
    sandbox: Sandbox,
    tools: Sequence[Tool],
    page: Page,
    settings: EpisodeSettings,
    put_blob: PutBlob,
    blob: ReadBlob,
    prices: Prices | None = None,
    through: Through | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Episode:
    """Have one model work on a task, with tools that it calls by itself. See `solve_task`.

    It is asked `max_turns` times at most, and the last time it has to answer. Each of its calls is a turn of the episode.

    :param put_blob: keeps a picture.
    :param blob: gives it back, for a model that sees.
    """
    by_role = None if prices is None else {"agent": prices}
    ledger = Ledger(page, settings, prices=by_role, through=through, clock=clock)

    async def act(sandbox: Sandbox, action: Action) -> Outcome:
        return await carry_out(Deed(sandbox, action), put_blob, clock)

    own = {tool.name: tool for tool in tools}
    hands = Hands(sandbox, own, act, page)
    return await _Alone(task, model, own, hands, ledger, settings, blob).solve()


class _Alone:
    """One episode while it goes on."""

    def __init__(
        self,
        task: Task,
        model: Model,
        tools: dict[str, Tool],
        hands: Hands,
        ledger: Ledger,
        settings: EpisodeSettings,
        blob: ReadBlob,
    ) -> None:
        self._task = task
        self._model = model
        self._tools = tools
        self._hands = hands
        self._ledger = ledger
        self._settings = settings
        self._blob = blob
        self._specs = tuple(_spec(tool, task) for tool in tools.values())
        self._said: list[tuple[Said, list[Turn]]] = []
        self._system = system(prompt("agent", "system", instructions=settings.instructions))
        self._begin = Text(prompt("agent", "begin", question=task.question))

    async def solve(self) -> Episode:
        try:
            reply, ending = await self._work()
        except Over as over:
            await self._ledger.close(over.ending)
            ending = over.ending
            reply = await self._last()
        said = reply.value
        failure = reply.failure
        if said is not None and not said.text.strip():
            failure = Failure(ErrorKind.FAILED, "the agent said nothing when it was to answer")
        solution = None if said is None or failure is not None else Solution("", said.text.strip())
        return Episode(
            task=self._task,
            agent="single",
            ending=Ending.FAILED if solution is None and ending is not Ending.TIME else ending,
            turns=self._turns,
            solution=solution,
            failure=failure,
            exchanges=tuple(self._ledger.exchanges),
            seconds=self._ledger.seconds,
            diverged=self._hands.diverged,
        )

    @property
    def _turns(self) -> tuple[Turn, ...]:
        return tuple(turn for _, turns in self._said for turn in turns)

    async def _work(self) -> tuple[Reply[Said], Ending]:
        """Until it answers, or all turns but the last are used."""
        for number in range(1, self._settings.max_turns if self._tools else 1):
            ask = partial(self._ask, may_call=True)
            reply = await self._ledger.ask(f"{number}/agent", "agent", Said, ask)
            if reply.value is None:
                raise Over(Ending.FAILED)
            if not reply.value.calls:
                return reply, Ending.ANSWERED
            turns: list[Turn] = []
            self._said.append((reply.value, turns))
            await self._call(number, reply.value, turns)
        return await self._last(), Ending.TURNS if self._said else Ending.ANSWERED

    async def _last(self) -> Reply[Said]:
        return await self._ledger.answer("solution", "agent", Said, partial(self._ask, may_call=False))

    async def _ask(self, *, may_call: bool) -> Reply[Said]:
        call = Call(
            role="agent",
            messages=await self._messages(last=not may_call),
            reply=str,
            tools=self._specs,
            may_call=may_call,
        )
        return await reply_of(self._model, call, lambda done: Said(done.text, done.calls))

    async def _call(self, number: int, said: Said, turns: list[Turn]) -> None:
        """Do all that it wants done: what does no harm at once, the rest one after the other; a turn for each, in order.

        :raises Over: if the episode's turns end before that; what was not done says so.
        """
        before, began = len(self._turns), self._ledger.seconds
        done: dict[int, Stamped[Outcome]] = {}
        prepared = [self._prepared(call) for call in said.calls]

        async def do(index: int, action: Action) -> None:
            key = f"{number}/act/{index}"
            now = key not in self._ledger.page
            done[index] = await self._ledger.once(key, Outcome, partial(self._hands.act, action))
            self._hands.remember(before + index + 1, action, done[index].value, now=now)

        try:
            actions = [
                (index, action)
                for index, (action, failure) in enumerate(prepared)
                if action is not None and failure is None
            ]
            for group in _groups(actions, self._harmless):
                await together([partial(do, index, action) for index, action in group])
        finally:
            # In the order of the calls, whichever ended first.
            for index, (call, (action, failure)) in enumerate(zip(said.calls, prepared, strict=True)):
                undone = Outcome(Observation(), failure or _LATE)
                stamped = done.get(index) or Stamped(undone, began)
                self._ledger.used(f"{number}/act/{index}", stamped)
                step = NextStep(said.text, "", "", call.name)
                turns.append(turn_of(before + index + 1, step, action, stamped.value, stamped.seconds))

    def _prepared(self, call: ToolCall) -> tuple[Action | None, Failure | None]:
        """What the call means, and why it can't be made, if it can't."""
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools)
            why = f"there is no tool {call.name!r}; there are: {known}"
            return None, Failure(ErrorKind.TOOL_NOT_FOUND, why)
        if call.arguments is None:
            why = f"the arguments are no JSON object: {call.raw_arguments[:SHORT]}"
            return None, Failure(ErrorKind.BAD_ARGUMENTS, why)
        action = Action(tool.name, {**call.arguments, **fixed_arguments(tool, self._task.kwargs)})
        try:
            tool.bind(action.arguments)
        except ToolFailure as failure:
            return action, Failure(failure.kind, failure.message)
        return action, None

    def _harmless(self, action: Action) -> bool:
        hints = self._tools[action.tool].hints
        return hints.read_only or hints.idempotent

    async def _messages(self, *, last: bool) -> tuple[Message, ...]:
        """The conversation. Where the results got too long together, the oldest ones are shown in short."""
        images = [*self._task.images, *(blob for turn in self._turns for blob in turn.images)]
        pictures = await seen_by(self._model, images, self._blob)
        messages = [self._system, Message("user", (self._begin, *pictured(self._task.images, pictures)))]
        short = _too_old(self._turns, self._settings.memory_chars)
        for said, turns in self._said:
            messages.append(Message("assistant", (*([Text(said.text)] if said.text else []), *said.calls)))
            replies: list[ToolReply] = []
            for call, turn in zip(said.calls, turns, strict=True):
                text = cut(turn.result, SHORT) if turn.number in short else turn.result
                shown = pictured(turn.images, pictures)
                parts = (Text(text), *(part for part in shown if not isinstance(part, ToolCall | ToolReply)))
                replies.append(ToolReply(call.id, call.name, parts, failed=turn.failure is not None))
            messages.append(Message("user", tuple(replies)))
        if last and self._said:
            messages[-1] = Message("user", (*messages[-1].parts, Text(prompt("agent", "last"))))
        return tuple(messages)


def _spec(tool: Tool, task: Task) -> ToolSpec:
    card = card_of(tool, task.kwargs)
    return ToolSpec(card.name, f"{card.description}{card_notes(card)}", card.schema)


def _too_old(turns: Sequence[Turn], longest: int) -> frozenset[int]:
    """The turns that are shown in short. So many at once that what was shown before is seldom shown otherwise."""
    short: set[int] = set()
    total = 0
    for position, turn in enumerate(turns):
        total += len(turn.result)
        if total > longest:
            for older in turns[:position]:
                if total <= longest // 2:
                    break
                if older.number not in short and len(older.result) > 2 * SHORT:
                    short.add(older.number)
                    total -= len(older.result) - SHORT
    return frozenset(short)


def _groups(
    actions: Sequence[tuple[int, Action]], harmless: Callable[[Action], bool]
) -> Iterator[list[tuple[int, Action]]]:
    """Actions that may be done at once, group after group."""
    group: list[tuple[int, Action]] = []
    for index, action in actions:
        if harmless(action):
            group.append((index, action))
            continue
        if group:
            yield group
        yield [(index, action)]
        group = []
    if group:
        yield group
