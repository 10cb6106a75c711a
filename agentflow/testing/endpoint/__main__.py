"""Command line of the fake endpoint."""

import argparse
import asyncio
import contextlib
import gc
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from aiohttp import web

from agentflow.testing.endpoint._server import EndpointConfig, FakeEndpoint, FaultPlan


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m agentflow.testing.endpoint", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 for any free port")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="delay of each answer")
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="maximum additional delay")
    parser.add_argument("--faults", type=float, default=0.0, help="share of calls that fail, 0 to 1")
    parser.add_argument("--fault-seed", type=int, default=1, help="seed that selects the failing calls")
    parser.add_argument("--down-after", type=int, help="stop answering after this many calls")
    parser.add_argument(
        "--hold-after", type=int, help="after this many calls, hold the next ones until /release"
    )
    parser.add_argument("--log", type=Path, help="file that gets the body of every request, one per line")
    parser.add_argument("--same", action="store_true", help="always propose the same action")
    parser.add_argument("--structured", choices=["json_schema", "json_object", "text"], default="json_schema")
    parser.add_argument("--tool-turns", type=int, default=3, help="tool calls before an answer")
    parser.add_argument("--model", default="fake", help="name in the list of models")
    parser.add_argument("--weights", default="", help="folder of the weights that it starts with")
    return parser.parse_args()


async def _serve(options: argparse.Namespace) -> None:
    faults = FaultPlan(options.faults, options.fault_seed, options.down_after)
    config = EndpointConfig(
        delay_ms=options.delay_ms,
        jitter_ms=options.jitter_ms,
        faults=faults,
        same=options.same,
        structured=options.structured,
        tool_turns=options.tool_turns,
        hold_after=options.hold_after,
        model=options.model,
        weights=options.weights,
    )
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(options.log.open("ab")) if options.log else None
        server = web.Server(FakeEndpoint(config, log).handle, access_log=None)
        listener = await loop.create_server(server, "127.0.0.1", options.port, backlog=4096)
        sys.stdout.write(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1\n")
        sys.stdout.flush()
        await over.wait()
        listener.close()
        # Held requests are dropped at shutdown; 0 would mean to wait for them.
        await server.shutdown(0.01)


def _faster_loop() -> ModuleType | None:
    with contextlib.suppress(ImportError):
        return import_module("uvloop")
    return None


def main() -> None:
    """Run the fake endpoint until it is stopped."""
    options = _options()
    gc.freeze()
    faster = _faster_loop()
    with asyncio.Runner(loop_factory=faster.new_event_loop if faster else None) as runner:
        runner.run(_serve(options))


main()
