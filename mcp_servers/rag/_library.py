"""The documents of one configuration: location of their index, opening it, and searching by words and vectors."""

import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.from_thread
import anyio.to_thread

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from mcp_servers.rag._documents import BUNDLED, CorpusDocument, files_of
from mcp_servers.rag._index import ScoredDocument, WordIndex
from mcp_servers.rag._index_update import LOCK, index_in_memory, is_index, open_ready, update_index
from mcp_servers.rag._settings import EmbeddingSettings, Mode, RagSettings
from mcp_servers.rag._terms import terms_of
from mcp_servers.rag._vectors import Embedder, VectorIndex, VectorStore

_FUSION_DEPTH = 100
"""Number of documents that each ranking contributes to hybrid search."""
_FUSION_CONSTANT = 60
"""The constant of reciprocal rank fusion."""
_MAX_WITHOUT_THREAD = 50_000
"""Up to this number of documents, searching directly is faster than starting a thread."""
_MAX_IN_MEMORY = 128 * 1024
"""Total size of documents up to which they are indexed in memory at every start."""
_LOCK_INTERVAL = 0.05
"""Interval between attempts to lock the index, in seconds."""


class SearchRanking(NamedTuple):
    """Ranked documents and the terms of the query."""

    terms: tuple[str, ...]
    """Terms of the query."""
    found: list[ScoredDocument]
    """Best first, ties by id."""


class SearchLibrary:
    """Documents with a word index and, in dense and hybrid mode, vectors."""

    def __init__(
        self,
        words: WordIndex,
        mode: Mode,
        vectors: VectorIndex | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        self._words = words
        self.mode: Mode = mode
        """Search mode."""
        self.vectors = vectors
        """Vectors, if used."""
        self._embedder = embedder

    def __len__(self) -> int:
        return len(self._words)

    async def search(self, query: str, count: int) -> SearchRanking:
        """Return the best documents for a query.

        :raises ToolFailure: `unavailable`, if the query cannot be embedded.
        """
        terms = terms_of(query)
        if self.mode == "lexical" or self.vectors is None or self._embedder is None:
            if len(self) <= _MAX_WITHOUT_THREAD:
                return SearchRanking(terms.single, self._words.search(terms, count))
            return SearchRanking(
                terms.single, await anyio.to_thread.run_sync(self._words.search, terms, count)
            )
        vector = await self._embedder.of_query(query)
        depth = max(count, _FUSION_DEPTH)
        near = await anyio.to_thread.run_sync(self.vectors.nearest, vector, depth)
        if self.mode == "dense":
            return SearchRanking(terms.single, self._loaded(near[:count]))
        by_words = await anyio.to_thread.run_sync(self._words.search, terms, depth)
        names = [[one.document.id for one in by_words], [name for name, _ in near]]
        return SearchRanking(terms.single, self._loaded(_fused(names)[:count]))

    def get(self, name: str) -> CorpusDocument:
        """Return the document with this id.

        :raises ToolFailure: `not_found`, with similar ids.
        """
        found = self._words.get(name)
        if found is None:
            alike = [repr(one.document.id) for one in self._words.search(terms_of(name), 3)]
            hint = f" Did you mean {', '.join(alike)}?" if alike else ""
            message = f"rag_get: no document {name!r}.{hint} rag_search returns the ids."
            raise ToolFailure(ErrorKind.NOT_FOUND, message)
        return found

    def _loaded(self, ranked: Sequence[tuple[str, float]]) -> list[ScoredDocument]:
        return list(self._load(ranked))

    def _load(self, ranked: Sequence[tuple[str, float]]) -> Iterator[ScoredDocument]:
        for name, score in ranked:
            document = self._words.get(name)
            if document is not None:
                yield ScoredDocument(document, round(score, 4))


def _fused(rankings: Sequence[Sequence[str]]) -> list[tuple[str, float]]:
    """Merge rankings by reciprocal rank fusion, ties by id."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, name in enumerate(ranking, 1):
            scores[name] = scores.get(name, 0.0) + 1 / (_FUSION_CONSTANT + rank)
    return sorted(scores.items(), key=lambda one: (-round(one[1], 6), one[0]))


class IndexLocation(NamedTuple):
    """Paths of the documents and their index."""

    source: Path | None
    """The documents; `None` if there is only an index."""
    folder: Path | None
    """Directory of the index; `None` for one in memory."""


def locate_index(settings: RagSettings) -> IndexLocation:
    """Determine the paths of the documents and the index.

    :raises ConfigurationError: if they do not exist.
    """
    given, corpus = _full(settings.index_path), _full(settings.corpus_path)
    index = _full(settings.index_dir)
    if corpus is not None:
        return IndexLocation(_documents("corpus_path", corpus), index or given or _default(corpus, settings))
    if given is None:
        return IndexLocation(BUNDLED, index or (_cache_directory(BUNDLED) if settings.embedding else None))
    if given.is_dir() and is_index(given):
        return IndexLocation(None, given)
    if (given / "meta.json").is_file() and not files_of(given):
        message = "was not built by this backend: set the path of the documents to build one"
        raise ConfigurationError(f"rag: index_path: the index in {given} {message}")
    return IndexLocation(_documents("index_path", given), index or _default(given, settings))


async def open_library(
    place: IndexLocation, settings: RagSettings, embedder: Embedder | None
) -> SearchLibrary:
    """Open the documents for searching; update the index first.

    :raises ConfigurationError: if the documents, the index or the vectors are unusable.
    """
    try:
        if place.folder is None:
            return SearchLibrary(
                await anyio.to_thread.run_sync(index_in_memory, place.source or BUNDLED), "lexical"
            )
        async with _locked(place.folder):
            words = await anyio.to_thread.run_sync(_open_words, place.source, place.folder)
            if embedder is None or settings.embedding is None or settings.effective_mode == "lexical":
                return SearchLibrary(words, "lexical")
            vectors = await _open_vectors(words, place.folder, settings.embedding, embedder)
    except OSError as error:
        where = place.folder or place.source
        raise ConfigurationError(f"rag: {where} cannot be indexed: {error.strerror or error}") from None
    except ToolFailure as failure:
        raise ConfigurationError(failure.message) from None
    return SearchLibrary(words, settings.effective_mode, vectors, embedder)


@asynccontextmanager
async def _locked(folder: Path) -> AsyncGenerator[None]:
    """Lock a directory against other processes. The lock ends with the process."""
    await anyio.to_thread.run_sync(lambda: folder.mkdir(parents=True, exist_ok=True))
    if not os.access(folder, os.W_OK):
        # A read-only directory needs no lock.
        yield
        return
    with (folder / LOCK).open("a") as file:
        while not _try_to_lock(file.fileno()):  # noqa: ASYNC110 - a file lock has no event
            await anyio.sleep(_LOCK_INTERVAL)
        yield


def _try_to_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_words(source: Path | None, folder: Path) -> WordIndex:
    if source is None:
        return open_ready(folder)
    return update_index(source, folder, checkpoint=anyio.from_thread.check_cancelled)


async def _open_vectors(
    words: WordIndex, folder: Path, settings: EmbeddingSettings, embedder: Embedder
) -> VectorIndex:
    """Return the vectors of all documents, requesting missing ones in batches."""
    store = await anyio.to_thread.run_sync(VectorStore, folder, settings.model)
    entries: list[tuple[str, str]] = []
    missing: dict[str, CorpusDocument] = {}
    for document, digest in await anyio.to_thread.run_sync(lambda: list(words.documents())):
        entries.append((document.id, digest))
        if digest not in store:
            missing[digest] = document
    wanted = list(missing.items())
    for first in range(0, len(wanted), settings.batch):
        batch = wanted[first : first + settings.batch]
        vectors = await embedder.of_texts([_embedding_text(document) for _, document in batch])
        await anyio.to_thread.run_sync(store.add, [digest for digest, _ in batch], vectors)
    return await anyio.to_thread.run_sync(VectorIndex, store, sorted(entries))


def _embedding_text(document: CorpusDocument) -> str:
    """Return the text that is embedded for a document."""
    return f"{document.title}\n\n{document.text}"


def _full(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().resolve()


def _documents(setting: str, source: Path) -> Path:
    hint = "name a directory or a JSONL file of documents, or an index of them"
    if not source.exists():
        raise ConfigurationError(f"rag: {setting}: {source} does not exist: {hint}")
    if not files_of(source):
        raise ConfigurationError(f"rag: {setting}: {source} contains no .jsonl, .md or .txt file: {hint}")
    return source


def _default(source: Path, settings: RagSettings) -> Path | None:
    """Return the default directory of an index, or `None` for one in memory."""
    if not settings.embedding and _size(list(files_of(source).values())) <= _MAX_IN_MEMORY:
        return None
    beside = source.with_name(f".{source.name}.rag-index")
    return beside if os.access(source.parent, os.W_OK) else _cache_directory(source)


def _size(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _cache_directory(source: Path) -> Path:
    """Return a directory in the user's cache directory for the index of these documents."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.blake2b(os.fsencode(source), digest_size=8).hexdigest()
    return home / "agentflow/rag" / f"{source.stem}-{name}"
