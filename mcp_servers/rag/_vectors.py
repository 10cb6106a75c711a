"""Embedding vectors: requested from an OpenAI-compatible endpoint, stored on disk by content, and searched exactly."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agentflow._http_client import UNDECODABLE, open_session, read_answer
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.extras import missing_extra
from mcp_servers.rag._settings import EmbeddingSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


IDLE_SECONDS = 4.0
"""Lifetime of an idle connection, below the five seconds after which Uvicorn, and thus vLLM, closes it."""
_CACHE_SIZE = 4096
_KEY = 16


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _Vectors(msgspec.Struct):
    data: list[_Vector]


_decoder = msgspec.json.Decoder(_Vectors)


class Embedder:
    """Client of the embedding endpoint, with a cache of query vectors. It needs a running event loop."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        import aiohttp  # heavy: most libraries have no vectors

        self._model = settings.model
        self._url = f"{settings.base_url.rstrip('/')}/embeddings"
        key = settings.api_key
        self._session = open_session(
            connector=aiohttp.TCPConnector(keepalive_timeout=IDLE_SECONDS),
            headers={"Authorization": f"Bearer {key.get_secret_value()}"} if key else {},
            timeout=aiohttp.ClientTimeout(total=settings.timeout),
        )
        self._queries: OrderedDict[str, list[float]] = OrderedDict()

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def of_query(self, query: str) -> list[float]:
        """Return the vector of a query.

        :raises ToolFailure: `unavailable`, if the endpoint fails.
        """
        if query not in self._queries:
            (self._queries[query],) = await self.of_texts([query])
            if len(self._queries) > _CACHE_SIZE:
                self._queries.popitem(last=False)
        self._queries.move_to_end(query)
        return self._queries[query]

    async def of_texts(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of a batch of texts, in order.

        :raises ToolFailure: `unavailable`, if the endpoint fails.
        """
        import aiohttp

        request = {"model": self._model, "input": list(texts)}
        try:
            async with self._session.post(self._url, json=request) as response:
                body = await read_answer(response)
                status = response.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._failure(str(error) or "timeout") from None
        if status != 200:
            raise self._failure(f"status {status}: {' '.join(body.decode(errors='replace').split())[:200]}")
        try:
            vectors = {vector.index: vector.embedding for vector in _decoder.decode(body).data}
        except UNDECODABLE as error:
            raise self._failure(f"invalid response: {error}") from None
        if vectors.keys() != set(range(len(texts))) or len({len(vector) for vector in vectors.values()}) != 1:
            raise self._failure(
                f"it returned {len(vectors)} vectors for {len(texts)} texts, or vectors of different lengths"
            )
        return [vectors[place] for place in range(len(texts))]

    def _failure(self, reason: str) -> ToolFailure:
        return ToolFailure(ErrorKind.UNAVAILABLE, f"rag: the embedding endpoint {self._url} failed: {reason}")


class VectorStore:
    """File of float32 vectors keyed by content digest. A row is valid once its digest has been written."""

    def __init__(self, folder: Path, model: str) -> None:
        """Open the vectors of this model.

        :raises ConfigurationError: if numpy is missing.
        """
        if find_spec("numpy") is None:
            message = missing_extra("rag: dense search (mode: lexical works without it)", "data")
            raise ConfigurationError(message)
        name = hashlib.blake2b(model.encode(), digest_size=6).hexdigest()
        self._rows = folder / f"rag.vectors-{name}.f32"
        self._keys = folder / f"rag.vectors-{name}.keys"
        self._row_of: dict[bytes, int] = {}
        self.dimensions = 0
        """Length of the vectors; 0 if there are none."""
        self._read()

    def __contains__(self, digest: str) -> bool:
        return bytes.fromhex(digest) in self._row_of

    def row(self, digest: str) -> int:
        """Return the row of a digest."""
        return self._row_of[bytes.fromhex(digest)]

    def add(self, digests: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
        """Store vectors, normalised to length 1.

        :raises ConfigurationError: if their length differs from that of the stored ones.
        """
        import numpy as np

        rows = np.asarray(vectors, dtype=np.float32)
        self.dimensions = self.dimensions or int(rows.shape[1])
        if rows.shape[1] != self.dimensions:
            message = f"vectors now have {rows.shape[1]} dimensions instead of {self.dimensions}"
            raise ConfigurationError(f"rag: {message}: the model has changed; remove {self._rows}")
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
        keys = [bytes.fromhex(digest) for digest in digests]
        count = len(self._row_of)
        self._write(self._rows, count * self.dimensions * 4, rows.tobytes())
        head = self.dimensions.to_bytes(_KEY, "little")
        self._write(
            self._keys, 0 if count == 0 else (count + 1) * _KEY, (b"" if count else head) + b"".join(keys)
        )
        self._row_of |= {key: count + place for place, key in enumerate(keys)}

    def matrix(self) -> "NDArray[np.float32]":
        """Return all rows, memory-mapped from the file."""
        import numpy as np

        shape = (len(self._row_of), self.dimensions)
        if not self._row_of:
            return np.zeros((0, 0), dtype=np.float32)
        return np.memmap(self._rows, dtype=np.float32, mode="r", shape=shape)

    def _read(self) -> None:
        if not self._keys.exists() or not self._rows.exists():
            return
        written = self._keys.read_bytes()
        self.dimensions = int.from_bytes(written[:_KEY], "little")
        if not self.dimensions:
            return
        count = min(len(written) // _KEY - 1, self._rows.stat().st_size // (4 * self.dimensions))
        self._row_of = {written[(n + 1) * _KEY : (n + 2) * _KEY]: n for n in range(count)}

    @staticmethod
    def _write(path: Path, offset: int, data: bytes) -> None:
        path.touch()
        with path.open("r+b") as file:
            # Overwrite what a killed process has left incomplete.
            file.truncate(offset)
            file.seek(offset)
            file.write(data)


class VectorIndex:
    """Exact nearest-neighbour search over the vectors of the current documents."""

    def __init__(self, store: VectorStore, entries: Sequence[tuple[str, str]]) -> None:
        """Select the vectors of the documents.

        :param entries: the ids of the documents, in order, each with the digest of its content.
        """
        import numpy as np

        self.names = [name for name, _ in entries]
        """Ids of the documents."""
        self.dimensions = store.dimensions
        """Length of the vectors."""
        self._matrix = store.matrix()
        self._rows = np.asarray([store.row(digest) for _, digest in entries], dtype=np.int64)

    def nearest(self, vector: Sequence[float], count: int) -> list[tuple[str, float]]:
        """Return the ids and cosine similarities of the nearest documents, nearest first, ties by id.

        :raises ToolFailure: `unavailable`, if the vector's length differs from theirs.
        """
        import numpy as np

        if not self.names:
            return []
        if len(vector) != self.dimensions:
            message = (
                f"the query's vector has {len(vector)} dimensions, the documents' have {self.dimensions}"
            )
            raise ToolFailure(ErrorKind.UNAVAILABLE, f"rag: {message}: the embedding model has changed")
        wanted = np.asarray(vector, dtype=np.float32)
        wanted = wanted / max(float(np.linalg.norm(wanted)), 1e-12)
        similar = np.round((self._matrix @ wanted)[self._rows], 4)
        count = min(count, len(self.names))
        least = np.partition(similar, -count)[-count]
        near = [(self.names[place], float(similar[place])) for place in np.flatnonzero(similar >= least)]
        return sorted(near, key=lambda entry: (-entry[1], entry[0]))[:count]
