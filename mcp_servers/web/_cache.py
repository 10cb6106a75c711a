"""Cache on disk of search results and pages."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio.to_thread
import msgspec

from agentflow._decoding import DECODE_ERRORS
from mcp_servers.core._disk_cache import DiskCache, user_cache
from mcp_servers.web._settings import CacheSettings

T = TypeVar("T")


class WebCache:
    """Cache of replies by request. Without settings it is disabled; disk errors are ignored."""

    def __init__(self, settings: CacheSettings | None, wall: Callable[[], float]) -> None:
        self._files: DiskCache | None = None
        if settings is not None and settings.bytes:
            folder = (settings.folder or user_cache("web")).expanduser().absolute()
            self._files = DiskCache(folder, settings.bytes, lifetime=settings.seconds, wall=wall)

    async def get(self, key: tuple[str, ...], shape: type[T]) -> T | None:
        """Return the cached reply to a request, if it has not expired."""
        if self._files is None:
            return None
        data = await anyio.to_thread.run_sync(self._files.get, _name_of(key))
        try:
            return None if data is None else msgspec.msgpack.decode(data, type=shape)
        except DECODE_ERRORS:
            return None

    async def put(self, key: tuple[str, ...], answer: object) -> None:
        """Store a reply."""
        if self._files is not None:
            await anyio.to_thread.run_sync(self._files.put, _name_of(key), msgspec.msgpack.encode(answer))

    async def get_or_request(
        self, key: tuple[str, ...], shape: type[T], request: Callable[[], Awaitable[T]]
    ) -> T:
        """Return the cached reply; without one, request it and store it."""
        answer = await self.get(key, shape)
        if answer is None:
            answer = await request()
            await self.put(key, answer)
        return answer


def _name_of(key: tuple[str, ...]) -> str:
    name = hashlib.blake2b(msgspec.msgpack.encode(key), digest_size=20).hexdigest()
    return f"{name[:2]}/{name}"
