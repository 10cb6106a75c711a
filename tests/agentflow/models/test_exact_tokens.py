"""Conversations continued by tokens."""

from typing import Any

import pytest

from agentflow.errors import ModelFailure, ModelFailureKind, RunStopped
from agentflow.models import (
    Accounts,
    Call,
    ConversationIndex,
    ImagePart,
    Message,
    ModelEndpoints,
    OpenModel,
    TextPart,
    make_model,
)
from agentflow.trace import Tokens
from tests.agentflow.models._serving import Colour, painter, settings
from tests.agentflow.models._tokens import END, ROLES, LetterEngine, letters, serving

RED = '{ "name":"red",  "shade":3 }'
"""An answer with unusual spacing."""
USER, ASSISTANT = ROLES["user"], ROLES["assistant"]


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def said(text: str, tokens: Tokens | None = None) -> Message:
    return Message("assistant", (TextPart(text),), "" if tokens is None else tokens.mark)


def keep(known: ConversationIndex, question: str, text: str, tokens: Tokens) -> None:
    match = known.match([user(question)])
    known.add(tokens.mark, match, said(text), match.added(tokens))


def longest(known: ConversationIndex, *messages: Message) -> tuple[int, list[int]]:
    match = known.match(messages)
    return match.count, match.ids.tolist()


async def words(model: OpenModel, *messages: Message) -> Tokens:
    done = await model.complete(Call(role="planner", messages=messages, reply=str))
    assert done.tokens is not None
    return done.tokens


@pytest.mark.promise("models:exact")
async def test_a_prompt_is_the_earlier_tokens_plus_the_new_ones() -> None:
    engine = LetterEngine([("yes", "stop"), ("no", "stop")])
    async with serving(engine) as url, painter(url, tokens="exact") as model:
        first = await words(model, user("a"))
        before = engine.tokenized
        second = await words(model, user("a"), said("yes", first), user("b" * 50))
    assert first == Tokens(
        prompt=(USER, ord("a"), END, ASSISTANT),
        sampled=(*letters("yes"), END),
        logprobs=(-0.5, -1.5, -2.5, -3.5),
        version="6",
        versions=(("6", 0, 2), ("7", 2, 4)),
        finish="stop",
    )
    assert second.prompt == (*first.prompt, *first.sampled, USER, *letters("b" * 50), END, ASSISTANT)
    assert engine.prompts[1] == list(second.prompt)
    # What was read before is not made tokens again: only a stand-in for it, and what is new.
    assert engine.tokenized - before == len("<-><-") + len("<-><->") + len("<>" + "b" * 50) + 1


@pytest.mark.promise("models:exact")
async def test_a_cut_answer_keeps_its_tokens_and_the_next_prompt_closes_it() -> None:
    engine = LetterEngine([("half", "length"), ("rest", "stop")])
    async with serving(engine) as url, painter(url, tokens="exact") as model:
        with pytest.raises(ModelFailure) as cut:
            await words(model, user("a"))
        second = await words(model, user("a"), said("half"), user("b"))
    [first] = cut.value.answer_tokens
    assert (cut.value.kind, cut.value.answer_text) == (ModelFailureKind.TOO_LONG, "half")
    assert (first.finish, first.sampled) == ("length", tuple(letters("half")))
    assert second.prompt == (*first.prompt, *first.sampled, END, USER, ord("b"), END, ASSISTANT)


@pytest.mark.promise("models:exact")
async def test_unusable_answers_keep_their_tokens() -> None:
    call = Call(role="planner", messages=(user("a"),), reply=Colour)
    engine = LetterEngine([("{", "stop"), (RED, "stop"), ("[", "stop"), ("]", "stop")])
    async with serving(engine) as url, painter(url, tokens="exact", max_attempts=2) as model:
        done = await model.complete(call)
        with pytest.raises(ModelFailure) as failed:
            await model.complete(call)
    assert done.tokens is not None
    assert done.value == Colour("red", 3)
    assert [tokens.sampled for tokens in (*done.unusable, done.tokens)] == [
        (ord("{"), END),
        (*letters(RED), END),
    ]
    assert failed.value.kind == ModelFailureKind.GARBAGE
    assert [tokens.sampled for tokens in failed.value.answer_tokens] == [(ord("["), END), (ord("]"), END)]


@pytest.mark.promise("models:exact")
async def test_a_format_is_enforced_by_the_engine_or_described_in_the_last_message() -> None:
    engine = LetterEngine([(RED, "stop")] * 4)
    async with serving(engine) as url:
        async with painter(url, tokens="exact") as held:
            await held.complete(Call(role="planner", messages=(user("a"),), reply=Colour))
        params = engine.asked[-1][1]["sampling_params"]
        assert params["structured_outputs"]["json"]["required"] == ["name", "shade"]
        async with painter(url, tokens="exact", structured="json_object") as half:
            await half.complete(Call(role="planner", messages=(user("a"),), reply=Colour))
        assert engine.asked[-1][1]["sampling_params"]["structured_outputs"] == {"json_object": True}
        async with painter(url, tokens="exact", structured="text") as told:
            first = await told.complete(Call(role="planner", messages=(user("a"),), reply=Colour))
            assert first.tokens is not None
            again = (user("a"), said(RED, first.tokens), user("b"))
            second = await told.complete(Call(role="planner", messages=again, reply=Colour))
    assert second.tokens is not None
    assert "structured_outputs" not in engine.asked[-1][1]["sampling_params"]
    whole = first.tokens.prompt + first.tokens.sampled
    assert second.tokens.prompt[: len(whole)] == whole, "also what the first message told of the format"
    assert "JSON schema" in "".join(map(chr, second.tokens.prompt[len(whole) :]))


@pytest.mark.promise("models:exact")
async def test_an_engine_without_the_generate_api_uses_completions() -> None:
    engine = LetterEngine([("yes", "stop"), ("no", "stop")], generates=False)
    more: dict[str, Any] = {"temperature": 0.5, "top_p": 0.25, "seed": 7}
    async with serving(engine) as url, painter(url, tokens="exact", extra_body={"top_k": 3}, **more) as model:
        first = await words(model, user("a"))
        second = await words(model, user("a"), said("yes"), user("b"))
    assert (first.version, first.versions) == ("", ())
    assert second.prompt[: len(first.prompt) + 4] == first.prompt + first.sampled
    doors = [path for path, _ in engine.asked if path != "/tokenize"]
    assert doors == ["/inference/v1/generate", "/v1/completions", "/v1/completions"]
    by_one, by_other = engine.asked[1][1], engine.asked[2][1]
    wanted = {"logprobs": 0, "max_tokens": None, "temperature": 0.5, "top_p": 0.25, "seed": 7, "top_k": 3}
    assert by_one["sampling_params"] == wanted
    assert {name: by_other[name] for name in wanted} == wanted


@pytest.mark.promise("models:exact")
async def test_template_options_are_sent_to_the_tokenizer() -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "cache_salt": "x"}
    engine = LetterEngine([("yes", "stop")])
    async with serving(engine) as url, painter(url, tokens="exact", extra_body=extra) as model:
        await words(model, user("a"))
    (_, tokenized), (_, drawn) = engine.asked
    assert tokenized["chat_template_kwargs"] == {"enable_thinking": False}
    assert drawn["cache_salt"] == "x"
    assert drawn["sampling_params"] == {"logprobs": 0, "max_tokens": None}


@pytest.mark.promise("models:exact")
async def test_a_template_that_alters_earlier_messages_gives_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = LetterEngine([("yes", "stop")] * 3, strips=True)
    async with serving(engine) as url, painter(url, tokens="exact") as model:
        first = await words(model, user("a"))
        second = await words(model, user("a"), said("yes", first), user("b"))
        await words(model, user("a"), said("yes", first), user("c"))
    assert caplog.text.count("conversation prompts are not exact") == 1
    assert second.prompt == (USER, ord("a"), END, ASSISTANT, END, USER, ord("b"), END, ASSISTANT)


@pytest.mark.promise("models:exact")
async def test_answers_with_equal_text_are_distinguished_by_their_marks() -> None:
    known = ConversationIndex(by_mark=True)
    one = Tokens(prompt=(1,), sampled=(2, 3), logprobs=(-1.0, -1.0))
    other = Tokens(prompt=(1,), sampled=(4,), logprobs=(-1.0,))
    for tokens in (one, other):
        keep(known, "a", "same", tokens)
    assert longest(known, user("a"), said("same", one), user("b")) == (2, [1, 2, 3])
    assert longest(known, user("a"), said("same", other), user("b")) == (2, [1, 4])
    assert longest(known, user("a"), said("same"), user("b")) == (2, [1, 4]), "the newest"
    assert longest(known, user("x"), said("same"), user("b")) == (0, [])
    assert longest(known, user("x"), said("same", one), user("b")) == (2, [1, 2, 3]), "the mark identifies it"
    assert longest(known, user("x")) == (0, [])


@pytest.mark.promise("models:exact")
def test_the_oldest_conversations_are_dropped() -> None:
    known = ConversationIndex(max_tokens=6)
    for number in range(4):
        keep(known, str(number), "x", Tokens(prompt=(number, 7), sampled=(8,), logprobs=(-1.0,)))
    found = [longest(known, user(str(number)), said("x"))[0] for number in range(4)]
    assert found == [0, 0, 2, 2]


@pytest.mark.promise("models:exact")
def test_a_call_is_dropped_after_those_that_continue_it() -> None:
    known = ConversationIndex(max_tokens=6, by_mark=True)
    first = Tokens(prompt=(1,), sampled=(2,), logprobs=(-1.0,))
    keep(known, "a", "x", first)
    messages = (user("a"), said("x", first), user("b"))
    second = Tokens(prompt=(1, 2, 3), sampled=(4,), logprobs=(-1.0,))
    match = known.match(messages)
    known.add(second.mark, match, said("y"), match.added(second))
    assert longest(known, *messages, said("y", second), user("c")) == (4, [1, 2, 3, 4])
    keep(known, "0", "x", Tokens(prompt=(0, 7), sampled=(8,), logprobs=(-1.0,)))
    assert longest(known, *messages, said("y", second), user("c")) == (2, [1, 2]), (
        "its answer is dropped first"
    )


@pytest.mark.promise("models:exact")
async def test_roles_at_one_endpoint_share_their_token_history() -> None:
    engine = LetterEngine([("yes", "stop"), ("no", "stop")])
    endpoints = ModelEndpoints()
    async with serving(engine) as url:
        made = [
            make_model(
                settings(url, tokens="exact", temperature=warm),
                Accounts(),
                endpoints=endpoints,
                environment={},
            )
            for warm in (0.5, 1.0)
        ]
        async with made[0] as one, made[1] as other:
            first = await words(one, user("a"))
            second = await words(other, user("a"), said("yes", first), user("b"))
    assert second.prompt[: len(first.prompt) + 4] == first.prompt + first.sampled


@pytest.mark.promise("models:exact")
async def test_images_are_sent_as_messages() -> None:
    picture = Message("user", (ImagePart(b"x"),))
    engine = LetterEngine([])
    async with serving(engine) as url, painter(url, tokens="exact", max_attempts=1) as model:
        with pytest.raises(RunStopped):
            await words(model, picture)
    assert [path for path, _ in engine.asked] == ["/v1/chat/completions"]


@pytest.mark.promise("models:exact")
async def test_an_endpoint_without_token_apis_ends_the_run_in_one_line() -> None:
    engine = LetterEngine([], generates=False)
    async with serving(engine) as url, painter(f"{url}/elsewhere", tokens="exact") as model:
        with pytest.raises(RunStopped, match="can't be used") as stopped:
            await words(model, user("a"))
    assert "\n" not in stopped.value.message
