"""Random conversations with a real vLLM: training uses exactly the tokens it saw."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias

import anyio
import pytest
from msgspec import Struct

from agentflow.errors import ModelFailure
from agentflow.models import (
    Accounts,
    Call,
    Message,
    Model,
    ModelEndpoints,
    ModelSettings,
    TextPart,
    make_model,
)
from agentflow.serving import ModelServer
from agentflow.trace import ForkReason, TokenCall, Tokens, TokenTree, Voice
from tests.agentflow.trace._calls import trained
from tests.agentflow.trace._recorded import Answer, Recorder, recorded

pytestmark = pytest.mark.timeout(900)

Told: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Prompt, sampled tokens, log-probabilities."""


class Wish(Struct):
    """An answer that consists of a tool call."""

    tool: Literal["search", "delete_all"]
    number: Literal[1, 2, 3]


@dataclass
class Models:
    """The same engine with three settings."""

    short: Model
    """Answers are truncated after a few tokens."""
    held: Model
    """Answers are constrained to a tool call."""
    free: Model
    """The format is not described: most answers are unusable."""


@dataclass
class Conversation:
    """One random conversation, with its calls in a tree."""

    number: int
    models: Models
    tree: TokenTree = field(default_factory=TokenTree)
    count: int = 0

    async def talk(self) -> None:
        random = Random(self.number)
        said = self.opening(random)
        for number in range(random.randint(2, 4)):
            said = await self.turn(random, said, self.voice("main"))
            if random.random() < 0.2:
                # A sub-agent, on the conversation so far or on a prompt of its own.
                own = random.choice((said, self.opening(random)))
                await self.turn(random, own, self.voice(f"sub {number}"))
            if random.random() < 0.15:
                summary = user(f"In short: {random.randrange(1000)} things were done. What next?")
                said = (*said[:1], summary)

    async def turn(self, random: Random, said: tuple[Message, ...], voice: Voice) -> tuple[Message, ...]:
        answer = await self.ask(random, said, voice)
        chance = random.random()
        if chance < 0.2:
            # A retry; either answer may be continued.
            other = await self.ask(random, said, voice)
            answer = random.choice((answer, other))
        result = user(f"Tool gave {random.randrange(1000)} <b>results</b>.")
        if chance > 0.85 and voice.agent == "main":
            # Two parallel calls, each with its own result.
            async with anyio.create_task_group() as tasks:
                for number in range(2):
                    branch = (*said, answer, user(f"Tool {number} is done."))
                    tasks.start_soon(self.ask, Random(number), branch, voice)
        return (*said, answer, result)

    async def ask(self, random: Random, said: tuple[Message, ...], voice: Voice) -> Message:
        self.count += 1
        id, way = str(self.count), random.choice(("short", "held", "held", "free"))
        model = getattr(self.models, way)
        text, drawn = await asked(model, said, str if way == "short" else Wish)
        for place, tokens in enumerate(drawn):
            self.tree.add(TokenCall(id=f"{id}.{place}", voice=voice, tokens=tokens))
        return assistant(text, drawn[-1])

    def opening(self, random: Random) -> tuple[Message, ...]:
        head = random.choice(("You plan.", "You look things up, carefully."))
        return (
            Message("system", (TextPart(head),)),
            user(f"Task {random.randrange(3)}: how many are there?"),
        )

    def voice(self, agent: str) -> Voice:
        return Voice(role="planner", agent=agent, episode=str(self.number))


async def asked(
    model: Model, said: tuple[Message, ...], reply: type[object]
) -> tuple[str, tuple[Tokens, ...]]:
    """Return the answer, usable or not, and its tokens."""
    try:
        done = await model.complete(Call(role="planner", messages=said, reply=reply))
    except ModelFailure as failure:
        assert failure.answer_tokens, str(failure)
        return failure.answer_text, failure.answer_tokens
    assert done.tokens is not None
    return done.text, (*done.unusable, done.tokens)


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def assistant(text: str, tokens: Tokens | None) -> Message:
    return Message("assistant", (TextPart(text),), "" if tokens is None else tokens.mark)


def settings(server: ModelServer, recorder: Recorder, **more: object) -> ModelSettings:
    said = {"tokens": "exact", "temperature": 1.0, "max_tokens": 12, "max_attempts": 2, "call_seconds": 600}
    place = {"name": server.model, "base_url": recorder.url, "api_key": server.key, "max_concurrency": 64}
    return ModelSettings.model_validate({**place, **said, **more})


def seen(answer: Answer) -> Told:
    [choice] = answer.choices
    drawn = tuple(chance.logprob for chance in choice.logprobs.content)
    return answer.prompt_token_ids, choice.token_ids, drawn


async def check_conversations(server: ModelServer, count: int) -> None:
    """Assert that rows equal the engine's own report, and that each sampled token is trained once."""
    conversations: list[Conversation] = []
    async with recorded(server.address) as recorder:
        short = settings(server, recorder)
        held = settings(server, recorder, structured="json_schema", max_tokens=40)
        free = settings(server, recorder, structured="known")
        endpoints = ModelEndpoints()
        async with (
            make_model(short, Accounts(), endpoints=endpoints) as one,
            make_model(held, Accounts(), endpoints=endpoints) as two,
            make_model(free, Accounts(), endpoints=endpoints) as three,
            anyio.create_task_group() as tasks,
        ):
            models = Models(one, two, three)
            for number in range(count):
                conversations.append(Conversation(number, models))
                tasks.start_soon(conversations[-1].talk)
    reasons: Counter[str] = Counter()
    delivered: Counter[Told] = Counter()
    for conversation in conversations:
        figures = conversation.tree.figures()
        assert figures.trained == figures.sampled
        reasons += Counter(figures.forks)
        delivered += Counter(piece[1:] for piece in trained(conversation.tree))
    assert delivered == Counter(map(seen, recorder.answers))
    assert len(recorder.answers) >= 4 * count
    assert {choice.finish_reason for answer in recorder.answers for choice in answer.choices} == {
        "stop",
        "length",
    }
    # Every later prompt contains the answers as they were sampled: nothing was altered or left out.
    assert not reasons.keys() & {ForkReason.DRIFT, ForkReason.REWRITTEN, ForkReason.TRUNCATED}
    assert reasons.keys() >= {"opening", "append", "branch", "retry", "compaction", "sub_agent"}


@pytest.mark.promise("tokens:vllm")
async def test_no_token_differs_over_a_hundred_conversations(vllm: ModelServer) -> None:
    await check_conversations(vllm, 100)


@pytest.mark.soak
@pytest.mark.promise("tokens:vllm")
async def test_no_token_differs_over_a_thousand_conversations(vllm: ModelServer) -> None:
    await check_conversations(vllm, 1000)


@pytest.mark.promise("tokens:vllm")
async def test_the_closing_token_of_a_truncated_answer_is_not_trained(vllm: ModelServer) -> None:
    async with (
        recorded(vllm.address) as recorder,
        make_model(settings(vllm, recorder, max_tokens=5, extra_body={"min_tokens": 5}), Accounts()) as model,
    ):
        begin = (user("Count."),)
        text, (first,) = await asked(model, begin, str)
        _, (second,) = await asked(model, (*begin, assistant(text, None), user("Go on.")), str)
    assert (first.finish, len(first.sampled)) == ("length", 5)
    whole = first.prompt + first.sampled
    assert second.prompt[: len(whole)] == whole
    tree = TokenTree(
        TokenCall(id=str(number), tokens=tokens) for number, tokens in enumerate((first, second))
    )
    [row] = tree.rows().values()
    assert [piece.ids for piece in row if piece.kind == "trained"] == [first.sampled, second.sampled]
    closing = row[2]
    assert (closing.kind, sum(len(piece.ids) for piece in row[:2])) == ("context", len(whole))
    assert closing.ids[0] not in first.sampled


@pytest.mark.promise("tokens:vllm")
async def test_calls_with_the_same_text_are_distinguished_by_their_tokens(vllm: ModelServer) -> None:
    async with (
        recorded(vllm.address) as recorder,
        make_model(settings(vllm, recorder, max_tokens=40, max_attempts=1), Accounts()) as model,
    ):
        begin, text = (user("Call a tool."),), ""
        drawn: list[Tokens] = []
        for _ in range(6):
            text, tokens = await asked(model, begin, Wish)
            drawn += tokens
        _, tokens = await asked(model, (*begin, assistant(text, drawn[-1]), user("found")), Wish)
        drawn += tokens
    tree = TokenTree(
        TokenCall(id=str(number), tokens=tokens, parent="5" if number == 6 else "")
        for number, tokens in enumerate(drawn)
    )
    assert Counter(piece.ids for piece in trained(tree)) == Counter(tokens.sampled for tokens in drawn)
    assert [piece.call for piece in tree.rows()["6"] if piece.kind == "trained"] == ["5", "6"]
