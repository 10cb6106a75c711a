"""A rate limit that many processes share: its used share, and the requests that the endpoint refuses.

Run `python benchmarks/rate_limits.py [--check] [--workers N] [--seconds S]`: prints a table, and as the last line one JSON
object. With `--check` it exits with 1 if a limit is missed. The workers are processes of their own with a journal on Postgres.
The endpoint refuses a request with status 429 if it had answered as many as its limit in the second before. As the baseline,
the same workers have no setting for the limit, so that only refusals slow them down.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentflow.errors import ModelFailure, RunStopped
from agentflow.journal import open_journal
from agentflow.models import Accounts, Call, Message, ModelEndpoints, ModelSettings, TextPart, make_model
from tests._postgres import postgres_server

PER_SECOND = 100
IN_FLIGHT = 16
"""Calls of a worker at once."""
LEAST, MOST = 0.95, 1.0
ANSWER = {
    "model": "painter",
    "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1},
}


class LimitedEndpoint:
    """Endpoint that answers at most its limit in any second."""

    def __init__(self) -> None:
        self.answered: list[float] = []
        self.refused = 0
        self.is_reached = asyncio.Event()
        """It has answered three seconds' worth of requests."""
        self._last: deque[float] = deque()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer, or refuse."""
        await request.read()
        now = time.monotonic()
        while self._last and self._last[0] <= now - 1:
            self._last.popleft()
        if len(self._last) >= PER_SECOND:
            self.refused += 1
            return web.json_response({"error": {"message": "too many requests"}}, status=429)
        self._last.append(now)
        self.answered.append(now)
        if len(self.answered) == 3 * PER_SECOND:
            self.is_reached.set()
        return web.json_response(ANSWER)


async def work(url: str, journal: str, per_minute: float | None) -> None:
    """Call the model until the program is killed."""
    settings = ModelSettings(
        name="painter", base_url=url, requests_per_minute=per_minute, max_concurrency=IN_FLIGHT
    )
    async with open_journal(journal) as opened:
        run = await opened.open_run("run", {})
        async with make_model(settings, Accounts(), endpoints=ModelEndpoints(rates=run)) as model:

            async def calls() -> None:
                call = Call(role="planner", messages=(Message("user", (TextPart("Go on?"),)),), reply=str)
                while True:
                    try:
                        await model.complete(call)
                    except (ModelFailure, RunStopped):
                        continue

            async with anyio.create_task_group() as tasks:
                for _ in range(IN_FLIGHT):
                    tasks.start_soon(calls)


async def measure(journal: str, workers: int, seconds: float, *, limited: bool) -> dict[str, float]:
    """Let the workers call, and return the used share of the limit and the refused share of the requests."""
    endpoint = LimitedEndpoint()
    runner = web.ServerRunner(web.Server(endpoint.handle, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address: tuple[str, int] = runner.addresses[0]
    command = [sys.executable, __file__, "--worker", f"http://127.0.0.1:{address[1]}/v1", journal]
    command += [str(PER_SECOND * 60) if limited else "0"]
    processes = _start(command, workers)
    try:
        # All workers have begun once the limit was reached for some seconds.
        await endpoint.is_reached.wait()
        await asyncio.sleep(2)
        began, refused = time.monotonic(), endpoint.refused
        await asyncio.sleep(seconds)
        answered = sum(began <= at < began + seconds for at in endpoint.answered)
        refused = endpoint.refused - refused
    finally:
        for process in processes:
            process.kill()
            process.wait()
        await runner.cleanup()
    return {"used": answered / (PER_SECOND * seconds), "refused": refused / max(1, answered + refused)}


def _start(command: Sequence[str], count: int) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen(command) for _ in range(count)]


def main() -> int:
    """Measure, print, check."""
    parser = argparse.ArgumentParser(description="Measure a rate limit that many processes share.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is missed")
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        url, journal, per_minute = given.worker
        anyio.run(work, url, journal, float(per_minute) or None)
    with postgres_server() as server:
        journal = server.new_database()

        async def both() -> tuple[dict[str, float], dict[str, float]]:
            async with open_journal(journal) as opened:
                await opened.open_run("run", {})
            shared = await measure(journal, given.workers, given.seconds, limited=True)
            return shared, await measure(journal, given.workers, given.seconds, limited=False)

        shared, alone = asyncio.run(both())
    print(f"{given.workers} processes, a limit of {PER_SECOND} requests per second")
    print(
        f"  shared limit      {shared['used']:6.1%} used (95 % to 100 %)   {shared['refused']:6.2%} refused (none)"
    )
    print(f"  refusals alone    {alone['used']:6.1%} used                   {alone['refused']:6.2%} refused")
    met = LEAST <= shared["used"] <= MOST and shared["refused"] == 0
    print(
        msgspec.json.encode(
            {"benchmark": "rate_limits", "met": met, "shared": shared, "alone": alone}
        ).decode()
    )
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
