"""A token engine in this process whose answers are random, and which records everything that it read and sampled."""

from collections.abc import Sequence
from random import Random
from typing import Any, TypeAlias

import msgspec

from agentflow.models import TokenEngine
from agentflow.models._apis import EncodedRequest
from agentflow.testing.endpoint._token_apis import CLOSE, derender, encoded, logprobs_of, render

Told: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Prompt, sampled tokens, log-probabilities."""


class RandomEngine:
    """Answers with text, tool calls in any spelling, invalid calls and truncated ones; a function of prompt and seed."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        """Everything that it read and sampled."""
        self.rendered = 0
        """Number of tokens that it rendered."""
        self.engine = TokenEngine("random", "http://random/v1", self.post)

    async def post(self, request: EncodedRequest) -> bytes:
        """Answer a request."""
        path = request.path.removeprefix("http://random")
        if path == "/inference/v1/generate":
            return msgspec.json.encode(self._generate(msgspec.json.decode(request.body)))
        if path.endswith("/derender"):
            return msgspec.json.encode(derender(request.body))
        tokenizes = path == "/tokenize"
        answer = render(request.body, tokenizes=tokenizes)
        self.rendered += len(answer["tokens" if tokenizes else "token_ids"])
        return msgspec.json.encode(answer)

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        params, prompt = body["sampling_params"], tuple(body["token_ids"])
        choices: list[dict[str, Any]] = []
        for index in range(params.get("n", 1)):
            random = Random(f"{params['seed']}/{index}/{len(prompt)}")
            ids = encoded(answer_of(random))
            finish = "length" if random.random() < 0.1 else "stop"
            ids = ids[: random.randint(1, len(ids))] if finish == "length" else [*ids, CLOSE]
            chances = logprobs_of(ids)
            self.told.append((prompt, tuple(ids), tuple(chances)))
            choices.append(
                {
                    "index": index,
                    "text": bytes(id for id in ids if id < CLOSE).decode(errors="replace"),
                    "token_ids": ids,
                    "finish_reason": finish,
                    "logprobs": {"content": [{"logprob": chance} for chance in chances]},
                    "weight_versions": [{"version": "1", "start": 0, "end": len(ids)}],
                }
            )
        return {"choices": choices, "prompt_token_ids": prompt}


def answer_of(random: Random) -> str:
    """Return a random answer."""
    words = " ".join(
        random.choice(("red", "größer", "七", "  two  ", "\n", "x")) for _ in range(random.randint(1, 5))
    )
    if random.random() < 0.4:
        return words
    calls = [_call(random) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    if random.random() < 0.1:
        calls.append("<tool_call>\n{broken\n</tool_call>")
    return "\n".join((*([words] if random.random() < 0.3 else []), *calls))


def _call(random: Random) -> str:
    name, space = random.choice(("look", "list")), random.choice(("", " ", "  "))
    arguments = f'{{"q":{space}"{random.choice("abc")}",{space}"n": {random.randint(0, 3)}}}'
    return f'<tool_call>\n{{"name":{space}"{name}",{space}"arguments": {arguments}}}\n</tool_call>'


def sampled(told: Sequence[Told]) -> int:
    """Return the number of sampled tokens."""
    return sum(len(ids) for _, ids, _ in told)
