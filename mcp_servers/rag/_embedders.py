# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers is partially typed)
"""Embedding models: an OpenAI-compatible endpoint, or a sentence transformer in this process."""

import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._http_client import open_session, read_answer
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.extras import missing_extra
from mcp_servers.core._disk_cache import user_cache
from mcp_servers.rag._settings import DEFAULT_MODEL, EmbeddingSettings

IDLE_SECONDS = 4.0
"""Lifetime of an idle connection, below the five seconds after which Uvicorn, and thus vLLM, closes it."""
_CACHE_SIZE = 4096


class Embedder(ABC):
    """Embedding model, with a cache of query vectors."""

    def __init__(self) -> None:
        self._queries: OrderedDict[str, list[float]] = OrderedDict()

    @abstractmethod
    async def close(self) -> None:
        """Release its resources."""

    async def of_query(self, query: str) -> list[float]:
        """Return the vector of a query.

        :raises ToolFailure: `unavailable`, if the model fails.
        """
        if query not in self._queries:
            (self._queries[query],) = await self.of_texts([query])
            if len(self._queries) > _CACHE_SIZE:
                self._queries.popitem(last=False)
        self._queries.move_to_end(query)
        return self._queries[query]

    @abstractmethod
    async def of_texts(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of a batch of texts, in order.

        :raises ToolFailure: `unavailable`, if the model fails.
        """


async def open_embedder(settings: EmbeddingSettings) -> Embedder:
    """Open the embedding model of some settings.

    :raises ConfigurationError: one line, if it runs in this process and can't be loaded.
    """
    if settings.base_url:
        return EndpointEmbedder(settings.base_url, settings)
    check_embedding(settings)
    return await anyio.to_thread.run_sync(LocalEmbedder, _folder(settings))


def check_embedding(settings: EmbeddingSettings | None) -> None:
    """Reject a model of this process that can't be loaded.

    :raises ConfigurationError: one line, with the command that gets what is missing.
    """
    if settings is None or settings.base_url:
        return
    if any(find_spec(module) is None for module in ("torch", "transformers")):
        feature = "rag: an embedding model in this process (embedding.base_url names one at an endpoint)"
        raise ConfigurationError(missing_extra(feature, "train"))
    folder = _folder(settings)
    if not (folder / "config.json").is_file():
        remedy = "name its folder" if settings.model else f"run agentflow models fetch {DEFAULT_MODEL}"
        raise ConfigurationError(f"rag: embedding.model: {folder} is no embedding model; {remedy}")


def _folder(settings: EmbeddingSettings) -> Path:
    return Path(settings.model).expanduser() if settings.model else user_cache("models") / DEFAULT_MODEL


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _Vectors(msgspec.Struct):
    data: list[_Vector]


_decoder = msgspec.json.Decoder(_Vectors)


class EndpointEmbedder(Embedder):
    """Client of an OpenAI-compatible endpoint. It needs a running event loop."""

    def __init__(self, base_url: str, settings: EmbeddingSettings) -> None:
        import aiohttp  # heavy: most libraries have no vectors

        super().__init__()
        self._model = settings.model_name
        self._url = f"{base_url.rstrip('/')}/embeddings"
        key = settings.api_key
        self._session = open_session(
            connector=aiohttp.TCPConnector(keepalive_timeout=IDLE_SECONDS),
            headers={"Authorization": f"Bearer {key.get_secret_value()}"} if key else {},
            timeout=aiohttp.ClientTimeout(total=settings.timeout),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def of_texts(self, texts: Sequence[str]) -> list[list[float]]:
        """Request the vectors of a batch of texts, in order.

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
        except DECODE_ERRORS as error:
            raise self._failure(f"invalid response: {decode_reason(error)}") from None
        if vectors.keys() != set(range(len(texts))) or len({len(vector) for vector in vectors.values()}) != 1:
            raise self._failure(
                f"it returned {len(vectors)} vectors for {len(texts)} texts, or vectors of different lengths"
            )
        return [vectors[index] for index in range(len(texts))]

    def _failure(self, reason: str) -> ToolFailure:
        return ToolFailure(ErrorKind.UNAVAILABLE, f"rag: the embedding endpoint {self._url} failed: {reason}")


class LocalEmbedder(Embedder):
    """Sentence transformer with mean pooling, such as all-MiniLM-L6-v2, on the CPU."""

    def __init__(self, folder: Path) -> None:
        """Load the model; this takes seconds.

        :raises ConfigurationError: one line, if the folder has no such model.
        """
        super().__init__()
        from tokenizers import Tokenizer
        from transformers import AutoModel
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        try:
            pooling = json.loads((folder / "1_Pooling/config.json").read_bytes())
            limits = json.loads((folder / "sentence_bert_config.json").read_bytes())
            if not pooling["pooling_mode_mean_tokens"]:
                raise ValueError("its vectors are not the mean of its tokens")
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._tokenizer.enable_truncation(int(limits["max_seq_length"]))
            self._tokenizer.enable_padding()
            # Other formats than safetensors are pickles, which can run code.
            self._model = AutoModel.from_pretrained(folder, use_safetensors=True).eval()
        except Exception as error:  # boundary: each library has errors of its own for a damaged file
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigurationError(f"rag: embedding.model: {folder} can't be loaded: {reason}") from None
        self._limiter = anyio.CapacityLimiter(1)  # PyTorch uses all cores for one batch

    async def close(self) -> None:
        """Do nothing: its memory is freed with it."""

    async def of_texts(self, texts: Sequence[str]) -> list[list[float]]:
        """Compute the vectors of a batch of texts, in order."""
        return await anyio.to_thread.run_sync(self._compute, texts, limiter=self._limiter)

    def _compute(self, texts: Sequence[str]) -> list[list[float]]:
        import torch

        encoded = self._tokenizer.encode_batch(list(texts))
        tokens = torch.tensor([encoding.ids for encoding in encoded])
        mask = torch.tensor([encoding.attention_mask for encoding in encoded])
        with torch.inference_mode():
            states = self._model(input_ids=tokens, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1)
            return ((states * weights).sum(1) / weights.sum(1)).tolist()
