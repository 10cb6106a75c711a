"""Files of an export: rows as JSONL or Parquet, images, a manifest and a dataset card; the same rows give the same bytes. Their upload."""

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
import yaml
from msgspec import Struct

from agentflow._private_files import make_private_folder, open_private, write_private
from agentflow._terminal import printable
from agentflow.errors import ConfigurationError
from agentflow.exports._parquet import ParquetTable
from agentflow.exports._rows import COLUMNS, STRUCTS, Dropped, DropReason, ExportRow
from agentflow.extras import missing_extra

MANIFEST: Final = "manifest.json"
"""File that describes an export."""
DROPPED: Final = "dropped.jsonl"
"""File with everything that is in no row."""
_VALIDATION: Final = "validation"
_AGENT: Final = (
    "The conversations retell each path as one agent that calls tools. No model read these prompts: in the run, a planner,\n"
    "an executor and a verifier read prompts of their own."
)
_RECORDED: Final = (
    "The conversations are those that agents had with a model through the gateway, message by message."
)
_CALLS: Final = "Each row is what model calls read and sampled, token for token."


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
    view: str = "agent"
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

    def add(self, row: ExportRow | Dropped) -> None:
        """Write a row, or the reason that there is none."""
        if isinstance(row, Dropped):
            self.drops[row.reason] += 1
            if self._dropped is None:
                self._dropped = self._stack.enter_context(open_private(self._folder / DROPPED, "wb"))
            self._dropped.write(_line({"group": row.group, "id": row.id, "reason": row.reason}))
            return
        split = _VALIDATION if row.group in self._validation else "train"
        name = self._name(row.table, split)
        if name not in self._open:
            self.tables.setdefault(row.table, {})[split] = name
            self._open[name] = self._begin(name, self._columns[row.table])
        self.rows[name] += 1
        self._open[name].add(row.values)
        for file in row.images:
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
        files: list[ExportFile] = []
        for path in sorted(self._folder.rglob("*")):
            name = path.relative_to(self._folder).as_posix()
            if path.is_dir() or name == MANIFEST:
                continue
            with path.open("rb") as file:
                digest = _digest(file)
            rows = self.rows.get(name)
            files.append(ExportFile(name=name, rows=rows, bytes=path.stat().st_size, sha256=digest))
        return tuple(files)

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


def dataset_card(
    manifest: ExportManifest,
    tables: Mapping[str, Mapping[str, str]],
    columns: Mapping[str, Mapping[str, str]],
    usage: str,
) -> str:
    """Return the card.

    :param tables: file of each split, by table.
    :param columns: types of columns by name and table.
    :param usage: text on how to use the rows.
    """
    alone = set(tables) == {"train"}
    names = {table: "default" if alone else table for table in tables}
    configs = [
        {
            "config_name": names[table],
            "data_files": [{"split": split, "path": path} for split, path in splits.items()],
        }
        for table, splits in tables.items()
    ]
    infos = [
        {
            "config_name": names[table],
            "features": _features(columns[table]),
        }
        for table in tables
    ]
    run = manifest.run
    head: dict[str, Any] = {
        "pretty_name": f"{run['kind']} {run['key'][:8]} as {manifest.format}",
        "tags": ["agentflow", "agent-trajectories", manifest.format],
        "configs": configs,
        "dataset_info": infos[0] if len(infos) == 1 else infos,
    }
    front = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{front}---\n\n" + "\n\n".join(_body(manifest, usage)) + "\n"


def _body(manifest: ExportManifest, usage: str) -> list[str]:
    run = manifest.run
    how = f"with `--take {manifest.take}`, `--path {manifest.path}` and `--view {manifest.view}`"
    parts = [
        f"# {manifest.format}",
        f"Written by `agentflow export` from the {run['kind']} `{run['key']}`, {how}.",
        _origin(manifest),
        usage.strip(),
        _table(("file", "rows"), [(f"`{name}`", str(count)) for name, count in manifest.rows.items()]),
    ]
    if manifest.split:
        parts.append("`validation` holds a tenth of the seeds or tasks; no seed or task is in both.")
    if manifest.dropped:
        counts = [(f"`{reason}`", str(count)) for reason, count in manifest.dropped.items()]
        parts += [f"Left out; `{DROPPED}` names each:", _table(("reason", "number"), counts)]
    parts += [f"- {note}" for note in manifest.notes]
    return parts


def _origin(manifest: ExportManifest) -> str:
    """Return the origin of the rows."""
    if manifest.format == "trl-sft-tokens":
        return _CALLS
    return _RECORDED if manifest.run["kind"] in ("tuning", "gateway") else _AGENT


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _card_type(kind: str) -> dict[str, Any]:
    """Return a column type in the notation of dataset cards."""
    inner = kind.strip("[]")
    is_list = kind.startswith("[")
    if fields := STRUCTS.get(inner):
        return {"list" if is_list else "struct": _features(fields)}
    return {"list": COLUMNS[inner]} if is_list else {"dtype": COLUMNS[inner]}


def _features(columns: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, **_card_type(kind)} for name, kind in columns.items()]


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
