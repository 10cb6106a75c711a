"""Ray: addresses that are no cluster, and strangers at the Ray that a trainer starts for itself. Also a program: that Ray."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import anyio

from agentflow.errors import ConfigurationError
from agentflow.launch import _ray
from agentflow.launch._workers import WorkerCommand
from agentflow.learner._trainer_process import trainer_environment
from tests.attacks._table import Attack, attacks

CATEGORY: Final = "clusters"
REFUSED: Final = "refused in one line"
_OWN_RAY: Final = """
import json, sys
import psutil, ray
ray.init(include_dashboard=False, num_cpus=1, _temp_dir=sys.argv[1], object_store_memory=80 << 20, logging_level="ERROR", log_to_driver=False)
@ray.remote
def alive():
    return "alive"
family = [psutil.Process(), *psutil.Process().children(recursive=True)]
ports = [[one.laddr.ip, one.laddr.port] for process in family for one in process.net_connections("inet") if one.status == "LISTEN"]
print(json.dumps({"gcs": ray.get_runtime_context().gcs_address, "ports": ports}), flush=True)
for line in sys.stdin:
    print(ray.get(alive.remote(), timeout=60), flush=True)
"""
_STRANGER: Final = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
print(ray.get(ray.remote(lambda: "executed").remote(), timeout=20))
"""

ADDRESSES: Final[list[Attack]] = attacks(
    CATEGORY,
    {
        f"address: {name}": (aim, address, REFUSED)
        for name, (aim, address) in {
            "nobody": ("connect to nothing", "127.0.0.1:1"),
            "client": ("connect to nothing by Ray's client", "ray://127.0.0.1:1"),
            "port": ("overflow by a port", "127.0.0.1:99999999"),
            "negative port": ("use a negative port", "127.0.0.1:-1"),
            "no port": ("use a port that is no number", "127.0.0.1:evil"),
            "null": ("end a name by a null", "127.0.0.1\0evil:1"),
            "lines": ("print lines and escapes", "evil\n\x1b[2J:1"),
            "long": ("use a long name", f"{'x' * 10_000}:1"),
            "option": ("pass an option", "--address=evil:1"),
        }.items()
    },
)
STRANGERS: Final[list[Attack]] = attacks(
    CATEGORY,
    {
        "stranger: ports": ("reach a port from another machine", "listen", "only loopback; alive"),
        "stranger: no token": ("run a function without a token", "no token", "nothing executed; alive"),
        "stranger: wrong token": ("run a function with a wrong token", "0" * 32, "nothing executed; alive"),
        "stranger: garbage": (
            "end the cluster by bytes that are no request",
            "garbage",
            "nothing executed; alive",
        ),
    },
    soak=True,
)
ATTACKS: Final[list[Attack]] = [*ADDRESSES, *STRANGERS]


async def connect(table: Iterable[Attack]) -> dict[str, str]:
    """Start workers at each address; return the outcomes by id."""
    seen: dict[str, str] = {}
    for attack in table:
        try:
            with anyio.fail_after(60), patch.object(_ray, "CONNECT_SECONDS", 2.0):
                await _ray.RayWorkers(attack.code, WorkerCommand(()), 1).run()
            seen[attack.id] = "connected"
        except ConfigurationError as error:
            clean = str(error).isprintable() and len(str(error)) < 1_000
            seen[attack.id] = REFUSED if clean else f"refused: {str(error)[:300]!r}"
        except Exception as error:  # boundary: any error of an attack is its outcome
            seen[attack.id] = f"raised {type(error).__name__}: {error}"
    return seen


def _as_stranger(token: str, address: str, folder: Path) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_NUM_REDIS_GET_RETRIES": "2", "HOME": str(folder)}
    if token != "no token":
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    command = [sys.executable, "-c", _STRANGER, address]
    try:
        done = subprocess.run(
            command, env=own | variables, capture_output=True, encoding="utf-8", timeout=40, check=False
        )
    except subprocess.TimeoutExpired:
        return "nothing executed"
    return "executed" if "executed" in done.stdout else "nothing executed"


def _garbage(ports: Iterable[tuple[str, int]]) -> str:
    for ip, port in ports:
        for data in (
            b"\0" * 100_000,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 10_000,
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            with socket.create_connection((ip, port), 5) as connection:
                try:
                    connection.sendall(data)
                except OSError:
                    continue
    return "nothing executed"


def visit(table: Iterable[Attack], folder: Path) -> dict[str, str]:
    """Attack the Ray that a trainer starts for itself; return the outcomes by id."""
    seen: dict[str, str] = {}
    command = [sys.executable, "-c", _OWN_RAY, str(folder / "ray")]
    environment = trainer_environment(folder / "code")
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8") as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        found: dict[str, Any] = json.loads(server.stdout.readline())
        ports = [(str(ip).removeprefix("::ffff:"), int(port)) for ip, port in found["ports"]]
        for attack in table:
            if attack.code == "listen":
                outcome = "only loopback" if {ip for ip, _ in ports} <= {"127.0.0.1", "::1"} else str(ports)
            elif attack.code == "garbage":
                outcome = _garbage(ports)
            else:
                outcome = _as_stranger(attack.code, str(found["gcs"]), folder)
            server.stdin.write("\n")
            server.stdin.flush()
            seen[attack.id] = f"{outcome}; {server.stdout.readline().strip()}"
        server.stdin.close()
    return seen
