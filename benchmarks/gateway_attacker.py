"""A gateway that the holder of one key attacks while another one works.

Run `python benchmarks/gateway_attacker.py [--check] [--attacks NAME ...]`: prints for each attack the latency of another key's
`GET /v1/models`, without and with the attack, and the peak memory of the gateway above its rest. Each attack keeps 24 requests in
flight with one key, from a process of its own. With `--check` it exits with 1 if the 99th percentile exceeds 100 ms or the
memory grows by more than 200 MB.
"""

import argparse
import base64
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import anyio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentflow.gateway import EpisodeOffer, EpisodeOutcome, Gateway, GatewayClient, GatewaySettings
from agentflow.trace import Task
from benchmarks._gateway_upstream import MODEL
from benchmarks._rows import Row, report
from benchmarks.gateway import upstream

IN_FLIGHT = 24
BODY_BYTES = 8 * 1024 * 1024
CALLS = 400
WARM_CALLS = 50
PAUSE_SECONDS = 0.01
"""Time between two requests of the client that works."""
MAX_MS = 100.0
MAX_MB = 200.0
SETTLE_SECONDS = 2.0


def _chat(messages: str, more: str = "") -> bytes:
    return f'{{"model":"{MODEL}","max_tokens":8,"messages":[{messages}]{more}}}'.encode()


def _user(text: str) -> str:
    return f'{{"role":"user","content":"{text}"}}'


def _filled(item: str, room: int = BODY_BYTES - 300, most: int | None = None) -> str:
    count = room // (len(item) + 1)
    return ",".join([item] * (count if most is None else min(count, most)))


def one_text() -> tuple[str, bytes]:
    """One message as large as a body may be."""
    return "/v1/chat/completions", _chat(_user("a" * (BODY_BYTES - 300)))


def too_large() -> tuple[str, bytes]:
    """Four times of what a body may be."""
    return "/v1/chat/completions", _chat(_user("a" * 4 * BODY_BYTES))


def escapes() -> tuple[str, bytes]:
    """A text of escapes only."""
    return "/v1/chat/completions", _chat(_user("\\u00e9" * ((BODY_BYTES - 300) // 6)))


def most_messages() -> tuple[str, bytes]:
    """As many messages as a conversation may have, as large as a body may be."""
    return "/v1/chat/completions", _chat(_filled(_user("a" * 780), most=9_999))


def many_messages() -> tuple[str, bytes]:
    """Far more messages than a conversation may have."""
    return "/v1/chat/completions", _chat(_filled(_user("a")))


def most_values() -> tuple[str, bytes]:
    """A schema with as many values as fit."""
    schema = f'{{"type":"object","properties":{{}},"enum":[{_filled("1", 480_000)}]}}'
    tool = f'{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}'
    return "/v1/chat/completions", _chat(_user("hi"), f',"tools":[{tool}]')


def many_parts() -> tuple[str, bytes]:
    """One message of many parts."""
    part = '{"type":"text","text":"a"}'
    return (
        "/v1/chat/completions",
        _chat(f'{{"role":"user","content":[{_filled(part, most=80_000)}]}}'),
    )


def many_lines() -> tuple[str, bytes]:
    """A text of line ends."""
    return "/v1/chat/completions", _chat(_user("a\\n" * ((BODY_BYTES - 300) // 3)))


def counted() -> tuple[str, bytes]:
    """The largest text, to be counted."""
    return "/v1/messages/count_tokens", _chat(_user("a b " * (BODY_BYTES // 4 - 100)))


def responses() -> tuple[str, bytes]:
    """The largest input of the responses API."""
    item = '{"role":"user","content":[{"type":"input_text","text":"' + "a" * 700 + '"}]}'
    body = f'{{"model":"{MODEL}","max_output_tokens":8,"input":[{_filled(item, most=9_999)}]}}'
    return "/v1/responses", body.encode()


def _png(more: bytes) -> str:
    """Return a message with an image of a pixel whose header has further parts."""
    head = b"\x89PNG\r\n\x1a\n" + _part(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    data = base64.b64encode(head + more + _part(b"IDAT", b"")).decode()
    return f'{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}'


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + bytes(4)


def _seen(images: str) -> str:
    return f'{{"role":"user","content":[{images}]}}'


def images() -> tuple[str, bytes]:
    """Images that fill a body."""
    return "/v1/chat/completions", _chat(
        _seen(",".join(_png(_part(b"teXt", bytes(2_900_000))) for _ in range(2)))
    )


def answers_to_images() -> tuple[str, bytes]:
    """As many answers to them as a request may ask for."""
    path, body = images()
    return path, body.replace(b'"max_tokens":8', b'"max_tokens":8,"n":128')


def many_images() -> tuple[str, bytes]:
    """Far more images than a conversation may have."""
    return "/v1/chat/completions", _chat(_seen(_filled(_png(b""), most=15_000)))


def long_headers() -> tuple[str, bytes]:
    """As many images as a conversation may have, with the longest headers."""
    return "/v1/chat/completions", _chat(_seen(_filled(_png(_part(b"teXt", bytes(48)) * 990), most=99)))


def small_calls() -> tuple[str, bytes]:
    """Small calls, as many as possible."""
    return "/v1/chat/completions", _chat(_user("hi"))


def refused() -> tuple[str, bytes]:
    """Small requests that are refused."""
    return "/v1/chat/completions", b'{"model":"other","messages":[]}'


ATTACKS: dict[str, Callable[[], tuple[str, bytes]]] = {
    attack.__name__: attack
    for attack in (
        one_text,
        too_large,
        escapes,
        most_messages,
        many_messages,
        most_values,
        many_parts,
        many_lines,
        counted,
        responses,
        images,
        answers_to_images,
        many_images,
        long_headers,
        small_calls,
        refused,
    )
}


async def attack(url: str, key: str, name: str) -> None:
    """Send the requests of an attack until the process is killed; report the first answer."""
    path, body = ATTACKS[name]()
    reported = False

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal reported
        while True:
            try:
                async with session.post(url + path, data=body) as answer:
                    content = await answer.read()
                    status = f"{answer.status} {content[:120].decode(errors='replace')}"
            except aiohttp.ClientError as error:
                status = type(error).__name__
            if not reported:
                reported = True
                print(status.replace("\n", " "), flush=True)

    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(
            headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(None)
        ) as session,
        anyio.create_task_group() as group,
    ):
        for _ in range(IN_FLIGHT):
            group.start_soon(client, session)


@contextmanager
def attacked(url: str, key: str, name: str) -> Generator[None]:
    """Attack a gateway; enter when the first request of the attack is answered."""
    command = [sys.executable, str(Path(__file__).resolve()), "--attack", url, key, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            print(f"{name}: {process.stdout.readline().strip()}", file=sys.stderr)
            yield
        finally:
            process.kill()


async def latencies(session: aiohttp.ClientSession, url: str, key: str, calls: int = CALLS) -> list[float]:
    """Return the milliseconds of a client's calls, smallest first."""
    times: list[float] = []
    for _ in range(calls):
        await anyio.sleep(PAUSE_SECONDS)
        begin = time.perf_counter()
        async with session.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}) as answer:
            await answer.read()
            assert answer.status == 200, answer.status
        times.append(1000 * (time.perf_counter() - begin))
    return sorted(times)


def memory_mb(pid: int, field: str) -> float:
    """Return a figure of a process's memory in MB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"no {field}")


@asynccontextmanager
async def gateway_of_two() -> AsyncGenerator[tuple[Gateway, str, str]]:
    """Start a gateway with two open episodes; yield it with their keys."""
    async with upstream() as url:
        with tempfile.TemporaryDirectory() as folder:
            settings = GatewaySettings.model_validate(
                {
                    "folder": folder,
                    "upstream": {"base_url": f"{url}/v1", "model": MODEL, "tokens": "recorded"},
                    "limits": {"calls": 1_000_000, "tokens": 10**12},
                }
            )
            async with Gateway(settings) as gateway, GatewayClient(gateway.url, gateway.token) as client:
                tasks = [Task(index=number, id=str(number), question="q") for number in range(2)]
                await client.offer(
                    [EpisodeOffer(id=f"{task.id}/0", group=task.id, task=task) for task in tasks]
                )
                begun = [await client.begin() for _ in tasks]
                keys = [episode.keys[""] for episode in begun if episode is not None]
                yield gateway, keys[0], keys[1]
                for episode in begun:
                    if episode is not None:
                        await client.end(episode, EpisodeOutcome(reward=1.0))


async def measure(names: list[str]) -> list[Row]:
    """Return the figures of each attack. Each attack meets a gateway of its own, whose peak of memory is its."""
    rows: list[Row] = []
    for name in names:
        async with gateway_of_two() as (gateway, attacker, victim), aiohttp.ClientSession() as session:
            await latencies(session, gateway.url, victim, WARM_CALLS)
            before = await latencies(session, gateway.url, victim)
            rest = memory_mb(gateway.pid, "VmRSS")
            with attacked(gateway.url, attacker, name):
                during = await latencies(session, gateway.url, victim)
            added = memory_mb(gateway.pid, "VmHWM") - rest
            await anyio.sleep(SETTLE_SECONDS)
        baseline = "without attack"
        rows += [
            Row(f"{name}_p50_ms", during[len(during) // 2], before[len(before) // 2], baseline),
            Row(f"{name}_p99_ms", during[int(0.99 * len(during))], before[int(0.99 * len(before))], baseline, MAX_MS),
            Row(f"{name}_added_mb", added, 0.0, "its rest", MAX_MB),
        ]  # fmt: skip
    return rows


def main() -> int:
    """Print the table, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is missed")
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=ATTACKS, help="by default all")
    parser.add_argument("--attack", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        anyio.run(attack, *options.attack)
    rows = anyio.run(measure, options.attacks)
    held = report(rows, "attacked", digits=1)
    return 0 if held or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
