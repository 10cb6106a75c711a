"""Equality of mathematical answers by math-verify, in a process of its own.

math-verify interrupts itself by signals, which only work in a main thread, and SymPy may compute without end. Therefore
a helper process compares, and forks for each comparison. The fork has a limit of CPU time, so that a busy machine does not
change a verdict, and one of memory. This file is also the program of the helper: it imports only the standard library.
"""

import atexit
import importlib
import importlib.util
import json
import logging
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Final, Protocol

_CPU_SECONDS: Final = 2.0
_ADDRESS_SPACE: Final = 4 << 30
_PATIENCE: Final = 120.0
"""Seconds without a reply after which the helper is replaced: a backstop, far above the limit of CPU time."""
_MAX_STARTS: Final = 3
_EQUAL, _DIFFERENT = 10, 11
_MATHEMATICS: Final = re.compile(r"\$|\\\(|\\\[|\\boxed")
_NUMBER: Final = re.compile(r"\s*[-+]?\s*[$€£]?[\d.,\s]+[%$€£]?\s*")
_PROSE: Final = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}(?:'[a-z]+)?[ ,:]+[A-Za-z]*")


@cache
def has_math_verify() -> bool:
    """Return whether math-verify is installed."""
    return importlib.util.find_spec("math_verify") is not None


def equal_by_math_verify(prediction: str, references: Sequence[str]) -> bool | None:
    """Return whether math-verify finds a text equal to a reference; `None` without a verdict."""
    return _helper.ask(prediction, references)


class _Helper:
    """Helper process, started by the first question. Threads take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def ask(self, prediction: str, references: Sequence[str]) -> bool | None:
        request = json.dumps({"prediction": prediction, "references": list(references)}).encode() + b"\n"
        with self._lock:
            for _ in range(2):
                if (reply := self._exchange(request)) is not None:
                    return {b"equal": True, b"different": False}.get(reply.strip())
        return None

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def forget(self) -> None:
        """Leave the process to the parent of this fork."""
        self._lock, self._process = threading.Lock(), None

    def _exchange(self, request: bytes) -> bytes | None:
        """Return the reply; `None` if the process ended."""
        process = self._process or self._start()
        if process is None or process.stdin is None or process.stdout is None:
            return None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], _PATIENCE)
            reply = process.stdout.readline() if ready else b""
        except OSError:
            reply = b""
        if not reply:
            self.stop()
            return None
        return reply

    def _start(self) -> subprocess.Popen[bytes] | None:
        if self._starts >= _MAX_STARTS:
            return None
        self._starts += 1
        command = [sys.executable, "-P", "-X", "utf8", __file__]
        with suppress(OSError):
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._process


_helper: Final = _Helper()
os.register_at_fork(after_in_child=_helper.forget)
atexit.register(_helper.stop)


class _Parse(Protocol):
    def __call__(
        self, pred: str, extraction_config: Sequence[object], *, parsing_timeout: int | None
    ) -> list[object]: ...


class _Verify(Protocol):
    def __call__(self, gold: list[object], target: list[object], *, timeout_seconds: int | None) -> bool: ...


def _serve() -> None:
    """Answer questions, one a line, until the input ends."""
    # Libraries may print: replies have a descriptor of their own.
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    compare = _comparer()
    # Forks share what the first comparison compiles and caches.
    compare(r"$\frac{1}{2}$", r"x + \sqrt{2}")
    while line := sys.stdin.buffer.readline():
        child = os.fork()
        if child == 0:
            os._exit(_judge(compare, line))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        replies.write({_EQUAL: b"equal\n", _DIFFERENT: b"different\n"}.get(code, b"none\n"))


def _judge(compare: Callable[[str, str], bool], line: bytes) -> int:
    """Return the verdict as an exit status, in a fork."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
    try:
        request = json.loads(line)
        equal = any(compare(request["prediction"], reference) for reference in request["references"])
    except Exception:  # boundary: libraries fail in many ways on the text of a model
        return 1
    return _EQUAL if equal else _DIFFERENT


def _comparer() -> Callable[[str, str], bool]:
    module = importlib.import_module("math_verify")
    parse: _Parse = module.parse
    verify: _Verify = module.verify
    targets = (module.LatexExtractionConfig(boxed_match_priority=0), module.ExprExtractionConfig())

    def read(text: str) -> list[object]:
        return parse(text, targets, parsing_timeout=None)

    def values(text: str) -> list[object]:
        """Parse a text as it is if it is prose or marks its mathematics, and else as one expression."""
        if _MATHEMATICS.search(text) or _PROSE.search(text):
            return read(text)
        whole = read(f"\\boxed{{{text}}}")
        return read(text) + whole if _NUMBER.fullmatch(text) else whole or read(text)

    def compare(prediction: str, reference: str) -> bool:
        return verify(values(reference), values(prediction), timeout_seconds=None)

    return compare


if __name__ == "__main__":
    _serve()
