"""Incremental indexing: only documents that have changed are indexed."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from tantivy import Index

from agentflow.errors import ConfigurationError
from mcp_servers.rag._documents import documents_of, files_of
from mcp_servers.rag._index import WordIndex, entry_of, open_index

if TYPE_CHECKING:
    from tantivy import IndexWriter


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


class _IndexManifest(msgspec.Struct):
    """Format and source files of an index. It only saves reading unchanged files: the index itself records its content."""

    format: int
    files: dict[str, tuple[int, int]] = {}
    """Size and modification time of each completely indexed file."""


def is_index(folder: Path) -> bool:
    """Return whether a directory contains an index of this backend."""
    return (folder / MANIFEST).is_file()


def index_in_memory(source: Path) -> WordIndex:
    """Index the documents of a source in memory."""
    index = open_index(None)
    _Update(index, {}, {}, _SMALL_HEAP, 1, _no_checkpoint).run(files_of(source))
    return WordIndex(index)


def _no_checkpoint() -> None:
    pass


def open_ready(folder: Path) -> WordIndex:
    """Open an existing index without updating it.

    :raises ConfigurationError: if it was built by another version.
    """
    if _read_manifest(folder) is None:
        message = "was built by another version: set the path of the documents to rebuild it"
        raise ConfigurationError(f"rag: index_path: the index in {folder} {message}")
    return WordIndex(open_index(folder))


def update_index(source: Path, folder: Path, *, checkpoint: Callable[[], None]) -> WordIndex:
    """Update the index of a source in a directory that the caller has locked.

    :param checkpoint: called periodically; it raises to stop the update.
    :raises ConfigurationError: for invalid documents; what was committed before stays.
    """
    files = files_of(source)
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
        update = _Update(index, _known(WordIndex(index)), same, heap, threads, checkpoint)
        if update.run(files) and len(WordIndex(index)) <= _REBUILT_UP_TO:
            # Removed documents affect word weights until their segment is merged.
            _clear(folder)
            _write_manifest(folder, _IndexManifest(FORMAT))
            index = open_index(folder)
            _Update(index, {}, {}, heap, 1, checkpoint).run(files)
        _write_manifest(folder, _IndexManifest(FORMAT, stamps))
    return WordIndex(index)


def _known(index: WordIndex) -> dict[str, dict[str, str]]:
    known: dict[str, dict[str, str]] = {}
    for name, file, digest in index.entries():
        known.setdefault(file, {})[name] = digest
    return known


def _stamp_of(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _read_manifest(folder: Path) -> _IndexManifest | None:
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=_IndexManifest)
    except (OSError, msgspec.DecodeError):
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
        known: Mapping[str, Mapping[str, str]],
        unchanged: Mapping[str, object],
        heap: int,
        threads: int,
        checkpoint: Callable[[], None],
    ) -> None:
        self._writer: IndexWriter = index.writer(heap, threads)
        self._known = {
            name: (digest, file) for file, entries in known.items() for name, digest in entries.items()
        }
        self._kept = {name: file for file in unchanged for name in known.get(file, ())}
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
            for gone in self._known.keys() - self._kept.keys():
                self._remove(gone)
        finally:
            # Documents before an invalid line are kept.
            self._writer.commit()
            self._writer.wait_merging_threads()
        return self._removed

    def _index(self, file: str, path: Path) -> None:
        for document in documents_of(file, path):
            self._read += 1
            if self._read % _CHECKPOINT_INTERVAL == 0:
                self._checkpoint()
            digest = document.digest
            before = self._known.get(document.id)
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
            self._known[document.id] = digest, file
            self._writer.add_document(entry_of(document, file, digest))
            self._count(document.text)

    def _remove(self, name: str) -> None:
        self._writer.delete_documents_by_term("id", name)
        self._removed += 1

    def _count(self, text: str) -> None:
        self._documents += 1
        self._characters += len(text)
        if self._documents >= _BATCH_DOCUMENTS or self._characters >= _BATCH_CHARACTERS:
            self._writer.commit()
            self._documents = self._characters = 0
