"""Episodes of a single agent with native tool calls."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import SYSTEM_CLOCK, Clock, together
from agentflow.errors import ErrorKind
from agentflow.journal import Page
from agentflow.models import Call, Message, Model, Prices, TextPart, ToolCall, ToolReply, ToolSpec, reply_of
from agentflow.sandbox import Sandbox, Tool
from agentflow.team._executor import PutBlob, call_tool
from agentflow.team._ledger import (
    EpisodeEnded,
    EpisodeLedger,
    EpisodeSettings,
    Prepare,
    TimedResult,
    ToolReplay,
)
from agentflow.team._model_calls import ReadBlob, visible_images
from agentflow.team._observations import fair_limit, result_text
from agentflow.team._pool import EffectGate
from agentflow.team._rendering import card_notes, episode_images, image_parts, prompt, system
from agentflow.team._schemas import card_of
from agentflow.team._solving import bind_action, no_such_tool, turn_of
from agentflow.telemetry import mark_spans
from agentflow.trace import (
    Action,
    ActionOutcome,
    Ending,
    Episode,
    Failure,
    NextStep,
    Observation,
    Reply,
    Solution,
    Task,
    Turn,
)

SHORT_RESULT_CHARS = 200
"""Characters that are shown of arguments that are no JSON object."""
_SHORTENED_SHARE = 2 / 3
"""Share of the memory that is filled after results were shortened: it leaves room for more results."""

_NOT_RUN = Failure(ErrorKind.CANCELLED, "not run: the episode ended first")


class AgentAnswer(Struct, frozen=True):
    """Answer of the agent to one model call."""

    text: str
    """Text."""
    calls: tuple[ToolCall, ...] = ()
    """Requested calls of tools."""


@dataclass(frozen=True, kw_only=True)
class ToolAgent:
    """A single model that works on tasks with native tool calls. Implements `EpisodeAgent`. See docs/team.md.

    The model is called at most `max_turns` times, the last time without tools. Each tool call is a turn of the episode.
    """

    model: Model
    """The model."""
    tools: Sequence[Tool]
    """Available tools."""
    settings: EpisodeSettings
    """Limits of an episode."""
    put_blob: PutBlob
    """Stores images."""
    blob: ReadBlob
    """Reads images for a model with vision."""
    prices: Prices | None = None
    """Prices of the model, for `max_cost`."""
    gate: EffectGate | None = None
    """Gate for every call of a model or tool; without one they run immediately."""
    clock: Clock = SYSTEM_CLOCK
    """Clock of the time limit."""

    async def solve(
        self, task: Task, sandbox: Sandbox, page: Page, prepare: Prepare | None = None
    ) -> Episode:
        """Work on a task; see `EpisodeAgent`."""
        prices = None if self.prices is None else {"agent": self.prices}
        ledger = EpisodeLedger(page, self.settings, prices=prices, gate=self.gate, clock=self.clock)
        return await _AgentEpisode(self, task, sandbox, ledger, prepare).solve()

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        """Call a tool."""
        return await call_tool(sandbox, action, self.put_blob, self.clock)


class _AgentEpisode:
    """An episode in progress."""

    def __init__(
        self,
        agent: ToolAgent,
        task: Task,
        sandbox: Sandbox,
        ledger: EpisodeLedger,
        prepare: Prepare | None,
    ) -> None:
        tools, settings = {tool.name: tool for tool in agent.tools}, agent.settings
        self._task = task
        self._model = agent.model
        self._tools = tools
        self._replay = ToolReplay(sandbox, tools, agent.act, ledger.page, prepare)
        self._ledger = ledger
        self._settings = settings
        self._read_blob = agent.blob
        # With one turn, no tool can be called: the model needs no template and parser for them.
        shown = tools.values() if settings.max_turns > 1 else ()
        self._specs = tuple(_spec(tool, task, tools) for tool in shown)
        self._history: list[tuple[AgentAnswer, list[Turn]]] = []
        self._texts: dict[int, str] = {}
        self._system = system(prompt("agent_answer", "system", instructions=settings.instructions))
        self._begin = TextPart(prompt("agent_answer", "begin", question=task.question))

    async def solve(self) -> Episode:
        try:
            reply, ending = await self._work()
        except EpisodeEnded as ended:
            await self._ledger.close(ended.ending)
            ending = ended.ending
            reply = await self._last()
        answer = reply.value
        failure = reply.failure
        if answer is not None and not answer.text.strip():
            failure = Failure(ErrorKind.FAILED, "the agent gave an empty answer")
        solution = None if answer is None or failure is not None else Solution("", answer.text.strip())
        return Episode(
            task=self._task,
            agent="single",
            ending=Ending.FAILED if solution is None and ending is not Ending.TIME else ending,
            turns=self._turns,
            solution=solution,
            failure=failure,
            exchanges=tuple(self._ledger.exchanges),
            seconds=self._ledger.seconds,
            diverged=self._replay.diverged,
        )

    @property
    def _turns(self) -> tuple[Turn, ...]:
        return tuple(turn for _, turns in self._history for turn in turns)

    async def _work(self) -> tuple[Reply[AgentAnswer], Ending]:
        """Call the model until it answers or only the last turn is left."""
        for number in range(1, self._settings.max_turns if self._tools else 1):
            ask = partial(self._ask, may_call=True)
            reply = await self._ledger.ask(f"{number}/agent", "agent", AgentAnswer, ask)
            if reply.value is None:
                raise EpisodeEnded(Ending.FAILED)
            if not reply.value.calls:
                return reply, Ending.ANSWERED
            turns: list[Turn] = []
            self._history.append((reply.value, turns))
            await self._call(number, reply.value, turns)
            turns[0] = replace(turns[0], reasoning=reply.reasoning)
        return await self._last(), Ending.TURNS if self._history else Ending.ANSWERED

    async def _last(self) -> Reply[AgentAnswer]:
        return await self._ledger.answer("solution", "agent", AgentAnswer, partial(self._ask, may_call=False))

    async def _ask(self, *, may_call: bool) -> Reply[AgentAnswer]:
        call = Call(
            role="agent",
            messages=await self._messages(last=not may_call),
            reply=str,
            tools=self._specs,
            may_call=may_call,
        )
        return await reply_of(self._model, call, lambda done: AgentAnswer(done.text, done.calls))

    async def _call(self, number: int, answer: AgentAnswer, turns: list[Turn]) -> None:
        """Make the requested calls, repeatable ones concurrently and the others in order; add a turn for each.

        :raises EpisodeEnded: if the episode's turns end first; calls that were not made become failed turns.
        """
        before, began = len(self._turns), self._ledger.seconds
        done: dict[int, TimedResult[ActionOutcome]] = {}
        prepared = [self._prepared(call) for call in answer.calls]

        async def run(index: int, action: Action) -> None:
            key = f"{number}/act/{index}"
            current = key not in self._ledger.page
            with mark_spans(call=answer.calls[index].id):
                done[index] = await self._ledger.once(key, ActionOutcome, partial(self._replay.act, action))
            self._replay.add(before + index + 1, action, done[index].value, current=current)

        try:
            actions = [
                (index, action)
                for index, (action, failure) in enumerate(prepared)
                if action is not None and failure is None
            ]
            for group in _concurrent_groups(actions, self._is_repeatable):
                await together([partial(run, index, action) for index, action in group])
        finally:
            # In the order of the calls, regardless of the order in which they ended.
            for index, (call, (action, failure)) in enumerate(zip(answer.calls, prepared, strict=True)):
                not_run = ActionOutcome(Observation(), failure or _NOT_RUN)
                timed = done.get(index) or TimedResult(not_run, began)
                self._ledger.count_tool(f"{number}/act/{index}", timed)
                step = NextStep(answer.text, "", "", call.name)
                whole = turn_of(before + index + 1, step, action, timed.value, "", timed.seconds)
                self._texts[whole.number] = timed.value.observation.text
                shown = self._shown(whole, self._settings.max_observation_chars)
                turns.append(replace(whole, result=shown))

    def _shown(self, turn: Turn, limit: int) -> str:
        """Return the result of a turn in at most so many characters, beside the reason of a failed call."""
        text = self._texts[turn.number]
        goal = turn.step.justification
        return result_text(text, limit, self._task.question, turn.action, goal, failure=turn.failure)

    def _prepared(self, call: ToolCall) -> tuple[Action | None, Failure | None]:
        """Return the action of a call, and the reason if it cannot be made."""
        tool = self._tools.get(call.name)
        if tool is None:
            return None, no_such_tool(call.name, self._tools)
        if call.arguments is None:
            why = f"the arguments are not a JSON object: {call.raw_arguments[:SHORT_RESULT_CHARS]}"
            return None, Failure(ErrorKind.BAD_ARGUMENTS, why)
        return bind_action(tool, call.arguments, self._task)

    def _is_repeatable(self, action: Action) -> bool:
        hints = self._tools[action.tool].hints
        return hints.read_only or hints.idempotent

    async def _messages(self, *, last: bool) -> tuple[Message, ...]:
        """Return the conversation; if the results together are too long, windows of the older ones are shown."""
        images = episode_images(self._task.images, self._turns)
        visible = await visible_images(self._model, images, self._read_blob)
        messages = [self._system, Message("user", (self._begin, *image_parts(self._task.images, visible)))]
        limits = _limits(self._turns, self._settings.memory_chars)
        for answer, turns in self._history:
            messages.append(
                Message("assistant", (*([TextPart(answer.text)] if answer.text else []), *answer.calls))
            )
            replies: list[ToolReply] = []
            for call, turn in zip(answer.calls, turns, strict=True):
                text = turn.result
                if limits[turn.number] < len(text):
                    text = self._shown(turn, limits[turn.number])
                parts = (TextPart(text), *image_parts(turn.images, visible))
                replies.append(ToolReply(call.id, call.name, parts, failed=turn.failure is not None))
            messages.append(Message("user", tuple(replies)))
        if last and self._history:
            messages[-1] = Message("user", (*messages[-1].parts, TextPart(prompt("agent_answer", "last"))))
        return tuple(messages)


def _spec(tool: Tool, task: Task, offered: Collection[str]) -> ToolSpec:
    card = card_of(tool, task.kwargs, offered)
    return ToolSpec(card.name, f"{card.description}{card_notes(card)}", card.schema)


def _limits(turns: Sequence[Turn], max_chars: int) -> dict[int, int]:
    """Return the number of characters to show of each result, by turn.

    When results do not fit any more, all but the newest are shortened to one length. Room is left for more results, so that
    the prompt prefix rarely changes. A result that was shortened never becomes longer.
    """
    limits: dict[int, int] = {}
    for turn in turns:
        limits[turn.number] = len(turn.result)
        if sum(limits.values()) > max_chars:
            *older, newest = limits.values()
            room = int(max_chars * _SHORTENED_SHARE) - newest
            limit = fair_limit(older, max(room, len(older) * SHORT_RESULT_CHARS))
            limits = {
                number: min(length, limit) if number != turn.number else length
                for number, length in limits.items()
            }
    return limits


def _concurrent_groups(
    actions: Sequence[tuple[int, Action]], is_repeatable: Callable[[Action], bool]
) -> Iterator[list[tuple[int, Action]]]:
    """Split actions into groups that may run concurrently."""
    for repeatable, group in groupby(actions, lambda numbered: is_repeatable(numbered[1])):
        if repeatable:
            yield list(group)
        else:
            yield from ([numbered] for numbered in group)
