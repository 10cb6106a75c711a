"""Model calls, compared with bare aiohttp and `openai`'s client.

Run `python benchmarks/models.py [--check]`: prints a table measured in this run, and as the last line one JSON object. With
`--check` it exits with 1 if a limit is missed.

Each side makes the same calls with 200 in flight, against a fake endpoint in its own process that takes 50 ms to
answer. The time is this process's CPU time; the sides alternate in many rounds, and the result is the median of the
rounds, so that noise meets all sides.
"""

import argparse
import json
import logging
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import aiohttp
import anyio
import msgspec
import openai

from agentflow.models import Accounts, Call, Message, ModelSettings, TextPart, make_model
from agentflow.testing import fake_endpoint
from agentflow.trace import Plan

IN_FLIGHT = 200
CALLS = 1_000
CALLS_OPENAI = 400
ROUNDS = 7
DELAY_MS = 50

Ask = Callable[[str], Awaitable[object]]

MAX_MS = 0.6
"""Maximum CPU time of a call of ours, in milliseconds."""
MAX_RATIO = 2.0
"""Maximum CPU time of a call of ours, as a multiple of bare aiohttp's."""

STORY = " ".join(
    f"The lighthouse of island number {number} was raised by its keepers." for number in range(20)
)
PLAN_SCHEMA = {
    "type": "object",
    "properties": {
        "proposals": {
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {
                    "intent": {"type": "string"},
                    "tool": {"const": "rag_search"},
                    "arguments": {"type": "object", "properties": {"query": {"type": "string"}}},
                },
                "required": ["intent", "tool", "arguments"],
            },
        }
    },
    "required": ["proposals"],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "plan", "schema": PLAN_SCHEMA}}


async def drive(ask: Ask, calls: int, name: str) -> float:
    """CPU milliseconds of a call."""
    numbers = iter(range(calls))

    async def caller() -> None:
        for number in numbers:
            await ask(f"{name} {number}: {STORY}")

    begin = time.process_time()
    async with anyio.create_task_group() as group:
        for _ in range(IN_FLIGHT):
            group.start_soon(caller)
    return (time.process_time() - begin) / calls * 1000


async def ours(stack: AsyncExitStack, url: str) -> Ask:
    """Our engine."""
    settings = ModelSettings(name="fake", base_url=url, max_concurrency=IN_FLIGHT)
    model = await stack.enter_async_context(make_model(settings, Accounts()))

    async def ask(text: str) -> object:
        messages = (Message("system", (TextPart("Plan."),)), Message("user", (TextPart(text),)))
        call = Call(role="planner", messages=messages, reply=Plan, schema=PLAN_SCHEMA)
        return (await model.complete(call)).value.proposals[0]

    return ask


async def bare(stack: AsyncExitStack, url: str) -> Ask:
    """aiohttp alone: a body in, its bytes decoded."""
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
    headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}

    async def ask(text: str) -> object:
        body = msgspec.json.encode(request(text))
        async with session.post(f"{url}/chat/completions", data=body, headers=headers) as response:
            answer = msgspec.json.decode(await response.read())
        return msgspec.json.decode(answer["choices"][0]["message"]["content"], type=Plan).proposals[0]

    return ask


async def theirs(stack: AsyncExitStack, url: str) -> Ask:
    """The `openai` client as it comes."""
    client = await stack.enter_async_context(openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0))

    async def ask(text: str) -> object:
        # The body is the same; the library's own types for it don't matter here.
        create = partial(client.chat.completions.create, **request(text))  # pyright: ignore[reportCallIssue, reportArgumentType]
        answer = await create()
        return msgspec.json.decode(answer.choices[0].message.content or "", type=Plan).proposals[0]

    return ask


def request(text: str) -> dict[str, object]:
    """The body of a call."""
    messages = [{"role": "system", "content": "Plan."}, {"role": "user", "content": text}]
    return {"model": "fake", "messages": messages, "response_format": FORMAT}


async def measure_all() -> dict[str, float]:
    """CPU milliseconds of a call on every side."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(fake_endpoint(delay_ms=DELAY_MS))
        sides = {
            "ours": (await ours(stack, url), CALLS),
            "aiohttp": (await bare(stack, url), CALLS),
            "openai": (await theirs(stack, url), CALLS_OPENAI),
        }
        rounds: dict[str, list[float]] = {name: [] for name in sides}
        for name, (ask, calls) in sides.items():
            await drive(ask, calls // 2, f"warm {name}")
        for number in range(ROUNDS):
            for name, (ask, calls) in sides.items():
                rounds[name].append(await drive(ask, calls, f"{name} {number}"))
    ratio = statistics.median(a / b for a, b in zip(rounds["ours"], rounds["aiohttp"], strict=True))
    medians = {f"{name}_ms": statistics.median(times) for name, times in rounds.items()}
    return {
        **medians,
        "ratio_to_aiohttp": ratio,
        "ratio_to_openai": medians["ours_ms"] / medians["openai_ms"],
    }


def main() -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a floor is missed")
    options = parser.parse_args()
    logging.disable(logging.INFO)

    figures = anyio.run(measure_all)
    print(f"CPU of a call, {IN_FLIGHT} in flight")
    for name in ("ours", "aiohttp", "openai"):
        milliseconds = figures[f"{name}_ms"]
        print(f"{name:<10}{milliseconds:>9.3f} ms{milliseconds / figures['aiohttp_ms']:>8.2f} x aiohttp")
    missed = [
        f"{name}: {figures[name]:.3f}, at most {limit}"
        for name, limit in {"ours_ms": MAX_MS, "ratio_to_aiohttp": MAX_RATIO}.items()
        if figures[name] > limit
    ]
    for line in missed:
        print(f"missed: {line}")
    print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
