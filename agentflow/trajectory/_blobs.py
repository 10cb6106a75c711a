"""Content-addressed blobs in memory."""

from collections.abc import Mapping

from agentflow.trajectory._node import Blob


class MemoryBlobStore:
    """Blob store in memory with the interface of a journal's: `put` and `read`.

    Example::

        blob = await store.put(png, "image/png")
        assert await store.read(blob.hash) == png
    """

    def __init__(self, base: Mapping[str, bytes] | None = None) -> None:
        """Create an empty store.

        :param base: further blobs by hash, to read only.
        """
        self.kept: dict[str, bytes] = {}
        """The stored bytes by hash."""
        self._base = base or {}

    async def put(self, data: bytes, mime: str) -> Blob:
        """Store bytes; equal bytes are stored once."""
        blob = Blob.of(data, mime)
        self.kept[blob.hash] = data
        return blob

    async def read(self, hash: str) -> bytes:
        """Return the bytes with a SHA-256.

        :raises KeyError: if there are none.
        """
        return self.kept[hash] if hash in self.kept else self._base[hash]

    def clear(self) -> None:
        """Drop the stored blobs."""
        self.kept.clear()
