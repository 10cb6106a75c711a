"""Files of an export: rows as JSONL or Parquet, images, and what is in them; the same rows give the same bytes. Their upload."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from agentflow._private_files import make_private_folder, open_private, write_private
from agentflow._terminal import printable
from agentflow.errors import ConfigurationError
from agentflow.exports._parquet import ParquetTable
from agentflow.exports._records import Dropped, DropReason, ExportRow
from agentflow.extras import missing_extra

MANIFEST: Final = "manifest.json"
"""File that describes an export."""
DROPPED: Final = "dropped.jsonl"
"""File with everything that is in no row."""
_VALIDATION: Final = "validation"


class ExportFile(Struct, frozen=True, kw_only=True):
    """File of an export."""

    name: str
    """Path in the folder."""
    rows: int | None = None
    """Number of rows; `None` for a file without rows."""
    bytes: int
    """Size."""
    sha256: str
    """Digest."""


class ExportManifest(Struct, frozen=True, kw_only=True):
    """Content of an export: `manifest.json`."""

    format: str
    """Format."""
    version: int = 1
    """Version of this file's layout."""
    run: dict[str, str]
    """`kind` of the run and `key`, which follows from its content."""
    take: str
    """Selection of answers."""
    path: str
    """Extent of the paths of pairs."""
    view: str
    """View of the conversations."""
    split: bool
    """A tenth of the seeds or tasks is in `validation`."""
    rows: dict[str, int]
    """Number of rows by file."""
    dropped: dict[str, int]
    """Number of trees, answers, nodes and calls that are in no row, by reason; `dropped.jsonl` names each."""
    notes: tuple[str, ...] = ()
    """Limits of the content, one line each."""
    files: tuple[ExportFile, ...]
    """All other files, with digests."""


class _RowsFile(Protocol):
    """File of rows that is being written."""

    def add(self, values: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class ExportWriter:
    """Writes rows into the files of a folder."""

    def __init__(
        self,
        folder: Path,
        columns: Mapping[str, Mapping[str, str]],
        *,
        parquet: bool,
        validation: frozenset[str],
        read_image: Callable[[str], bytes | None],
    ) -> None:
        """Begin without rows.

        :param folder: an empty folder.
        :param columns: types of columns by name and table.
        :param validation: groups whose rows are held out.
        :param read_image: returns the bytes of an image of the run.
        """
        self._folder = folder
        self._columns = columns
        self._parquet = parquet
        self._validation = validation
        self._read_image = read_image
        self._open: dict[str, _RowsFile] = {}
        self._images = set[str]()
        self._dropped: BinaryIO | None = None
        self._stack = ExitStack()
        self.tables: dict[str, dict[str, str]] = {}
        """File of each split that has rows, by table."""
        self.rows = Counter[str]()
        """Number of rows by file."""
        self.drops = Counter[DropReason]()
        """Number of things left out, by reason."""
        self.missing_images = 0
        """Number of images that the run no longer has."""

    def add(self, one: ExportRow | Dropped) -> None:
        """Write a row, or the reason that there is none."""
        if isinstance(one, Dropped):
            self.drops[one.reason] += 1
            if self._dropped is None:
                self._dropped = self._stack.enter_context(open_private(self._folder / DROPPED, "wb"))
            self._dropped.write(_line({"group": one.group, "id": one.id, "reason": one.reason}))
            return
        split = _VALIDATION if one.group in self._validation else "train"
        name = self._name(one.table, split)
        if name not in self._open:
            self.tables.setdefault(one.table, {})[split] = name
            self._open[name] = self._begin(name, self._columns[one.table])
        self.rows[name] += 1
        self._open[name].add(one.values)
        for file in one.images:
            self._add_image(file)

    def _add_image(self, file: str) -> None:
        """Copy an image of the run, once."""
        if file in self._images:
            return
        self._images.add(file)
        data = self._read_image(file)
        if data is None:
            self.missing_images += 1
            return
        path = self._folder / file
        make_private_folder(path.parent)
        write_private(path, data)

    def add_text(self, name: str, text: str) -> None:
        """Write a further file."""
        write_private(self._folder / name, text.encode("utf-8", "surrogatepass"))

    def close(self) -> None:
        """Finish all files of rows."""
        for table in self._open.values():
            table.close()
        self._open.clear()
        self._stack.close()

    def files(self) -> tuple[ExportFile, ...]:
        """Return all files but the manifest, in order of their names."""
        found: list[ExportFile] = []
        for path in sorted(self._folder.rglob("*")):
            name = path.relative_to(self._folder).as_posix()
            if path.is_dir() or name == MANIFEST:
                continue
            with path.open("rb") as file:
                digest = _digest(file)
            rows = self.rows.get(name)
            found.append(ExportFile(name=name, rows=rows, bytes=path.stat().st_size, sha256=digest))
        return tuple(found)

    def _name(self, table: str, split: str) -> str:
        suffix = "parquet" if self._parquet else "jsonl"
        if table == "train":
            return f"{split}.{suffix}"
        return f"{table}.{suffix}" if split == "train" else f"{table}.{split}.{suffix}"

    def _begin(self, name: str, columns: Mapping[str, str]) -> _RowsFile:
        path = self._folder / name
        return ParquetTable(path, columns) if self._parquet else _LinesFile(path)


class _LinesFile:
    """JSONL file."""

    def __init__(self, path: Path) -> None:
        self._file = open_private(path, "wb")

    def add(self, values: Mapping[str, Any]) -> None:
        self._file.write(_line(values))

    def close(self) -> None:
        self._file.close()


@contextmanager
def replaced_folder(folder: Path) -> Generator[Path]:
    """Yield a new folder that takes the place of another one at the end of the block, and is removed after an error.

    :raises ConfigurationError: if the other one has files that no export wrote, or files can't be written.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{folder}: is not a folder; name a new one with -o")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise ConfigurationError(f"{folder}: has files, but no export; name a new folder with -o")
    draft = folder.with_name(f".{folder.name}.new")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        make_private_folder(draft)
        yield draft
        if folder.exists():
            old = folder.with_name(f".{folder.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
            draft.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        else:
            draft.rename(folder)
    except OSError as error:
        raise ConfigurationError(f"{folder}: can't be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            shutil.rmtree(draft, ignore_errors=True)


def held_out(groups: Sequence[str]) -> frozenset[str]:
    """Return a tenth of the groups, at least one of two and at most 200, chosen by the digest of their ids."""
    if len(groups) < 2:
        return frozenset()
    ordered = sorted(groups, key=lambda group: sha256(group.encode("utf-8", "surrogatepass")).digest())
    return frozenset(ordered[: min(max(len(groups) // 10, 1), 200)])


def push_export(folder: str | Path, repository: str) -> str:
    """Upload an export as a data set and return its address; a new one is private.

    The library's own settings apply: `HF_TOKEN` or a login, `HF_ENDPOINT`. See docs/exports.md.

    :param repository: `OWNER/NAME`.
    :raises ConfigurationError: one line, if the folder is no export, a library is missing, or the hub refuses.
    """
    if not (Path(folder) / MANIFEST).is_file():
        raise ConfigurationError(f"{folder}: has no {MANIFEST}; name the folder of an export")
    if len(repository.split("/")) != 2 or not all(repository.split("/")):
        raise ConfigurationError(f"--push-to-hub: {repository} is no OWNER/NAME")
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise ConfigurationError(missing_extra("--push-to-hub", "datasets")) from None
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        made = api.create_repo(repository, repo_type="dataset", private=True, exist_ok=True)
        api.upload_folder(
            folder_path=folder,
            repo_id=repository,
            repo_type="dataset",
            commit_message="Upload an export of AgentFlow",
            delete_patterns="*",  # files of an earlier export
        )
    except Exception as error:  # the library raises many types: network, rights, names
        why = printable(str(error)).strip().splitlines() or [type(error).__name__]
        where = urlsplit(api.endpoint).netloc
        raise ConfigurationError(
            f"--push-to-hub: {where} refused {repository}: {why[0]}; the files are in {folder}"
        ) from None
    return str(made)


def _line(values: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(values) + b"\n"


def _digest(file: BinaryIO) -> str:
    total = sha256()
    while part := file.read(1 << 20):
        total.update(part)
    return total.hexdigest()
