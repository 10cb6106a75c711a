"""Answers of models that are kept in a file, so that nothing is paid for twice."""

import os
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import msgspec
from anyio import to_thread
from msgspec import Struct

from agentflow._decoding import DECODE_ERRORS
from agentflow._private_files import make_private_folder, open_private
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.models import Accounts, Call, Model, ModelSettings, ask_model, make_model
from agentflow.runs import RoleModel
from agentflow.trace import Failure, Reply, digest

T = TypeVar("T")
_AT_ONCE: Final = 32
"""Maximum number of concurrent calls."""


class _KeptLine(Struct, frozen=True):
    key: str
    value: msgspec.Raw


class KeptReplies:
    """A model whose answers are kept in a file: equal calls are made once, also after a crash. See docs/readers.md."""

    def __init__(self, model: Model, file: Path | None = None) -> None:
        """:param file: JSONL file of the answers, created if missing; `None` keeps them in memory.
        :raises ConfigurationError: one line, if the file can't be used.
        """
        self.made = 0
        """Number of calls that were made."""
        self.found = 0
        """Number of calls that were answered by the file."""
        self._model = model
        self._file = file
        self._kept: dict[str, bytes] = {}
        self._asking: dict[str, anyio.Event] = {}
        self._slots = anyio.Semaphore(_AT_ONCE)
        self._writing = anyio.Lock()
        if file is not None:
            self._read(file)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model.name

    async def ask(self, call: Call[T], *about: object) -> tuple[T | None, Failure | None]:
        """Return the answer to a call, or the reason for its failure. Failures are not kept.

        :param about: what else makes calls different, such as the number of a sample.
        :raises RunStopped: if the model can't be used any more.
        """
        key = digest([self._model.name, call.role, call.messages, call.schema, call.sampling, about], 16)
        while key in self._asking:
            await self._asking[key].wait()
        if (kept := self._kept.get(key)) is not None:
            # A line of another program, or a damaged one, counts as none.
            with suppress(*DECODE_ERRORS):
                value = msgspec.json.decode(kept, type=call.reply)
                self.found += 1
                return value, None
        answered = self._asking[key] = anyio.Event()
        try:
            async with self._slots:
                self.made += 1
                reply: Reply[T] = await ask_model(self._model, call)
            if reply.value is not None:
                await self._keep(key, msgspec.json.encode(reply.value))
            return reply.value, reply.failure
        finally:
            del self._asking[key]
            answered.set()

    async def _keep(self, key: str, value: bytes) -> None:
        self._kept[key] = value
        if self._file is None:
            return
        line = msgspec.json.encode(_KeptLine(key, msgspec.Raw(value))) + b"\n"
        async with self._writing:
            with anyio.CancelScope(shield=True):
                try:
                    await to_thread.run_sync(_append, self._file, line)
                except OSError as error:
                    problem = f"cache: {self._file} can't be written: {error.strerror or error}"
                    raise RunStopped(StopCause.JOURNAL, f"{problem}; the same command continues") from None

    def _read(self, file: Path) -> None:
        decoder = msgspec.json.Decoder(_KeptLine)
        try:
            lines = file.read_bytes().split(b"\n") if file.exists() else []
        except OSError as error:
            raise ConfigurationError(
                f"cache: {file} can't be read: {error.strerror}; name another folder"
            ) from None
        for line in lines:
            # The last line of a killed process may be broken: that call is made again.
            try:
                kept = decoder.decode(line)
            except DECODE_ERRORS:
                continue
            self._kept[kept.key] = bytes(kept.value)


class OpenModels(AsyncExitStack):
    """Models of roles, each opened once."""

    def __init__(self, cache: str | None) -> None:
        """:param cache: folder of kept answers."""
        super().__init__()
        self._cache = cache
        self._open: dict[str, KeptReplies] = {}

    @property
    def made(self) -> int:
        """Number of calls that were made."""
        return sum(replies.made for replies in self._open.values())

    async def opened(self, role: RoleModel, setting: str) -> KeptReplies:
        """Return the model of a role.

        :raises ConfigurationError: one line, if none is named.
        """
        key = role.model_dump_json()
        if key not in self._open:
            model = await self.enter_async_context(make_model(model_settings(role, setting), Accounts()))
            self._open[key] = KeptReplies(model, cache_folder(self._cache) / "replies.jsonl")
        return self._open[key]


def model_settings(role: RoleModel, setting: str) -> ModelSettings:
    """Return the settings of a role's model.

    :param setting: setting that names it, for error messages.
    :raises ConfigurationError: one line, if none is named.
    """
    fields: dict[str, Any] = {
        name: value for name in RoleModel.model_fields if (value := getattr(role, name)) is not None
    }
    name = fields.pop("model_name", None)
    if name is None:
        raise ConfigurationError(f"{setting}: there is none; set {setting}.model_name")
    return ModelSettings(name=name, **fields)


def cache_folder(cache: str | None) -> Path:
    """Return the folder of kept answers: the given one, or that of the user's cache. See docs/readers.md."""
    if cache is not None:
        return Path(cache)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "agentflow", "readers")


def _append(path: Path, line: bytes) -> None:
    make_private_folder(path.parent)
    with open_private(path, "a+b") as file:
        # Start on a new line after an unfinished one.
        if file.tell():
            file.seek(-1, 2)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
