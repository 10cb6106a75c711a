"""Episodes of a single agent with native tool calls."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.engine import EpisodeEnded, OpenEpisode, TimedResult, card_of, is_repeatable, turn_of
from agentflow.errors import ErrorKind
from agentflow.models import Call, Message, Model, TextPart, ToolCall, ToolReply, ToolSpec, reply_of
from agentflow.sandbox import Sandbox, Tool
from agentflow.team._executor import call_tool
from agentflow.team._rendering import (
    card_notes,
    episode_images,
    fair_limit,
    image_parts,
    prompt,
    result_text,
    system,
    visible_images,
)
from agentflow.telemetry import mark_spans
from agentflow.trace import (
    Action,
    ActionOutcome,
    BlobStore,
    Ending,
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


@dataclass(frozen=True)
class ToolAgent:
    """A single model that works on tasks with native tool calls. Implements `agentflow.engine.EpisodeAgent`.

    The model is called at most `max_turns` times, the last time without tools. Each tool call is a turn of the episode.
    See docs/team.md.
    """

    model: Model
    """The model."""
    blobs: BlobStore
    """Store of images."""

    @property
    def name(self) -> str:
        """Kind of the agent."""
        return "single"

    def begin(self, episode: OpenEpisode) -> "ToolWork":
        """Begin an episode."""
        return ToolWork(self, episode)

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        """Call a tool."""
        return await call_tool(sandbox, action, self.blobs)


class ToolWork:
    """The agent's side of one episode."""

    def __init__(self, agent: ToolAgent, episode: OpenEpisode) -> None:
        settings, tools, task = episode.settings, episode.tools, episode.task
        self._agent = agent
        self._episode = episode
        # With one turn, no tool can be called: the model needs no template and parser for them.
        shown = tools.values() if settings.max_turns > 1 else ()
        self._specs = tuple(_spec(tool, task, tools) for tool in shown)
        self._history: list[tuple[AgentAnswer, list[Turn]]] = []
        self._texts: dict[int, str] = {}
        self._system = system(prompt("agent_answer", "system", instructions=settings.instructions))
        self._begin = TextPart(prompt("agent_answer", "begin", question=task.question))
        self._reply: Reply[AgentAnswer] | None = None

    async def work(self) -> Ending:
        """Call the model until it answers or only the last turn is left."""
        for number in range(1, self._episode.settings.max_turns if self._episode.tools else 1):
            ask = partial(self._ask, may_call=True)
            reply = await self._episode.ask(f"{number}/agent", "agent", AgentAnswer, ask)
            if reply.value is None:
                raise EpisodeEnded(Ending.FAILED)
            if not reply.value.calls:
                self._reply = reply
                return Ending.ANSWERED
            await self._call(number, reply.value, reply.reasoning)
        return Ending.TURNS if self._history else Ending.ANSWERED

    async def answer(self) -> Reply[Solution]:
        """Return the model's answer; ask for it without tools if there is none yet."""
        reply = self._reply
        if reply is None:
            ask = partial(self._ask, may_call=False)
            reply = await self._episode.answer("solution", "agent", AgentAnswer, ask)
        if reply.value is None:
            return Reply(failure=reply.failure)
        if not (text := reply.value.text.strip()):
            return Reply(failure=Failure(ErrorKind.FAILED, "the agent gave an empty answer"))
        return Reply(Solution("", text), failure=reply.failure)

    async def _ask(self, *, may_call: bool) -> Reply[AgentAnswer]:
        call = Call(
            role="agent",
            messages=await self._messages(last=not may_call),
            reply=str,
            tools=self._specs,
            may_call=may_call,
        )
        return await reply_of(self._agent.model, call, lambda done: AgentAnswer(done.text, done.calls))

    async def _call(self, number: int, answer: AgentAnswer, reasoning: str) -> None:
        """Make the requested calls, repeatable ones concurrently and the others in order; add a turn for each.

        :raises EpisodeEnded: if the episode's turns end first; calls that were not made become failed turns.
        """
        episode = self._episode
        before, began = len(episode.turns), episode.seconds
        done: dict[int, TimedResult[ActionOutcome]] = {}
        prepared = [self._prepared(call) for call in answer.calls]

        async def run(index: int, action: Action) -> None:
            with mark_spans(call=answer.calls[index].id):
                done[index] = await episode.act(f"{number}/act/{index}", before + index + 1, action)

        try:
            actions = [
                (index, action)
                for index, (action, failure) in enumerate(prepared)
                if action is not None and failure is None
            ]
            for group in _concurrent_groups(
                actions, lambda action: is_repeatable(episode.tools[action.tool])
            ):
                await together([partial(run, index, action) for index, action in group])
        finally:
            # In the order of the calls, regardless of the order in which they ended.
            for index, (call, (action, failure)) in enumerate(zip(answer.calls, prepared, strict=True)):
                not_run = ActionOutcome(Observation(), failure or _NOT_RUN)
                timed = done.get(index) or TimedResult(not_run, began)
                episode.count_tool(f"{number}/act/{index}", timed)
                step = NextStep(answer.text, "", "", call.name)
                whole = turn_of(before + index + 1, step, action, timed.value, "", timed.seconds)
                self._texts[whole.number] = timed.value.observation.text
                shown = self._shown(whole, episode.settings.max_observation_chars)
                episode.turns.append(replace(whole, result=shown, reasoning="" if index else reasoning))
            self._history.append((answer, episode.turns[before:]))

    def _shown(self, turn: Turn, limit: int) -> str:
        """Return the result of a turn in at most so many characters, beside the reason of a failed call."""
        text, question = self._texts[turn.number], self._episode.task.question
        return result_text(text, limit, question, turn.action, turn.step.justification, failure=turn.failure)

    def _prepared(self, call: ToolCall) -> tuple[Action | None, Failure | None]:
        """Return the action of a call, and the reason if it cannot be made."""
        if call.arguments is not None or call.name not in self._episode.tools:
            return self._episode.bind(call.name, call.arguments or {})
        why = f"the arguments are not a JSON object: {call.raw_arguments[:SHORT_RESULT_CHARS]}"
        return None, Failure(ErrorKind.BAD_ARGUMENTS, why)

    async def _messages(self, *, last: bool) -> tuple[Message, ...]:
        """Return the conversation; if the results together are too long, windows of the older ones are shown."""
        task, turns = self._episode.task, self._episode.turns
        images = episode_images(task.images, turns)
        visible = await visible_images(self._agent.model, images, self._agent.blobs)
        messages = [self._system, Message("user", (self._begin, *image_parts(task.images, visible)))]
        limits = _limits(turns, self._episode.settings.memory_chars)
        for answer, answer_turns in self._history:
            messages.append(
                Message("assistant", (*([TextPart(answer.text)] if answer.text else []), *answer.calls))
            )
            replies: list[ToolReply] = []
            for call, turn in zip(answer.calls, answer_turns, strict=True):
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
