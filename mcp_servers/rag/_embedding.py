"""Vectors of texts, from an OpenAI-compatible endpoint."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import aiohttp
import msgspec

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.rag._settings import EmbeddingSettings

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Embedder"]

IDLE_SECONDS = 4.0
"""So long an idle connection is kept: less than the five seconds after which Uvicorn, and so vLLM, closes it."""
_REMEMBERED = 4096


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _Vectors(msgspec.Struct):
    data: list[_Vector]


_decoder = msgspec.json.Decoder(_Vectors)


class Embedder:
    """Asks the endpoint. An async context manager; the vectors of the latest queries are remembered."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        self._settings = settings
        self._url = f"{settings.base_url.rstrip('/')}/embeddings"
        self._session: aiohttp.ClientSession | None = None
        self._queries: OrderedDict[str, list[float]] = OrderedDict()

    async def __aenter__(self) -> "Self":
        key = self._settings.api_key
        headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout)
        connector = aiohttp.TCPConnector(keepalive_timeout=IDLE_SECONDS)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: "TracebackType | None",
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def of_query(self, query: str) -> list[float]:
        """The vector of a query.

        :raises ToolFailure: `unavailable`, if the endpoint gives none.
        """
        if query not in self._queries:
            (self._queries[query],) = await self.of_texts([query])
            if len(self._queries) > _REMEMBERED:
                self._queries.popitem(last=False)
        self._queries.move_to_end(query)
        return self._queries[query]

    async def of_texts(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of these texts, in their order; at most a batch of them.

        :raises ToolFailure: `unavailable`, if the endpoint gives none.
        """
        assert self._session is not None, "an embedder is entered before it is used"
        try:
            async with self._session.post(
                self._url, json={"model": self._settings.model, "input": list(texts)}
            ) as answer:
                body = await answer.read()
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._failure(str(error) or "no answer in time") from None
        if status != 200:
            raise self._failure(f"status {status}: {' '.join(body.decode(errors='replace').split())[:200]}")
        try:
            vectors = {one.index: one.embedding for one in _decoder.decode(body).data}
        except msgspec.DecodeError as error:
            raise self._failure(f"its answer has no vectors: {error}") from None
        if vectors.keys() != set(range(len(texts))) or len({len(one) for one in vectors.values()}) != 1:
            raise self._failure(
                f"it gave {len(vectors)} vectors for {len(texts)} texts, or of unequal length"
            )
        return [vectors[place] for place in range(len(texts))]

    def _failure(self, reason: str) -> ToolFailure:
        return ToolFailure(ErrorKind.UNAVAILABLE, f"rag: the embedding endpoint {self._url} failed: {reason}")
