"""Embedding vectors of passages: stored on disk by content, and searched exactly."""

import hashlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.extras import missing_extra
from mcp_servers.rag._documents import CorpusDocument

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


PASSAGE_CHARS = 1000
"""Longest text with one vector, in characters: embedding models read the beginning of longer ones only."""
_KEY = 16


def whole_end(text: str, start: int, length: int) -> int:
    """Return the end of a part that is not longer than `length` and ends with a paragraph or sentence, if it can."""
    end = start + length
    if end >= len(text):
        return len(text)
    for mark in ("\n\n", "\n", ". "):
        position = text.rfind(mark, start + length // 2, end)
        if position >= 0:
            return position + len(mark)
    return end


def passages_of(document: CorpusDocument, digest: str) -> Iterator[tuple[str, str]]:
    """Yield the passages of a document under its title, each with the digest that its vector is stored by."""
    start, text = 0, document.text
    while start < len(text) or start == 0:
        end = whole_end(text, start, PASSAGE_CHARS)
        content = f"{document.title}\n\n{text[start:end]}"
        if (start, end) != (0, len(text)):
            digest = hashlib.blake2b(content.encode(), digest_size=_KEY).hexdigest()
        yield digest, content
        start = end or 1


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
        self._row_of |= {key: count + index for index, key in enumerate(keys)}

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

        :param entries: the ids of the documents, in order, each with the digest of a passage, once for each passage.
        """
        import numpy as np

        sizes = {name: len(list(passages)) for name, passages in groupby(entries, lambda entry: entry[0])}
        self.names = list(sizes)
        """Ids of the documents."""
        self._starts = np.cumsum([0, *sizes.values()])[:-1]
        self.dimensions = store.dimensions
        """Length of the vectors."""
        self._matrix = store.matrix()
        self._rows = np.asarray([store.row(digest) for _, digest in entries], dtype=np.int64)

    def nearest(self, vector: Sequence[float], count: int) -> list[tuple[str, float]]:
        """Return the ids of the nearest documents with the cosine similarity of their best passage, nearest first, ties by id.

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
        similar = np.maximum.reduceat(np.round((self._matrix @ wanted)[self._rows], 4), self._starts)
        count = min(count, len(self.names))
        least = np.partition(similar, -count)[-count]
        near = [(self.names[index], float(similar[index])) for index in np.flatnonzero(similar >= least)]
        return sorted(near, key=lambda entry: (-entry[1], entry[0]))[:count]
