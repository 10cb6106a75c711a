"""Control frames: whatever a session sends, the server gets a valid reply, drops it, or ends the session."""

import asyncio
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

import pytest

from runtimes import Outcome, pack_frame, pack_message
from runtimes.process._control_socket import (
    MAX_UNASKED,
    ControlSocket,
    PythonControlSocket,
    PythonReply,
    ShellControlSocket,
)
from runtimes.process._sessions import python_result
from tests.fuzz._budget import FuzzBudget, FuzzCase, fuzzed

pytestmark = pytest.mark.promise("instances:control:fuzzed")
SocketT = TypeVar("SocketT", bound=ControlSocket[PythonReply] | ControlSocket[list[bytes]])

READY = pack_frame(pack_message({"run": 0}))
RESULT: dict[str, object] = {
    "run": 1,
    "cwd": "/",
    "value": 5,
    "error": [1, 2, 3],
    "displays": [["image/png", 4], ["text/html", 2]],
}
EMPTY: dict[str, object] = {"run": 1, "cwd": "/", "value": None, "error": None, "displays": []}
PYTHON_CORPUS = [
    READY + pack_frame(pack_message(RESULT, b"value123456picthi")),
    READY + pack_frame(pack_message(EMPTY)),
    READY + pack_frame(pack_message({"run": 1, "error": "it can't be copied"})),
    READY * (MAX_UNASKED + 2) + pack_frame(pack_message(EMPTY)),
]
SHELL_CORPUS = [
    b"1\0000\0/home/agent\0",
    b"1\0000\0/home/agent\0" * (MAX_UNASKED + 2),
    b"1\0declare -x A=1\n# left: job\n\0001\0000\0/\0",
    b"7\0000\0/\0" + b"1\00012\0/\xff\0",
]


@contextmanager
def connected(
    kind: Callable[[socket.socket], SocketT],
) -> Generator[tuple[SocketT, socket.socket, asyncio.Event]]:
    """Yield a control socket, the session's end of it, and an event for its end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    control, over = kind(ours), asyncio.Event()
    control.listen(lambda _: over.set())
    try:
        with theirs:
            yield control, theirs, over
    finally:
        control.close()


async def sent(case: FuzzCase, theirs: socket.socket, data: bytes) -> None:
    """Send data in a few pieces, then close this end."""
    for piece in case.pieces(data):
        with suppress(ConnectionError):
            theirs.send(piece)
        await asyncio.sleep(0)
    theirs.shutdown(socket.SHUT_RDWR)


@contextmanager
def no_error_in_the_event_loop() -> Generator[None]:
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    try:
        yield
    finally:
        loop.set_exception_handler(None)
    assert errors == []


@fuzzed
async def test_any_reply_of_a_python_session_is_valid_or_refused(budget: FuzzBudget) -> None:
    with no_error_in_the_event_loop():
        for case in budget.cases(short=400):
            with case, connected(PythonControlSocket) as (control, theirs, over):
                reply = control.request("run", source="1")
                await sent(case, theirs, case.mutated(case.choice(PYTHON_CORPUS)))
                await asyncio.wait_for(over.wait(), 60)
                if reply.done():
                    answer = reply.result()
                    assert answer is not None
                    with suppress(KeyError, TypeError, ValueError, AttributeError):
                        result = python_result(answer, Outcome.OK, "", "")
                        (result.cwd + (result.value or "")).encode()


@fuzzed
async def test_any_reply_of_a_shell_is_valid_or_refused(budget: FuzzBudget) -> None:
    with no_error_in_the_event_loop():
        for case in budget.cases(short=400):
            with case, connected(ShellControlSocket) as (control, theirs, over):
                word = case.choice(("run", "dump"))
                reply = control.request(word, b"true")
                await sent(case, theirs, case.mutated(case.choice(SHELL_CORPUS)))
                await asyncio.wait_for(over.wait(), 60)
                if reply.done():
                    assert len(reply.result() or []) == (3 if word == "dump" else 2)
