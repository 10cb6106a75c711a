"""Tasks of reasoning-gym and their scores.

Some of its scorers evaluate expressions, so the text of a model is scored in a confined process: this module is also its program.
"""

import atexit
import importlib
import json
import logging
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from anyio import to_thread

from agentflow._decoding import JsonError, decode_json
from agentflow._import_path import module_command
from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError, error_line
from agentflow.extras import missing_extra
from agentflow.readers._reading import Located, plain_value, take_option
from agentflow.readers._settings import REASONING_GYM, ParsedSource, ReaderSettings
from agentflow.scoring import marked_answer
from agentflow.settings import nearest
from agentflow.text import without_reasoning
from agentflow.trace import Task
from runtimes import refuse_changes, restrict_calls, set_limit

_CPU_SECONDS: Final = 5.0
_SECONDS: Final = 120
"""Time for a score, far above the limit of CPU time."""
_ADDRESS_SPACE: Final = 4 << 30
_MAX_ANSWER: Final = 100_000
"""Maximum length of an answer that is scored."""


def read_reasoning_gym(source: ParsedSource, settings: ReaderSettings) -> Iterator[Located]:
    """Iterate over generated tasks: `reasoning_gym:NAME[,NAME]?size=100&seed=1`; other options configure the generator.

    :raises ConfigurationError: one line, if the library is missing, or a name or an option is unknown.
    """
    size = take_option(source, "size", int, 500)
    seed = take_option(source, "seed", int, 0)
    if size < 1:
        raise ConfigurationError(f"reasoning_gym:{source.target}: size is {size}; write a number above 0")
    names = [name.strip() for name in source.target.split(",")]
    made = {name: _dataset(name, size, seed, json.dumps(source.options, sort_keys=True)) for name in names}
    for number in range(size):
        for name, dataset in made.items():
            entry = dataset[number]
            location = f"reasoning_gym:{name}: task {number}"
            details: object = entry.get("metadata")
            difficulty = details.get("difficulty") if is_object(details) else None
            origin = {"dataset": name, "size": size, "seed": seed, "number": number, "config": source.options}
            yield (
                location,
                Task(
                    index=0,
                    id=f"{name}/{seed}/{number}",
                    question=str(entry["question"]),
                    references=() if entry.get("answer") is None else (str(entry["answer"]),),
                    metadata={
                        "source": REASONING_GYM,
                        REASONING_GYM: origin,
                        "difficulty": plain_value(location, difficulty or {}),
                    },
                ),
            )


def _library(where: str) -> Any:  # noqa: ANN401 - a library without types
    with warnings.catch_warnings():
        # A library that it imports compares texts by identity.
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            return importlib.import_module("reasoning_gym")
        except ImportError:
            raise ConfigurationError(missing_extra(where, "games")) from None


def _dataset(name: str, size: int, seed: int, config: str) -> Any:  # noqa: ANN401 - a library without types
    where = f"reasoning_gym:{name}"
    library = _library(where)
    data_sets: Any = importlib.import_module("reasoning_gym.factory").DATASETS
    if name not in data_sets:
        raise ConfigurationError(f"{where}: there is no such data set{nearest(name, data_sets)}")
    try:
        return library.create_dataset(name, size=size, seed=seed, **json.loads(config))
    except Exception as error:  # boundary: the library refuses options by assertions and other errors
        raise ConfigurationError(f"{where}: {error_line(error)}; check its options") from None


def score_reasoning_gym(answer: str, task: Task) -> float:
    """Return the score of an answer by the task's own scorer, which runs in a confined process.

    What the answer marks counts (`<answer>…</answer>`, a box), otherwise all of it. Many scorers give a wrong answer a small
    score above 0. See docs/readers.md.

    :raises ValueError: if the task is not of reasoning-gym, or its scorer failed.
    """
    origin: object = task.metadata.get(REASONING_GYM)
    if not is_object(origin):
        raise ValueError(f"{task.id} is not a task of reasoning_gym; choose another metric for it")
    prediction = without_reasoning(answer)
    marked = marked_answer(prediction)
    reply = _scorer.ask(
        {"answer": (prediction if marked is None else marked).strip()[:_MAX_ANSWER], **origin}
    )
    score: object = reply.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise ValueError(f"the scorer of {task.id} failed: {reply.get('error', 'it gave no number')}")
    return float(score)


async def ascore_reasoning_gym(answer: str, task: Task) -> float:
    """Return the score of an answer; the asynchronous form of `score_reasoning_gym`. See docs/readers.md.

    :raises ValueError: if the task is not of reasoning-gym, or its scorer failed.
    """
    return await to_thread.run_sync(score_reasoning_gym, answer, task)


class _Scorer:
    """Confined process that scores, started by the first answer. Threads take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            for _ in range(2):
                process = self._process or self._start()
                assert process.stdin is not None and process.stdout is not None
                with suppress(OSError, JsonError):
                    process.stdin.write(line)
                    process.stdin.flush()
                    if reply := process.stdout.readline():
                        read: object = decode_json(reply)
                        return read if is_object(read) else {}
                self.stop()
        return {"error": "its process ended"}

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def forget(self) -> None:
        """Leave the process to the parent of this fork."""
        self._lock, self._process = threading.Lock(), None

    def _start(self) -> subprocess.Popen[bytes]:
        command = module_command("agentflow.readers._reasoning_gym")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        return self._process


_scorer: Final = _Scorer()
os.register_at_fork(after_in_child=_scorer.forget)
atexit.register(_scorer.stop)


def _serve() -> None:
    """Answer requests, one a line, until the input ends; each in a fork with limits."""
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ConfigurationError):
        _library("reasoning_gym")  # Forks share what it loads.
    while line := sys.stdin.buffer.readline():
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os._exit(_score(line, writer))
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            output = pipe.read(1_000)
        _, status = os.waitpid(child, 0)
        ended = f"it ended with status {os.waitstatus_to_exitcode(status)} (limit: {_CPU_SECONDS:g} s of CPU)"
        try:
            reply: dict[str, Any] = {"score": float(output)}
        except ValueError:
            reply = {"error": output.decode(errors="replace") or ended}
        replies.write(json.dumps(reply).encode() + b"\n")


def _score(line: bytes, writer: int) -> int:
    """Write the score to a pipe, in a fork that can change no file and start no program."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    set_limit(resource.RLIMIT_AS, _ADDRESS_SPACE)
    signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
    signal.alarm(_SECONDS)
    try:
        refuse_changes()
        restrict_calls(files=True)
        request: dict[str, Any] = json.loads(line)
        answer = request.pop("answer")
        dataset, entry = _entry(**request)
        os.write(writer, repr(float(dataset.score_answer(answer, entry))).encode())
    except BaseException as error:  # boundary: the library fails in many ways on the text of a model
        os.write(writer, f"{type(error).__name__}: {error}".encode()[:900])
        return 1
    return 0


def _entry(
    dataset: str, size: int, seed: int, number: int, config: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    made = _dataset(dataset, size, seed, json.dumps(config, sort_keys=True))
    return made, made[number]


if __name__ == "__main__":
    _serve()
