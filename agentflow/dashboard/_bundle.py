"""Bundles: a folder with the page and the data of runs, which opens in a browser without a server."""

import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct, structs

from agentflow._private_files import make_private_folder, write_private
from agentflow.dashboard._page_data import (
    INDEX,
    PAGE_ROWS,
    RASTER,
    PageData,
    PageDataError,
    api_path,
    static_files,
)
from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.inspection import (
    MAX_TEXT,
    CallDetail,
    CallSummary,
    NodeDetail,
    RunSummary,
    SeedResults,
    SeedSummary,
    TreeSkeleton,
    without_paths,
)
from agentflow.telemetry import get_logger

logger = get_logger(__name__)

_CHUNK_BYTES: Final = 1 << 19
_DATA: Final = "data/index.js"
_FIRST_SCRIPT: Final = b'<script src="'

T = TypeVar("T")


class BundleSummary(Struct, frozen=True, kw_only=True):
    """Contents of a bundle."""

    folder: str
    """Its folder."""
    runs: int
    """Number of runs."""
    seeds: int
    """Number of seeds."""
    nodes: int
    """Number of nodes."""
    images: int
    """Number of images."""
    bytes: int
    """Size of all files."""


def write_bundle(
    data: PageData, folder: Path, *, seeds: Collection[str] = (), blobs: bool = True, prompts: bool = True
) -> BundleSummary:
    """Write the page and the data of all runs into a folder; `index.html` opens by a double click. See docs/view.md.

    The same runs give the same bytes. An earlier bundle in the folder is replaced; an error leaves it unchanged.

    :param seeds: ids of the seeds to include; none: all.
    :param blobs: include images.
    :param prompts: include prompts of model calls, which are most of it.
    :raises ConfigurationError: if the folder holds something else, can't be written, or a seed is unknown.
    """
    _check(folder)
    draft = folder.with_name(f".{folder.name}-{uuid4().hex[:8]}")
    try:
        make_private_folder(draft)
        bundle = _Bundle(data, draft, frozenset(seeds), blobs, prompts)
        bundle.write()
        _replace(folder, draft)
    except OSError as error:
        raise ConfigurationError(
            f"-o: {folder} can't be written: {error.strerror}; name another folder"
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return BundleSummary(folder=str(folder), bytes=size, **bundle.counts)


def _check(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _DATA).is_file():
        raise ConfigurationError(f"-o: {folder} holds something else than a bundle; name a new folder")
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"-o: {folder} is a file; name a folder")


def _replace(folder: Path, draft: Path) -> None:
    if folder.exists():
        old = draft.with_name(f"{draft.name}-old")
        folder.rename(old)
        draft.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        draft.rename(folder)


class _Bundle:
    """One bundle in the making."""

    def __init__(
        self, data: PageData, folder: Path, seeds: frozenset[str], blobs: bool, prompts: bool
    ) -> None:
        self._data = data
        self._folder = folder
        self._wanted = seeds
        self._with_blobs = blobs
        self._with_prompts = prompts
        self._chunks = _Chunks(folder / "data")
        self._images: set[str] = set()
        self.counts = {"runs": 0, "seeds": 0, "nodes": 0, "images": 0}

    def write(self) -> None:
        """Write all files."""
        runs = [run.shared() for run in self._read("runs", list[RunSummary])]
        written: set[str] = set()
        troubles: dict[str, str] = {}
        # The page finds the chunk of a path by the order of all paths.
        ordered = [(api_path("r", run.id), run) for run in runs]
        ordered += [(api_path("r", run.id, ""), run) for run in runs]
        for path, run in sorted(ordered, key=lambda item: item[0]):
            if not path.endswith("/"):
                self._chunks.add(path, msgspec.json.encode(run))
                continue
            try:
                written |= self._write_run(run)
            except AgentFlowError as error:
                if len(runs) == 1:
                    raise
                logger.warning("a run is incomplete", run=run.name, reason=str(error))
                troubles[run.id] = without_paths(str(error))
        if unknown := self._wanted - written:
            raise ConfigurationError(f"--seeds: there is no {', '.join(sorted(unknown))} in {len(runs)} runs")
        shown = [structs.replace(run, trouble=troubles.get(run.id, run.trouble)) for run in runs]
        self._chunks.add("runs", msgspec.json.encode(shown))
        self._chunks.close()
        self._write_page()
        self.counts |= {"runs": len(runs), "images": len(self._images)}

    def _write_run(self, run: RunSummary) -> set[str]:
        """Write the wanted seeds of a run, and return their ids."""
        if run.trouble:
            raise ConfigurationError(run.trouble)
        seeds = [seed for seed in self._all_seeds(run.id) if not self._wanted or seed.id in self._wanted]
        self._copy([api_path("r", run.id, "metrics")])
        for seed in sorted(seeds, key=lambda seed: api_path("r", run.id, "s", seed.id, "")):
            self._copy(self._seed_paths(run.id, seed.id))
        pages = [seeds[start : start + PAGE_ROWS] for start in range(0, max(len(seeds), 1), PAGE_ROWS)]
        after = ["", *(page[-1].id for page in pages[:-1])]
        lists = {
            api_path("r", run.id, "seeds", after=last): page for last, page in zip(after, pages, strict=True)
        }
        for path, page in sorted(lists.items()):
            self._chunks.add(path, msgspec.json.encode([_shared_seed(seed) for seed in page]))
        self._copy([api_path("r", run.id, "tools")])
        self.counts["seeds"] += len(seeds)
        return {seed.id for seed in seeds}

    def _seed_paths(self, run: str, seed: str) -> Iterator[str]:
        """Yield the paths of a seed in order; nodes are read twice, so that none has to stay in memory."""
        of_seed = ("r", run, "s", seed)
        skeleton = self._read(api_path(*of_seed, "skeleton"), TreeSkeleton)
        node_paths = sorted(skeleton.spots)
        self.counts["nodes"] += len(node_paths)
        calls: set[str] = set()
        texts: list[str] = []
        for node_path in node_paths:
            node = self._read(api_path(*of_seed, "node", spot=node_path), NodeDetail)
            calls.update(api_path(*of_seed, "call", key=call.key) for call in node.calls)
            for index, part in enumerate(node.parts):
                self._add_image(run, part.blob)
                begins = range(len(part.text), part.chars, MAX_TEXT)
                query = {"spot": node_path, "part": str(index)}
                texts += (api_path(*of_seed, "text", **query, **{"from": str(begin)}) for begin in begins)
        others = self._read(api_path(*of_seed, "calls"), list[CallSummary])
        calls.update(api_path(*of_seed, "call", key=call.key) for call in others)
        parents = {node_path.rpartition("-")[0] for node_path in node_paths if node_path}
        yield from sorted(calls)
        yield api_path(*of_seed, "calls")
        yield from (api_path(*of_seed, "children", spot=node_path) for node_path in sorted(parents))
        yield from (api_path(*of_seed, "node", spot=node_path) for node_path in node_paths)
        yield api_path(*of_seed, "results")
        yield api_path(*of_seed, "skeleton")
        yield api_path(*of_seed, "summary")
        yield from sorted(texts)
        yield api_path(*of_seed, "tokens")

    def _copy(self, paths: Iterable[str]) -> None:
        for path in paths:
            body = self._data.load(path)
            if path.endswith("/summary"):
                body = msgspec.json.encode(_shared_seed(msgspec.json.decode(body, type=SeedSummary)))
            elif path.endswith("/results"):
                body = msgspec.json.encode(_shared_results(msgspec.json.decode(body, type=SeedResults)))
            elif "/call?" in path:
                body = self._shared_call(path.split("/")[1], body)
            self._chunks.add(path, body)

    def _shared_call(self, run: str, body: bytes) -> bytes:
        """Return a call with its prompt, whose images are added, or without it."""
        detail = msgspec.json.decode(body, type=CallDetail)
        if not self._with_prompts:
            detail = structs.replace(detail, prompt=(), missing=detail.missing or "this bundle has none")
            return msgspec.json.encode(detail)
        for message in detail.prompt:
            for image in message.images:
                self._add_image(run, image.hash)
        return body

    def _all_seeds(self, run: str) -> Iterator[SeedSummary]:
        last = ""
        while page := self._read(api_path("r", run, "seeds", after=last), list[SeedSummary]):
            yield from page
            last = page[-1].id

    def _add_image(self, run: str, digest: str) -> None:
        if not digest or digest in self._images or not self._with_blobs:
            return
        try:
            data, mime = self._data.blob(run, digest)
        except PageDataError:
            return
        if mime in RASTER:
            make_private_folder(self._folder / "blobs")
            write_private(self._folder / "blobs" / f"{digest}.{RASTER[mime]}", data)
            self._images.add(digest)

    def _write_page(self) -> None:
        make_private_folder(self._folder / "static")
        for name, (body, _) in static_files().items():
            if name == INDEX:
                page = body.replace(b'"/static/', b'"static/')
                loads = f'<script src="{_DATA}"></script>\n'.encode()
                write_private(self._folder / INDEX, page.replace(_FIRST_SCRIPT, loads + _FIRST_SCRIPT, 1))
            else:
                write_private(self._folder / "static" / name, body)

    def _read(self, path: str, kind: type[T]) -> T:
        return msgspec.json.decode(self._data.load(path), type=kind)


def _shared_seed(seed: SeedSummary) -> SeedSummary:
    return structs.replace(seed, failure=without_paths(seed.failure))


def _shared_results(results: SeedResults) -> SeedResults:
    failure = results.failure
    if failure is not None:
        failure = structs.replace(failure, message=without_paths(failure.message))
    return structs.replace(results, failure=failure)


class _Chunks:
    """Scripts with the data, each with a part of the paths in order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[bytes] = []
        self._size = 0
        self._first = ""
        self._last = ""
        self._index: list[tuple[str, str]] = []

    def add(self, path: str, body: bytes) -> None:
        """Add the answer of a path."""
        assert self._last < path, (self._last, path)
        self._first, self._last = self._first or path, path
        self._waiting.append(msgspec.json.encode(path) + b":" + body)
        self._size += len(body)
        if self._size >= _CHUNK_BYTES:
            self._write()

    def close(self) -> None:
        """Write the last chunk and the index."""
        self._write()
        index = msgspec.json.encode({"bundle": True, "chunks": self._index})
        write_private(self._folder.parent / _DATA, b"globalThis.agentflow = " + index + b";\n")

    def _write(self) -> None:
        make_private_folder(self._folder)
        if self._waiting:
            name = f"{len(self._index) + 1:05}.js"
            # Parsed as JSON: in a script, a key `__proto__` would be no key.
            text = b"{" + b",".join(self._waiting) + b"}"
            body = b"agentflow.load(JSON.parse('" + _quoted(text) + b"'));\n"
            write_private(self._folder / name, body)
            self._index.append((self._first, f"data/{name}"))
        self._waiting, self._size, self._first = [], 0, ""


def _quoted(text: bytes) -> bytes:
    """Escape JSON for a string of a script."""
    return text.replace(b"\\", b"\\\\").replace(b"'", b"\\'")
