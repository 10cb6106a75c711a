"""Prompts of an episode: exactly the tokens that were sampled, or a recorded reason."""

from collections import Counter

import pytest
from msgspec.structs import replace

from agentflow.gateway import (
    ExactAnswerer,
    PromptOrigin,
    RecordedCall,
    token_tree,
    trained_tokens,
)
from agentflow.models import Message, TextPart
from agentflow.trace import Tokens
from tests.agentflow.gateway._conversations import Conversation, whole_tokens
from tests.agentflow.gateway._engine import RandomEngine, Told
from tests.agentflow.trace._calls import trained


def told(tokens: Tokens) -> Told:
    return tokens.prompt, tokens.sampled, tokens.logprobs


async def check_conversations(count: int) -> None:
    """Assert that rows equal the engine's own log, and that each delivered call is trained once."""
    origins: Counter[PromptOrigin] = Counter()
    for number in range(count):
        engine = RandomEngine()
        one = Conversation(number, ExactAnswerer(engine.engine), only_appends=number % 2 == 0)
        await one.talk()
        full = whole_tokens(one.records)
        assert Counter(told(tokens) for _, tokens in full) == Counter(engine.told)
        delivered = [(record.id, tokens) for record, tokens in full if record.delivered]
        assert trained_tokens(one.records) == ({"": delivered} if delivered else {})
        tree = token_tree(one.records)
        assert Counter(piece[1:] for piece in trained(tree)) == Counter(
            told(tokens) for _, tokens in delivered
        )
        by_id = {record.id: tokens for record, tokens in full}
        for record, tokens in full:
            origins[record.origin] += 1
            if record.parent:
                before = by_id[record.parent]
                whole = before.prompt + before.sampled
                assert tokens.prompt[: len(whole)] == whole
        if one.only_appends:
            assert {record.origin for record in one.records} <= {PromptOrigin.OPENING, PromptOrigin.APPENDED}
            assert not {fork.reason.value for fork in tree.forks()} & {"drift", "rewritten", "truncated"}
    assert set(origins) == {
        PromptOrigin.OPENING,
        PromptOrigin.APPENDED,
        PromptOrigin.TOOLS,
        PromptOrigin.REWRITTEN,
        PromptOrigin.FOREIGN,
    }


@pytest.mark.promise("gateway:exact")
async def test_a_hundred_random_conversations_train_exactly_what_was_sampled() -> None:
    await check_conversations(100)


@pytest.mark.soak
@pytest.mark.promise("gateway:exact")
async def test_a_thousand_random_conversations_train_exactly_what_was_sampled() -> None:
    await check_conversations(1000)


@pytest.mark.promise("gateway:exact:origin")
def test_a_call_without_its_parent_is_an_error() -> None:
    tokens = Tokens(prompt=(1,), sampled=(2,), logprobs=(-1.0,))
    answer = Message("assistant", (TextPart("x"),))
    call = RecordedCall(
        id="c1",
        agent="",
        dialect="chat",
        trained=True,
        delivered=True,
        origin=PromptOrigin.APPENDED,
        parent="c0",
        tokens=tokens,
        answer=answer,
    )
    with pytest.raises(ValueError, match="'c1' continues 'c0', which is missing"):
        trained_tokens([call])
    assert trained_tokens([replace(call, parent="", delivered=False)]) == {}
    assert trained_tokens([replace(call, parent="", trained=False)]) == {}
    assert trained_tokens([replace(call, parent="", tokens=None)]) == {}
