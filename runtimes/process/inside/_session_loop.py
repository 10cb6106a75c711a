"""Loop of a Python session inside its sandbox: take a request, run it, reply.

Requests and replies are frames of JSON objects on the control socket. The server trusts nothing that
this process sends.
"""

import json
import os
import random
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

from runtimes._framing import read_frame, write_frame
from runtimes.process.inside import _fork_move
from runtimes.process.inside._evaluate import PythonEvaluator, new_stream

CONTROL_FD = 3
"""Descriptor of the session's control socket."""

_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
_read, _write, _exit, _signal = os.read, os.write, os._exit, signal.signal
_SIGINT = signal.SIGINT
_CHUNK_BYTES = 1 << 20


class SessionLoop:
    """One Python session: its evaluator, its control socket, and its running state."""

    def __init__(self, control: int, evaluator: PythonEvaluator) -> None:
        self._control = control
        self._evaluator = evaluator
        self._running = False
        self._count = 0

    def serve(self) -> NoReturn:
        """Serve requests until the other end closes."""
        _signal(_SIGINT, self._interrupted)
        sys.stdout, sys.stderr = new_stream(1), new_stream(2)
        self._send({"ready": True})
        while True:
            request = self._receive()
            if request["op"] == "run":
                self._send({**self._run(request["source"]), "run": request["run"]})
            elif request["op"] == "fork":
                self._fork(request["uid"])

    def _run(self, source: str) -> dict[str, Any]:
        self._count += 1
        _signal(_SIGINT, self._interrupted)
        self._running = True
        try:
            result: dict[str, Any] = self._evaluator.run(source, f"<cell {self._count}>")
        except KeyboardInterrupt:
            result = {
                "value": None,
                "error": {"type": "KeyboardInterrupt", "message": "", "traceback": ""},
                "displays": [],
            }
        finally:
            self._running = False
        try:
            result["cwd"] = os.getcwd()
        except OSError:
            result["cwd"] = ""
        return result

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._running and self._evaluator.interruptible:
            raise KeyboardInterrupt

    def _fork(self, uid: int) -> None:
        obstacle = _fork_move.fork_obstacle()
        if obstacle:
            self._send({"error": obstacle})
            return
        left_behind = _fork_move.unmovable_threads()
        # The standard library reseeds `random` in a fork; this fork must continue its parent's sequence.
        random_state = random.getstate()
        try:
            in_child = _fork_move.fork_copy()
        except OSError as error:
            self._send({"error": f"the interpreter can't copy itself: {error.strerror}"})
            return
        if not in_child:
            self._send({"forked": True})
            return
        random.setstate(random_state)
        try:
            left_behind += _fork_move.move(uid, self._control)
        except BaseException as error:
            # Boundary of the copy: it must not keep running in its parent's sandbox.
            _write(2, f"the fork could not move: {error!r}\n".encode("utf-8", "replace"))
            _exit(71)
        self._send({"ready": True, "left_behind": left_behind})

    def _receive(self) -> dict[str, Any]:
        try:
            payload = read_frame(lambda size: _read(self._control, min(size, _CHUNK_BYTES)))
        except (OSError, ValueError):
            _exit(0)
        if payload is None:
            _exit(0)
        return _decode(payload.decode())

    def _send(self, answer: dict[str, Any]) -> None:
        try:
            write_frame(self._control, _encode(answer).encode())
        except OSError:
            _exit(0)
