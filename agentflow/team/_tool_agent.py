"""Episodes of a single agent with native tool calls."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final, cast

from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.engine import (
    EpisodeAgent,
    EpisodeEnded,
    OpenEpisode,
    TimedResult,
    card_of,
    is_repeatable,
    turn_of,
)
from agentflow.errors import ConfigurationError, ErrorKind, ModelFailureKind
from agentflow.models import (
    Call,
    ImagePart,
    Message,
    Model,
    TextPart,
    ToolCall,
    ToolReply,
    ToolSpec,
    reply_of,
)
from agentflow.sandbox import Sandbox, Tool
from agentflow.settings import import_object
from agentflow.team._executor import call_tool
from agentflow.team._rendering import (
    NO_STEP,
    card_notes,
    cut,
    fair_limit,
    image_parts,
    json_text,
    listed_turns,
    prompt,
    repeated,
    result_text,
    system,
    unusable_text,
    user,
    visible_images,
)
from agentflow.telemetry import mark_spans
from agentflow.trace import (
    Action,
    ActionOutcome,
    Blob,
    BlobStore,
    Ending,
    Failure,
    NextStep,
    Observation,
    Reply,
    Solution,
    Task,
    Turn,
    Usage,
)

_QUOTED_CHARS = 200
"""Characters that are shown of arguments that are no JSON object."""
_SHORT_RESULT_CHARS = 200
"""Characters that are shown of each result, however many an answer has."""

_CHARS_PER_TOKEN: Final = 4.0
"""Estimate until the endpoint has reported the tokens of a prompt."""
_MIN_CHARS: Final = 1_000
"""Room for the results of one answer, and for a summary, even if the budget is smaller."""

_NOT_RUN = Failure(ErrorKind.CANCELLED, "not run: the episode ended first")


class AgentAnswer(Struct, frozen=True):
    """Answer of the agent to one model call."""

    text: str
    """Text."""
    calls: tuple[ToolCall, ...] = ()
    """Requested calls of tools."""


class ConversationStep(Struct, frozen=True):
    """An answer of the agent with the message that follows it."""

    answer: Message
    """The answer."""
    results: Message
    """Results of its calls."""
    turns: tuple[Turn, ...]
    """Its turns."""
    chars: int
    """Characters of both messages."""


class Conversation:
    """Messages of one episode. A message that was sent is the same in every later prompt, up to a compaction.

    The tokens of a prompt are estimated from its characters, in the ratio that the endpoint reported for the previous one.
    """

    def __init__(self, tools: Sequence[ToolSpec], max_tokens: int) -> None:
        """:param max_tokens: tokens of a prompt beyond which its oldest part is replaced by a summary."""
        self._head: tuple[Message, ...] = ()
        self._tools_chars = sum(len(json_text(tool)) for tool in tools)
        self._max_tokens: float = max_tokens
        self._chars_per_token = _CHARS_PER_TOKEN
        self._steps: list[ConversationStep] = []
        self._summarised = 0
        self.summary = ""
        """Summary of the part that was replaced; empty if there is none."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The next prompt."""
        return self._prompt(self._steps)

    @property
    def is_too_long(self) -> bool:
        """The next prompt exceeds the budget."""
        return self._chars > self._max_tokens * self._chars_per_token

    @property
    def result_chars(self) -> int:
        """Maximum characters of the results of one answer: half of the budget."""
        return max(_MIN_CHARS, int(self._max_tokens * self._chars_per_token / 2))

    def begin(self, *head: Message) -> None:
        """Set the messages at its beginning, of which the last one is the task."""
        self._head = head

    def add(self, answer: Message, results: Message, turns: Sequence[Turn]) -> None:
        """Add an answer, the results of its calls, and its turns."""
        self._steps.append(ConversationStep(answer, results, tuple(turns), _chars((answer, results))))

    def count(self, usage: Usage) -> None:
        """Record how many tokens the endpoint counted in the prompt."""
        if usage.prompt_tokens > 0 and usage.calls > 0:
            self._chars_per_token = self._chars * usage.calls / usage.prompt_tokens

    def lower_budget(self) -> None:
        """Lower the budget to three quarters of the prompt, which the endpoint refused as too long."""
        self._max_tokens = min(self._max_tokens, self._chars / self._chars_per_token * 3 / 4)

    def oldest(self) -> Sequence[ConversationStep]:
        """Return the part to replace so that half of the budget is free; the newest results always stay."""
        if not self._steps:
            return ()
        sizes = [step.chars for step in self._steps]
        head = self._chars - sum(sizes)
        room, kept = self._max_tokens * self._chars_per_token / 2 - head - sizes[-1], 1
        while kept < len(sizes) and (room := room - sizes[-kept - 1]) >= 0:
            kept += 1
        return self._steps[: len(sizes) - kept]

    def compaction(self, oldest: Sequence[ConversationStep]) -> tuple[Message, ...]:
        """Return the prompt that asks for a summary: a prefix of what was sent, and the request."""
        return with_text(self._prompt(oldest), prompt("agent_answer", "compact"))

    def compact(self, oldest: Sequence[ConversationStep], summary: str) -> None:
        """Replace the oldest part by a summary, which includes the earlier one."""
        self.summary = cut(summary, self.result_chars // 2)
        self._summarised += sum(len(step.turns) for step in oldest)
        del self._steps[: len(oldest)]

    @property
    def _chars(self) -> int:
        head = self._tools_chars + _chars(self._prompt(()))
        return head + sum(step.chars for step in self._steps)

    def _prompt(self, steps: Sequence[ConversationStep]) -> tuple[Message, ...]:
        head = self._head
        if self._summarised:
            text = prompt("agent_answer", "summary", count=self._summarised, summary=self.summary)
            head = with_text(head, f"\n\n{text}")
        return (*head, *(message for step in steps for message in (step.answer, step.results)))


def with_text(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """Return a prompt with a text at the end of its last message."""
    *earlier, last = messages
    return (*earlier, Message(last.role, (*last.parts, TextPart(text))))


def _chars(messages: Iterable[Message]) -> int:
    total = 0
    for message in messages:
        for part in message.parts:
            match part:
                case TextPart():
                    total += len(part.text)
                case ToolCall():
                    total += len(part.name) + len(part.raw_arguments or json_text(part.arguments))
                case ToolReply():
                    total += sum(len(inner.text) for inner in part.parts if isinstance(inner, TextPart))
                case _:
                    continue
    return total


@dataclass(frozen=True)
class ToolAgent:
    """A single model that works on tasks with native tool calls. Implements `agentflow.engine.EpisodeAgent`.

    The model is called at most `max_turns` times, the last time without tools. Each tool call is a turn of the episode. A
    conversation that exceeds its budget of tokens is compacted. See docs/team.md.
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
        self._conversation = Conversation(self._specs, settings.context_tokens)
        self._unsent: tuple[Message, Sequence[Turn]] | None = None
        self._compactions = 0
        self._reply: Reply[AgentAnswer] | None = None

    async def work(self) -> Ending:
        """Call the model until it answers or only the last turn is left."""
        await self._begin()
        for number in range(1, self._episode.settings.max_turns if self._episode.tools else 1):
            reply = await self._next(f"{number}/agent")
            if reply.is_unusable:
                self._lose_turn(reply)
            elif reply.value is None:
                raise EpisodeEnded(Ending.FAILED)
            elif not reply.value.calls:
                self._reply = reply
                return Ending.ANSWERED
            else:
                await self._call(number, reply.value, reply)
        return Ending.TURNS if self._episode.turns else Ending.ANSWERED

    async def answer(self) -> Reply[Solution]:
        """Return the model's answer; ask for it without tools if there is none yet."""
        reply = self._reply or await self._next("solution", last=True)
        if reply.value is None:
            return Reply(failure=reply.failure)
        if not (text := reply.value.text.strip()):
            return Reply(failure=Failure(ErrorKind.FAILED, "the agent gave an empty answer"))
        return Reply(Solution("", text), failure=reply.failure)

    async def _begin(self) -> None:
        """Begin the conversation with the task."""
        task, settings = self._episode.task, self._episode.settings
        question = TextPart(prompt("agent_answer", "begin", question=task.question))
        self._conversation.begin(
            system(prompt("agent_answer", "system", instructions=settings.instructions)),
            Message("user", (question, *await self._pictures(task.images))),
        )

    async def _next(self, key: str, *, last: bool = False) -> Reply[AgentAnswer]:
        """Ask for the next answer. Compact the conversation if it exceeds its budget, or if the endpoint refuses its length."""
        conversation = self._conversation
        await self._add_results()
        if conversation.is_too_long:
            await self._compact(last=last)
        ask = self._episode.answer if last else self._episode.ask
        reply = await ask(key, "agent", AgentAnswer, partial(self._ask, last=last))
        if _is_refused(reply):
            conversation.lower_budget()
            if await self._compact(last=last):
                reply = await ask(f"{key}/again", "agent", AgentAnswer, partial(self._ask, last=last))
        conversation.count(reply.usage)
        return reply

    async def _compact(self, *, last: bool) -> bool:
        """Replace the oldest part of the conversation by a summary; return false if it holds only the newest results."""
        conversation = self._conversation
        if not (oldest := conversation.oldest()):
            return False
        self._compactions += 1
        call = self._call_of(conversation.compaction(oldest), may_call=False)
        ask = self._episode.answer if last else self._episode.ask
        summarise = partial(reply_of, self._agent.model, call, lambda done: done.text)
        reply = await ask(f"compaction/{self._compactions}", "agent", str, summarise, branches=False)
        turns = [turn for step in oldest for turn in step.turns]
        conversation.compact(oldest, reply.value or listed_turns(conversation.summary, turns))
        return True

    async def _ask(self, *, last: bool) -> Reply[AgentAnswer]:
        messages = self._conversation.messages
        if last and self._episode.turns:
            messages = with_text(messages, prompt("agent_answer", "last"))
        call = self._call_of(messages, may_call=not last)
        return await reply_of(self._agent.model, call, lambda done: AgentAnswer(done.text, done.calls))

    def _call_of(self, messages: tuple[Message, ...], *, may_call: bool) -> Call[str]:
        return Call(role="agent", messages=messages, reply=str, tools=self._specs, may_call=may_call)

    def _lose_turn(self, reply: Reply[AgentAnswer]) -> None:
        """Add a turn for an unusable answer: no action, and the reason as its result."""
        episode = self._episode
        outcome = ActionOutcome(Observation(), reply.failure)
        text = unusable_text(reply)
        turn = turn_of(len(episode.turns) + 1, NO_STEP, None, outcome, text, episode.seconds)
        episode.turns.append(replace(turn, reasoning=reply.reasoning))
        answer = Message("assistant", (TextPart(repeated(reply.text)),), reply.mark)
        self._unsent = answer, episode.turns[-1:]

    async def _call(self, number: int, answer: AgentAnswer, reply: Reply[AgentAnswer]) -> None:
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
                timed = done.setdefault(index, TimedResult(not_run, began))
                episode.count_tool(f"{number}/act/{index}", timed)
                step = NextStep(answer.text, "", "", call.name)
                turn = turn_of(before + index + 1, step, action, timed.value, "", timed.seconds)
                episode.turns.append(replace(turn, reasoning="" if index else reply.reasoning))
            self._show([done[index].value.observation.text for index in range(len(prepared))])
            texts = (TextPart(answer.text),) if answer.text else ()
            self._unsent = Message("assistant", (*texts, *answer.calls), reply.mark), episode.turns[before:]

    def _show(self, texts: Sequence[str]) -> None:
        """Set the results of the newest turns, as windows that fit into the conversation together."""
        turns, question = self._episode.turns, self._episode.task.question
        longest = self._episode.settings.max_observation_chars
        fair = fair_limit((min(len(text), longest) for text in texts), self._conversation.result_chars)
        limit = max(fair, _SHORT_RESULT_CHARS)
        for index, text in enumerate(texts, len(turns) - len(texts)):
            turn = turns[index]
            shown = result_text(
                text, limit, question, turn.action, turn.step.justification, failure=turn.failure
            )
            turns[index] = replace(turn, result=shown)

    def _prepared(self, call: ToolCall) -> tuple[Action | None, Failure | None]:
        """Return the action of a call, and the reason if it cannot be made."""
        if call.arguments is not None or call.name not in self._episode.tools:
            return self._episode.bind(call.name, call.arguments or {})
        why = f"the arguments are not a JSON object: {call.raw_arguments[:_QUOTED_CHARS]}"
        return None, Failure(ErrorKind.BAD_ARGUMENTS, why)

    async def _add_results(self) -> None:
        """Add the newest answer with its results to the conversation."""
        if self._unsent is None:
            return
        (answer, turns), self._unsent = self._unsent, None
        calls = [part for part in answer.parts if isinstance(part, ToolCall)]
        if calls:
            replies = [
                ToolReply(
                    call.id,
                    call.name,
                    (TextPart(turn.result), *await self._pictures(turn.images)),
                    failed=turn.failure is not None,
                )
                for call, turn in zip(calls, turns, strict=True)
            ]
            results = Message("user", tuple(replies))
        else:
            results = user(prompt("agent_answer", "unusable", reason=turns[-1].result))
        self._conversation.add(answer, results, turns)

    async def _pictures(self, images: Sequence[Blob]) -> list[ImagePart]:
        return image_parts(images, await visible_images(self._agent.model, images, self._agent.blobs))


def _is_refused(reply: Reply[AgentAnswer]) -> bool:
    """Return whether the endpoint refused the prompt as too long."""
    failure = reply.failure
    return failure is not None and failure.kind == ModelFailureKind.TOO_LONG and not reply.is_unusable


def make_agent(name: str, model: Model, blobs: BlobStore) -> EpisodeAgent:
    """Return the agent that a setting names: `single`, or `module:function`. See docs/engine.md.

    :raises ConfigurationError: if there is no such function, or it returns no agent.
    """
    if name == "single":
        return ToolAgent(model, blobs)
    make = import_object(name)
    if not callable(make):
        raise ConfigurationError(f"agent: {name} is not a function")
    agent = make(model, blobs)
    if not all(hasattr(agent, member) for member in ("name", "begin", "act")):
        raise ConfigurationError(f"agent: {name} returns no agent: it needs `name`, `begin` and `act`")
    return cast("EpisodeAgent", agent)


def _spec(tool: Tool, task: Task, offered: Collection[str]) -> ToolSpec:
    card = card_of(tool, task.kwargs, offered)
    return ToolSpec(card.name, f"{card.description}{card_notes(card)}", card.schema)


def _concurrent_groups(
    actions: Sequence[tuple[int, Action]], is_repeatable: Callable[[Action], bool]
) -> Iterator[list[tuple[int, Action]]]:
    """Split actions into groups that may run concurrently."""
    for repeatable, group in groupby(actions, lambda numbered: is_repeatable(numbered[1])):
        if repeatable:
            yield list(group)
        else:
            yield from ([numbered] for numbered in group)
