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

__all__ = ["IndexLocation", "SearchLibrary", "SearchRanking", "locate_index", "open_library"]

_SEARCHED = 100
"""How many documents each way of searching gives, for both to be joined."""
_FUSION = 60
"""The constant of reciprocal rank fusion."""
_ON_THE_LOOP = 50_000
"""Up to so many documents a search is over sooner than a thread would have begun it."""
_IN_MEMORY = 128 * 1024
"""Bytes of documents up to which they are indexed in memory, at every start."""
_PATIENCE = 0.05
"""Seconds between looks at whether another process is done with the index."""


class SearchRanking(NamedTuple):
    """What a search found, and by which terms."""

    terms: tuple[str, ...]
    """The terms of the query."""
    found: list[ScoredDocument]
    """Best first, equals by id."""


class SearchLibrary:
    """Documents with their index of words and, if they have one, that of vectors."""

    def __init__(
        self,
        words: WordIndex,
        mode: Mode,
        vectors: VectorIndex | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        self._words = words
        self.mode: Mode = mode
        """How documents are found."""
        self.vectors = vectors
        """Their vectors."""
        self._embedder = embedder

    def __len__(self) -> int:
        return len(self._words)

    async def search(self, query: str, count: int) -> SearchRanking:
        """The documents that fit best.

        :raises ToolFailure: `unavailable`, if the vector of the query can't be had.
        """
        terms = terms_of(query)
        if self.mode == "lexical" or self.vectors is None or self._embedder is None:
            if len(self) <= _ON_THE_LOOP:
                return SearchRanking(terms.single, self._words.search(terms, count))
            return SearchRanking(
                terms.single, await anyio.to_thread.run_sync(self._words.search, terms, count)
            )
        vector = await self._embedder.of_query(query)
        depth = max(count, _SEARCHED)
        near = await anyio.to_thread.run_sync(self.vectors.nearest, vector, depth)
        if self.mode == "dense":
            return SearchRanking(terms.single, self._loaded(near[:count]))
        by_words = await anyio.to_thread.run_sync(self._words.search, terms, depth)
        names = [[one.document.id for one in by_words], [name for name, _ in near]]
        return SearchRanking(terms.single, self._loaded(_fused(names)[:count]))

    def get(self, name: str) -> CorpusDocument:
        """The document of that id.

        :raises ToolFailure: `not_found`, naming ids that are alike.
        """
        found = self._words.get(name)
        if found is None:
            alike = [repr(one.document.id) for one in self._words.search(terms_of(name), 3)]
            hint = f" Did you mean {', '.join(alike)}?" if alike else ""
            message = f"rag_get: no document {name!r}.{hint} rag_search tells the ids."
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
    """Reciprocal rank fusion, equals by id."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, name in enumerate(ranking, 1):
            scores[name] = scores.get(name, 0.0) + 1 / (_FUSION + rank)
    return sorted(scores.items(), key=lambda one: (-round(one[1], 6), one[0]))


class IndexLocation(NamedTuple):
    """Where a library is."""

    source: Path | None
    """Its documents; nothing, where there is only an index of them."""
    folder: Path | None
    """Where its index is kept; nothing: in memory."""


def locate_index(settings: RagSettings) -> IndexLocation:
    """Where the library of these settings is.

    :raises ConfigurationError: if nothing is there.
    """
    given, corpus = _full(settings.index_path), _full(settings.corpus_path)
    index = _full(settings.index_dir)
    if corpus is not None:
        return IndexLocation(_documents("corpus_path", corpus), index or given or _default(corpus, settings))
    if given is None:
        return IndexLocation(BUNDLED, index or (_cached(BUNDLED) if settings.embedding else None))
    if given.is_dir() and is_index(given):
        return IndexLocation(None, given)
    if (given / "meta.json").is_file() and not files_of(given):
        message = "was not made by this backend: name the documents, and one is made"
        raise ConfigurationError(f"rag: index_path: the index in {given} {message}")
    return IndexLocation(_documents("index_path", given), index or _default(given, settings))


async def open_library(
    place: IndexLocation, settings: RagSettings, embedder: Embedder | None
) -> SearchLibrary:
    """The library, brought up to date.

    :raises ConfigurationError: if its documents, its index or its vectors can't be used.
    """
    try:
        if place.folder is None:
            return SearchLibrary(
                await anyio.to_thread.run_sync(index_in_memory, place.source or BUNDLED), "lexical"
            )
        async with _locked(place.folder):
            words = await anyio.to_thread.run_sync(_open_words, place.source, place.folder)
            if embedder is None or settings.embedding is None or settings.way == "lexical":
                return SearchLibrary(words, "lexical")
            vectors = await _open_vectors(words, place.folder, settings.embedding, embedder)
    except OSError as error:
        where = place.folder or place.source
        raise ConfigurationError(f"rag: {where} can't be indexed: {error.strerror or error}") from None
    except ToolFailure as failure:
        raise ConfigurationError(failure.message) from None
    return SearchLibrary(words, settings.way, vectors, embedder)


@asynccontextmanager
async def _locked(folder: Path) -> AsyncGenerator[None]:
    """Nobody else changes what is in this folder meanwhile; ends with the process, however that ends."""
    await anyio.to_thread.run_sync(lambda: folder.mkdir(parents=True, exist_ok=True))
    if not os.access(folder, os.W_OK):
        # Nobody can change it, so there is nobody to wait for.
        yield
        return
    with (folder / LOCK).open("a") as file:
        while not _try_to_lock(file.fileno()):  # noqa: ASYNC110 - another process tells nobody that it is done
            await anyio.sleep(_PATIENCE)
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
    """The vectors of all documents; those that are missing are asked for, batch by batch."""
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
        vectors = await embedder.of_texts([_embedded(document) for _, document in batch])
        await anyio.to_thread.run_sync(store.add, [digest for digest, _ in batch], vectors)
    return await anyio.to_thread.run_sync(VectorIndex, store, sorted(entries))


def _embedded(document: CorpusDocument) -> str:
    """What a document's vector is of."""
    return f"{document.title}\n\n{document.text}"


def _full(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().resolve()


def _documents(setting: str, source: Path) -> Path:
    mend = "name a folder or a JSONL file of documents, or an index made of them"
    if not source.exists():
        raise ConfigurationError(f"rag: {setting}: there is nothing at {source}: {mend}")
    if not files_of(source):
        raise ConfigurationError(f"rag: {setting}: no .jsonl, .md or .txt file is in {source}: {mend}")
    return source


def _default(source: Path, settings: RagSettings) -> Path | None:
    """Where the index of these documents is kept if nobody says."""
    if not settings.embedding and _size(list(files_of(source).values())) <= _IN_MEMORY:
        return None
    beside = source.with_name(f".{source.name}.rag-index")
    return beside if os.access(source.parent, os.W_OK) else _cached(source)


def _size(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _cached(source: Path) -> Path:
    """A folder in the user's cache for the index of these documents."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.blake2b(os.fsencode(source), digest_size=8).hexdigest()
    return home / "agentflow/rag" / f"{source.stem}-{name}"
