"""Location, opening and incremental update of an index: only documents that have changed are indexed."""

import fcntl
import hashlib
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
from tantivy import Index

from agentflow._decoding import DECODE_ERRORS
from agentflow._private_files import make_private_folder
from agentflow.errors import ConfigurationError, ToolFailure
from mcp_servers.rag._documents import (
    BUNDLED,
    CorpusDocument,
    CorpusSummary,
    FormattedReader,
    ReadFormatted,
    documents_of,
    files_of,
)
from mcp_servers.rag._embedders import Embedder
from mcp_servers.rag._index import WordIndex, entry_of, open_index
from mcp_servers.rag._library import SearchLibrary
from mcp_servers.rag._settings import EmbeddingSettings, RagSettings
from mcp_servers.rag._vectors import VectorIndex, VectorStore, passages_of

if TYPE_CHECKING:
    from tantivy import IndexWriter


_MAX_IN_MEMORY = 128 * 1024
"""Total size of documents up to which they are indexed in memory at every start."""
_LOCK_INTERVAL = 0.05
"""Interval between attempts to lock the index, in seconds."""
MANIFEST = "rag.json"
"""File that marks a directory as an index of this backend and lists its sources."""
LOCK = "rag.lock"
"""File that is locked while the index is updated."""
FORMAT = 2
"""Format version; an index of another version is rebuilt."""
_INDEX_FILE = re.compile(r"[0-9a-f]{32}\..*|meta\.json|\.managed\.json|\.tantivy-.*\.lock")
"""Names of tantivy's files."""
_BATCH_DOCUMENTS = 50_000
_BATCH_CHARACTERS = 64 * 1024 * 1024
_CHECKPOINT_INTERVAL = 256
_SMALL_HEAP = 128_000_000
"""Memory of the writer; a segment is written when it is full, and each segment slows down searches."""
_LARGE_HEAP = 256_000_000
_REBUILT_UP_TO = 10_000
"""Up to this number of documents, the whole index is rebuilt after a change or removal."""
_LARGE_BYTES = 32 * 1024 * 1024
"""Total size of documents above which the writer gets more memory and threads."""


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
    path, corpus = _full(settings.index_path), _full(settings.corpus_path)
    index = _full(settings.index_dir)
    if corpus is not None:
        return IndexLocation(_documents("corpus_path", corpus), index or path or _default(corpus, settings))
    if path is None:
        return IndexLocation(BUNDLED, index or (_cache_directory(BUNDLED) if settings.embedding else None))
    if path.is_dir() and is_index(path):
        return IndexLocation(None, path)
    if (path / "meta.json").is_file() and not files_of(path).readable:
        message = "was not built by this backend: set the path of the documents to build one"
        raise ConfigurationError(f"rag: index_path: the index in {path} {message}")
    return IndexLocation(_documents("index_path", path), index or _default(path, settings))


async def open_library(
    location: IndexLocation, settings: RagSettings, embedder: Embedder | None
) -> SearchLibrary:
    """Open the documents for searching; update the index first.

    :raises ConfigurationError: if the documents, the index or the vectors are unusable.
    """
    try:
        if location.folder is None:
            words, corpus = await _opened_words(location)
            return SearchLibrary(words, "lexical", corpus)
        async with _locked(location.folder):
            words, corpus = await _opened_words(location)
            if embedder is None or settings.embedding is None or settings.effective_mode == "lexical":
                return SearchLibrary(words, "lexical", corpus)
            vectors = await _open_vectors(words, location.folder, settings.embedding, embedder)
    except OSError as error:
        where = location.folder or location.source
        raise ConfigurationError(f"rag: {where} cannot be indexed: {error.strerror or error}") from None
    except ToolFailure as failure:
        raise ConfigurationError(failure.message) from None
    return SearchLibrary(words, settings.effective_mode, corpus, vectors, embedder)


async def _opened_words(location: IndexLocation) -> tuple[WordIndex, CorpusSummary]:
    """Open the word index, updated from the documents, and describe the corpus."""
    async with FormattedReader() as reader:

        def read(name: str, path: Path) -> CorpusDocument | None:
            return anyio.from_thread.run(reader.read, name, path)

        words = await anyio.to_thread.run_sync(_open_words, location, read)
    named = location.source or location.folder
    skipped = await anyio.to_thread.run_sync(files_of, location.source) if location.source else None
    source = "" if named in (None, BUNDLED) else named.name
    corpus = CorpusSummary(source, skipped.skipped if skipped else {}, reader.unreadable)
    if reader.unreadable and not len(words):
        raise ConfigurationError(f"rag: there is nothing to search: {corpus.line(0)}")
    return words, corpus


@asynccontextmanager
async def _locked(folder: Path) -> AsyncGenerator[None]:
    """Lock a directory against other processes. The lock ends with the process."""
    await anyio.to_thread.run_sync(make_private_folder, folder)
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


def _open_words(location: IndexLocation, read: ReadFormatted) -> WordIndex:
    if location.folder is None:
        return index_in_memory(location.source or BUNDLED, read)
    if location.source is None:
        return open_ready(location.folder)
    return update_index(location.source, location.folder, read, checkpoint=anyio.from_thread.check_cancelled)


async def _open_vectors(
    words: WordIndex, folder: Path, settings: EmbeddingSettings, embedder: Embedder
) -> VectorIndex:
    """Return the vectors of all documents, computing missing ones in batches."""
    store = await anyio.to_thread.run_sync(VectorStore, folder, settings.model_name)
    entries: list[tuple[str, str]] = []
    missing: dict[str, str] = {}
    for document, digest in await anyio.to_thread.run_sync(lambda: list(words.documents())):
        for key, passage in passages_of(document, digest):
            entries.append((document.id, key))
            if key not in store:
                missing[key] = passage
    wanted = list(missing.items())
    for first in range(0, len(wanted), settings.batch):
        batch = wanted[first : first + settings.batch]
        vectors = await embedder.of_texts([passage for _, passage in batch])
        await anyio.to_thread.run_sync(store.add, [key for key, _ in batch], vectors)
    return await anyio.to_thread.run_sync(VectorIndex, store, sorted(entries))


def _full(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().resolve()


def _documents(setting: str, source: Path) -> Path:
    hint = "name a directory or a JSONL file of documents, or an index of them"
    if not source.exists():
        raise ConfigurationError(f"rag: {setting}: {source} does not exist: {hint}")
    files = files_of(source)
    if not files.readable:
        left_out = CorpusSummary(source.name, files.skipped, {}).line(0)
        raise ConfigurationError(
            f"rag: {setting}: {source} contains no .jsonl, .md or .txt file ({left_out}): {hint}"
        )
    return source


def _default(source: Path, settings: RagSettings) -> Path | None:
    """Return the default directory of an index, or `None` for one in memory."""
    if not settings.embedding:
        size = sum(path.stat().st_size for path in files_of(source).readable.values())
        if size <= _MAX_IN_MEMORY:
            return None
    beside = source.with_name(f".{source.name}.rag-index")
    return beside if os.access(source.parent, os.W_OK) else _cache_directory(source)


def _cache_directory(source: Path) -> Path:
    """Return a directory in the user's cache directory for the index of these documents."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.blake2b(os.fsencode(source), digest_size=8).hexdigest()
    return home / "agentflow/rag" / f"{source.stem}-{name}"


class _IndexManifest(msgspec.Struct):
    """Format and source files of an index. It only saves reading unchanged files: the index itself records its content."""

    format: int
    files: dict[str, tuple[int, int]] = {}
    """Size and modification time of each completely indexed file."""


def is_index(folder: Path) -> bool:
    """Return whether a directory contains an index of this backend."""
    return (folder / MANIFEST).is_file()


def _read_nothing(name: str, path: Path) -> None:
    """Return `None`: without a reader there are no documents of other formats."""


def index_in_memory(source: Path, read: ReadFormatted = _read_nothing) -> WordIndex:
    """Index the documents of a source in memory."""
    index = open_index(None)
    _Update(index, [], {}, _SMALL_HEAP, 1, lambda: None, read).run(files_of(source).readable)
    return WordIndex(index)


def open_ready(folder: Path) -> WordIndex:
    """Open an existing index without updating it.

    :raises ConfigurationError: if it was built by another version.
    """
    if _read_manifest(folder) is None:
        message = "was built by another version: set the path of the documents to rebuild it"
        raise ConfigurationError(f"rag: index_path: the index in {folder} {message}")
    return WordIndex(open_index(folder))


def update_index(
    source: Path, folder: Path, read: ReadFormatted = _read_nothing, *, checkpoint: Callable[[], None]
) -> WordIndex:
    """Update the index of a source in a directory that the caller has locked.

    :param read: reads files of other formats than text; those that can't be read are tried again at the next start.
    :param checkpoint: called periodically; it raises to stop the update.
    :raises ConfigurationError: for invalid documents; what was committed before stays.
    """
    files = files_of(source).readable
    stamps = {name: _stamp_of(path) for name, path in files.items()}
    manifest = _read_manifest(folder)
    if manifest is None:
        _clear(folder)
        manifest = _IndexManifest(FORMAT)
        _write_manifest(folder, manifest)
    index = open_index(folder)
    if manifest.files != stamps:
        many = sum(size for size, _ in stamps.values()) > _LARGE_BYTES
        same = {name: stamp for name, stamp in manifest.files.items() if stamps.get(name) == stamp}
        # Until the update is complete, the manifest lists only unchanged files.
        _write_manifest(folder, _IndexManifest(FORMAT, same))
        heap, threads = (_LARGE_HEAP, 2) if many else (_SMALL_HEAP, 1)
        update = _Update(index, list(WordIndex(index).entries()), same, heap, threads, checkpoint, read)
        if update.run(files) and len(WordIndex(index)) <= _REBUILT_UP_TO:
            # Removed documents affect word weights until their segment is merged.
            _clear(folder)
            _write_manifest(folder, _IndexManifest(FORMAT))
            index = open_index(folder)
            update = _Update(index, [], {}, heap, 1, checkpoint, read)
            update.run(files)
        complete = {name: stamp for name, stamp in stamps.items() if name not in update.unread}
        _write_manifest(folder, _IndexManifest(FORMAT, complete))
    return WordIndex(index)


def _stamp_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _read_manifest(folder: Path) -> _IndexManifest | None:
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=_IndexManifest)
    except (OSError, *DECODE_ERRORS):
        return None
    return manifest if manifest.format == FORMAT and Index.exists(str(folder)) else None


def _write_manifest(folder: Path, manifest: _IndexManifest) -> None:
    fresh = folder / f"{MANIFEST}.new"
    fresh.write_bytes(msgspec.json.encode(manifest))
    fresh.replace(folder / MANIFEST)


def _clear(folder: Path) -> None:
    """Remove an unusable or unfinished index; refuse a directory with other files.

    Vectors are kept, because they are keyed by content.
    """
    if not is_index(folder):
        strange = [path.name for path in folder.iterdir() if not path.name.startswith("rag.")]
        if strange:
            message = f"it contains {min(strange)!r}, which is not part of an index: name an empty directory"
            raise ConfigurationError(f"rag: the index cannot be stored in {folder}: {message}")
    for path in folder.iterdir():
        if _INDEX_FILE.fullmatch(path.name):
            path.unlink()


class _Update:
    """One update: adds new and changed documents and removes missing ones, committed in batches."""

    def __init__(
        self,
        index: Index,
        entries: Sequence[tuple[str, str, str]],
        unchanged: Mapping[str, object],
        heap: int,
        threads: int,
        checkpoint: Callable[[], None],
        read: ReadFormatted,
    ) -> None:
        self.unread: set[str] = set()
        """Files that the reader could not read."""
        self._read_formatted = read
        self._writer: IndexWriter = index.writer(heap, threads)
        self._indexed = {name: (digest, file) for name, file, digest in entries}
        self._kept = {name: file for name, file, _ in entries if file in unchanged}
        self._unchanged = unchanged
        self._documents = self._characters = 0
        self._removed = self._read = 0
        self._checkpoint = checkpoint

    def run(self, files: Mapping[str, Path]) -> int:
        """Index the current content of the files; return the number of removed or replaced documents."""
        try:
            for name, path in files.items():
                if name not in self._unchanged:
                    self._index(name, path)
            for gone in self._indexed.keys() - self._kept.keys():
                self._remove(gone)
        finally:
            # Documents before an invalid line are kept.
            self._writer.commit()
            self._writer.wait_merging_threads()
        return self._removed

    def _index(self, file: str, path: Path) -> None:
        for document in documents_of(file, path, partial(self._formatted, file)):
            self._read += 1
            if self._read % _CHECKPOINT_INTERVAL == 0:
                self._checkpoint()
            digest = document.digest
            before = self._indexed.get(document.id)
            taken = self._kept.get(document.id)
            if taken is not None:
                if before is not None and before[0] == digest:
                    continue
                message = f"two different documents have the id {document.id!r} (in {taken} and {file})"
                raise ConfigurationError(f"rag: {message}: give each one a unique id")
            self._kept[document.id] = file
            if before == (digest, file):
                continue
            if before is not None:
                self._remove(document.id)
            self._indexed[document.id] = digest, file
            self._writer.add_document(entry_of(document, file, digest))
            self._count(document.text)

    def _formatted(self, file: str, name: str, path: Path) -> CorpusDocument | None:
        self._checkpoint()
        document = self._read_formatted(name, path)
        if document is None:
            self.unread.add(file)
        return document

    def _remove(self, name: str) -> None:
        self._writer.delete_documents_by_term("id", name)
        self._removed += 1

    def _count(self, text: str) -> None:
        self._documents += 1
        self._characters += len(text)
        if self._documents >= _BATCH_DOCUMENTS or self._characters >= _BATCH_CHARACTERS:
            self._writer.commit()
            self._documents = self._characters = 0
