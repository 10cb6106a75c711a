"""Conversation of a single agent: it only grows, until its oldest part is replaced by a summary."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from agentflow.models import Message, TextPart, ToolCall, ToolReply, ToolSpec
from agentflow.team._rendering import cut, json_text, prompt
from agentflow.trace import Turn, Usage

_CHARS_PER_TOKEN: Final = 4.0
"""Estimate until the endpoint has reported the tokens of a prompt."""
_MIN_CHARS: Final = 1_000
"""Room for the results of one answer, and for a summary, even if the budget is smaller."""


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
