"""Random conversations of agents with a model: tools, retries, several answers, sub-agents, rewritten histories."""

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio
from msgspec.structs import replace

from agentflow.gateway import AgentConversations, ExactAnswerer, GatewayCall, RecordedCall, token_tree
from agentflow.models import Completion, Message, Sampling, TextPart, ToolCall, ToolReply, ToolSpec
from agentflow.trace import Tokens

LOOK = ToolSpec("look", "Look it up.", {"type": "object", "properties": {"q": {"type": "string"}}})
LIST = ToolSpec("list", "List all.", {"type": "object", "properties": {"n": {"type": "integer"}}})
TOOLS = (LOOK, LIST)
_SEED = "run/1"


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def said(answer: Completion[None]) -> Message:
    """Return an answer as a client sends it back."""
    texts = (TextPart(answer.text),) if answer.text else ()
    return Message("assistant", (*texts, *answer.calls))


def replies(answer: Completion[None], random: Random) -> Message:
    """Return what comes after an answer: the results of its calls, or a user's words."""
    if not answer.calls:
        return user(f"Go on, {random.randrange(100)}.")
    found = [
        ToolReply(call.id, call.name, (TextPart(f"found {random.randrange(100)}"),)) for call in answer.calls
    ]
    return Message("user", tuple(found))


def whole_tokens(records: Collection[RecordedCall]) -> list[tuple[RecordedCall, Tokens]]:
    """Return each call with its whole prompt, whether or not a client received it."""
    tree = token_tree([replace(record, delivered=True) for record in records])
    return [(record, tree.path(record.id)) for record in records if record.id in tree]


@dataclass
class Conversation:
    """One episode of an agent."""

    number: int
    answerer: ExactAnswerer
    only_appends: bool = False
    """Nothing is rewritten, shortened or added that was not sampled."""
    memory: AgentConversations = field(default_factory=AgentConversations)
    records: list[RecordedCall] = field(default_factory=list[RecordedCall])
    calls: list[GatewayCall] = field(default_factory=list[GatewayCall])
    count: int = 0

    async def talk(self) -> None:
        """Play it."""
        random = Random(self.number)
        await self.turns(
            random, (Message("system", (TextPart("You look things up."),)), user("How many?")), 0
        )

    async def turns(self, random: Random, messages: tuple[Message, ...], depth: int) -> None:
        tools = TOOLS
        for _ in range(random.randint(3, 7) if not depth else 2):
            messages, tools = self.changed(random, messages, tools)
            answer = await self.ask(random, messages, tools)
            chance = random.random()
            if chance < 0.15:
                # Whatever it was, the client asks again; either answer may be continued.
                answer = random.choice((answer, await self.ask(random, messages, tools)))
            elif chance < 0.3 and not depth:
                begin = (*messages, self.sent(random, answer), replies(answer, random))
                async with anyio.create_task_group() as tasks:
                    for number in range(8):
                        own = begin if number % 2 else (user(f"Sub-task {number % 3}."),)
                        tasks.start_soon(self.turns, Random(f"{self.number} {number}"), own, 1)
            messages = (*messages, self.sent(random, answer), replies(answer, random))

    async def ask(
        self, random: Random, messages: tuple[Message, ...], tools: tuple[ToolSpec, ...]
    ) -> Completion[None]:
        """Make a call, perhaps for several answers, and return one of them."""
        answers = random.choice((1, 1, 1, 4))
        self.count += 1
        id = f"c{self.count}"
        ids = [id] if answers == 1 else [f"{id}.{place}" for place in range(answers)]
        call = GatewayCall(
            dialect="chat",
            messages=messages,
            tools=tools,
            answers=answers,
            sampling=Sampling(temperature=0.5),
        )
        self.calls.append(call)
        done = await self.answerer.answer(call, self.memory, ids, seed=_SEED, temperature=1.0)
        leaves = random.random() < 0.1
        self.records += [replace(record, delivered=not leaves) for _, record in done]
        if leaves:
            return await self.ask(random, messages, tools)
        return random.choice(done)[0]

    def sent(self, random: Random, answer: Completion[None]) -> Message:
        """Return an answer as one of several kinds of clients sends it back."""
        message, chance = said(answer), random.random()
        if answer.calls and chance < 0.3:
            return Message("assistant", answer.calls)
        if not answer.calls and chance < 0.3:
            return Message("assistant", (TextPart(answer.text.strip()),))
        if answer.calls and chance < 0.4:
            # Arguments are decoded and encoded again.
            return Message("assistant", tuple(replace(call, raw_arguments="") for call in answer.calls))
        return message

    def changed(
        self, random: Random, messages: tuple[Message, ...], tools: tuple[ToolSpec, ...]
    ) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
        """Return the conversation, perhaps rewritten."""
        chance = random.random()
        if self.only_appends or chance > 0.3 or len(messages) < 4:
            return messages, tools
        if chance < 0.1:
            return (messages[0], user(f"In short: {random.randrange(100)} things are known.")), tools
        if chance < 0.15:
            return messages, TOOLS if tools != TOOLS else TOOLS[:1]
        place = next(place for place, message in enumerate(messages) if message.role == "assistant")
        altered = Message("assistant", tuple(_altered(part) for part in messages[place].parts))
        if chance < 0.2:
            altered = Message("assistant", (TextPart("I did not say this."),))
            return (*messages[:-1], altered, messages[-1]), tools
        return (*messages[:place], altered, *messages[place + 1 :]), tools


def _altered(part: Any) -> Any:  # noqa: ANN401
    if isinstance(part, ToolCall):
        return replace(part, arguments={"q": "other"}, raw_arguments='{"q": "other"}')
    return TextPart(f"{part.text}!")
