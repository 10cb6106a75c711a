"""The workers of a server: as many as are allowed, for whichever databases are in use."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from mcp_servers.sql._worker import Place, Worker

__all__ = ["Workers"]


class Workers:
    """Workers that are lent for one request each, and kept for the next one that needs the same database.

    There are never more than so many: one that nobody has used for longest makes room.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._turns = anyio.Semaphore(most)
        self._idle: list[tuple[Place, Worker]] = []
        self._busy = 0

    @asynccontextmanager
    async def lend(self, place: Place) -> AsyncGenerator[Worker]:
        """A worker that has this database open.

        :raises WorkerFailure: if it can't be opened.
        """
        async with self._turns:
            self._busy += 1
            worker: Worker | None = None
            try:
                worker = self._kept(place)
                if worker is None:
                    await self._make_room()
                    worker = await Worker.start(place)
                yield worker
            finally:
                self._busy -= 1
                if worker is not None and worker.usable:
                    self._idle.append((place, worker))
                elif worker is not None:
                    await worker.close()

    async def forget(self, place: Place) -> None:
        """End the workers that hold this database and have nothing to do."""
        for one in [one for one in self._idle if one[0] == place]:
            self._idle.remove(one)
            await one[1].close()

    async def close(self) -> None:
        """End all that have nothing to do."""
        idle, self._idle = self._idle, []
        async with anyio.create_task_group() as group:
            for _, worker in idle:
                group.start_soon(worker.close)

    def _kept(self, place: Place) -> Worker | None:
        for number in reversed(range(len(self._idle))):
            if self._idle[number][0] == place:
                return self._idle.pop(number)[1]
        return None

    async def _make_room(self) -> None:
        while self._idle and self._busy + len(self._idle) > self._most:
            _, oldest = self._idle.pop(0)
            await oldest.close()
