"""Random request bodies and random answers: no body breaks a parser, and events say what a body says."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from agentflow._typeguards import is_list, is_object
from agentflow.gateway import GatewayError
from agentflow.gateway._chat import ChatApi, CompletionsApi
from agentflow.gateway._dialect import ModelApi, RequestContext
from agentflow.gateway._messages import MessagesApi
from agentflow.gateway._responses import ResponsesApi
from agentflow.models import Completion, ToolCall
from tests.agentflow.gateway._scripted_calls import MODEL, answer, call
from tests.agentflow.gateway.test_apis import CHAT, MESSAGES, RESPONSES, events_of, pieces_of, rebuilt
from tests.agentflow.gateway.test_recorded_agents import bodies_of

ARRIVAL = RequestContext(1, "tag")
COMPLETIONS: dict[str, Any] = {"model": MODEL, "prompt": "Hi", "n": 2, "stop": ["x"], "temperature": 0.5}
APIS: list[tuple[ModelApi, list[dict[str, Any]]]] = [
    (ChatApi(), [CHAT]),
    (CompletionsApi(), [COMPLETIONS]),
    (ResponsesApi(), [RESPONSES, bodies_of("codex")[-1]]),
    (MessagesApi(), [MESSAGES, bodies_of("claude_code")[-1]]),
]
VALUES: list[Any] = [
    None,
    True,
    -1,
    10**25,
    1.5,
    "",
    "é\0\n",
    [],
    {},
    [[]],
    [{}],
    {"type": "text"},
    {"role": "user"},
    "auto",
]


def mutated(value: Any, random: Random) -> Any:  # noqa: ANN401 - JSON
    """Return JSON with something replaced, removed, repeated or renamed."""
    if is_object(value) and value and random.random() < 0.8:
        key = random.choice(list(value))
        match random.randrange(8):
            case 0:
                return {name: each for name, each in value.items() if name != key}
            case 1:
                return {**value, key + random.choice("s_x"): value[key]}
            case 2:
                return {
                    **value,
                    random.choice(["type", "content", "id", "name", "strict", "tools"]): random.choice(
                        VALUES
                    ),
                }
            case _:
                return {**value, key: mutated(value[key], random)}
    if is_list(value) and value and random.random() < 0.8:
        place = random.randrange(len(value))
        match random.randrange(5):
            case 0:
                return [*value, *value]
            case 1:
                return value[:place]
            case _:
                return [*value[:place], mutated(value[place], random), *value[place + 1 :]]
    return random.choice(VALUES)


@pytest.mark.promise("gateway:fields:strict")
@pytest.mark.parametrize(("api", "bodies"), APIS)
def test_random_changes_of_a_body_are_parsed_or_refused_in_one_line(
    api: ModelApi, bodies: list[dict[str, Any]]
) -> None:
    parsed = refused = 0
    for seed in range(1500):
        random = Random(seed)
        body: Any = random.choice(bodies)
        for _ in range(random.randint(1, 3)):
            body = mutated(body, random)
        try:
            found = api.parse(json.dumps(body).encode(), ARRIVAL)
        except GatewayError as error:
            assert error.status == 400
            assert error.message
            assert "\n" not in error.message
            refused += 1
        else:
            assert found.model == body["model"]
            parsed += 1
    assert parsed
    assert refused


def random_answers(seed: int) -> Iterator[Completion[None]]:
    random = Random(seed)
    for number in range(200):
        calls: list[ToolCall] = []
        for index in range(random.choice((0, 0, 1, 2, 3))):
            broken = ToolCall(f"call_{index}", "weather", None, '{"city": ')
            calls.append(random.choice((call(f"call_{index}", "weather", city="Rom\n"), broken)))
        text = random.choice(("", "Hi", "größer 七\n\n", " data: [DONE]\n\n", '{"a": "\\n"}'))
        finish = "length" if random.random() < 0.2 else "tool_calls" if calls else "stop"
        yield answer(
            number, text, *calls, finish=finish, reasoning=random.choice(("", "So.\n")), cached_tokens=2
        )


@pytest.mark.promise("gateway:stream:equal")
@pytest.mark.parametrize(("api", "bodies"), APIS)
def test_the_events_of_an_answer_say_what_its_body_says(api: ModelApi, bodies: list[dict[str, Any]]) -> None:
    random = Random(1)
    for one in random_answers(1):
        whole = json.loads(reply_of(api, bodies[0]).body([one]))
        reply = reply_of(api, {**bodies[0], "stream": True})
        sent = list(reply.opening(one.id))
        cuts = sorted(random.randrange(len(one.text) + 1) for _ in range(random.randrange(4)))
        if not one.reasoning:
            # Text that is sent while it is sampled is the beginning of the answer.
            starts = [0, *cuts]
            for start, end in zip(starts, cuts, strict=False):
                sent += reply.piece(one.text[start:end]) if end > start else []
        sent += reply.ending([one])
        events = events_of(b"".join(sent).decode())
        if isinstance(api, MessagesApi):
            assert rebuilt(events) == whole["content"]
            assert events[-2][1]["delta"]["stop_reason"] == whole["stop_reason"]
            assert events[-2][1]["usage"] == whole["usage"]
        elif isinstance(api, ResponsesApi):
            assert events[-1][1]["response"] == whole
            done = [data["item"] for name, data in events if name == "response.output_item.done"]
            assert done == whole["output"]
            assert "".join(pieces_of(events)) == one.text
        else:
            assert "".join(pieces_of(events)) == one.text
            assert events[-2][1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


def reply_of(api: ModelApi, body: dict[str, Any]) -> Any:  # noqa: ANN401 - of any API
    return api.parse(json.dumps(body).encode(), ARRIVAL).reply


@pytest.mark.promise("gateway:stream:equal")
def test_several_answers_are_streamed_with_their_indexes() -> None:
    answers = [answer(0, "one"), answer(1, "", call("a", "weather", city="Rome"))]
    reply = reply_of(ChatApi(), {**CHAT, "stream": True, "stream_options": {"include_usage": True}})
    events = events_of(b"".join([*reply.opening("c0"), *reply.ending(answers)]).decode())
    choices = [choice for _, data in events[:-1] for choice in data["choices"]]
    assert (
        "".join(choice["delta"].get("content") or "" for choice in choices if choice["index"] == 0) == "one"
    )
    calls = [
        one for choice in choices if choice["index"] == 1 for one in choice["delta"].get("tool_calls", [])
    ]
    assert "".join(one["function"]["arguments"] for one in calls) == '{"city":"Rome"}'
    assert events[-2][1]["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 6,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
