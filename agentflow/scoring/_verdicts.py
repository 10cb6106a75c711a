"""Cache of verdicts by content: equal cases are judged once, also when requested concurrently."""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread

from agentflow.errors import ConfigurationError
from agentflow.scoring._scored import Scored

_MOST: Final = 100_000


class Verdicts:
    """Verdicts by key, in memory and optionally in a file."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the cache.

        :param path: JSONL file that keeps the verdicts; created if missing.
        :raises ConfigurationError: one line, if the file can't be used.
        """
        self._path = path
        self._known: dict[str, Scored] = {}
        self._asking: dict[str, anyio.Event] = {}
        self._writing = anyio.Lock()
        self.found = 0
        """Number of cache hits."""
        if path is not None:
            self._read(path)

    async def once(self, key: str, ask: Callable[[], Awaitable[Scored]]) -> Scored:
        """Return the verdict of a key; compute it if it is missing. Failures are not cached."""
        while key in self._asking:
            await self._asking[key].wait()
        if (known := self._known.get(key)) is not None:
            self.found += 1
            return known
        asked = self._asking[key] = anyio.Event()
        try:
            scored = await ask()
            if scored.failure is None:
                await self._keep(key, scored)
            return scored
        finally:
            del self._asking[key]
            asked.set()

    async def _keep(self, key: str, scored: Scored) -> None:
        # A cached verdict costs nothing.
        self._known[key] = Scored(scored.score, scored.reason)
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        if self._path is None:
            return
        line = json.dumps({"key": key, "score": scored.score, "reason": scored.reason}, ensure_ascii=False)
        async with self._writing:
            await to_thread.run_sync(_append, self._path, line + "\n")

    def _read(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        except (OSError, UnicodeDecodeError):
            raise ConfigurationError(
                f"cache: {path} can't be read as a file of verdicts; name another one"
            ) from None
        for line in lines:
            # The last line of a killed process may be broken: that case is judged again.
            with suppress(ValueError, KeyError, TypeError):
                kept: Any = json.loads(line)
                self._known[str(kept["key"])] = Scored(float(kept["score"]), str(kept["reason"]))


def _append(path: Path, line: str) -> None:
    with path.open("a+b") as file:
        # Start on a new line after an unfinished one.
        if file.tell():
            file.seek(-1, 2)
            line = line if file.read(1) == b"\n" else "\n" + line
        file.write(line.encode())
