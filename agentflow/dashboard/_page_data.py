"""Answers of the page's interface, as JSON, and the files of the page: the same for the live view and for bundles."""

import re
import sys
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, quote, unquote

import msgspec
from msgspec import structs

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._typeguards import is_list_or_tuple, is_mapping
from agentflow.errors import AgentFlowError, ToolFailure, error_line
from agentflow.exports import ExportFormat, export_run
from agentflow.inspection import DAMAGE, MAX_TEXT, RunCollection, RunReader, WorkState
from agentflow.runs import read_control_address
from agentflow.sandbox import SyncSandbox

PAGE_ROWS: Final = 200
"""Seeds of one answer, unless the path says otherwise."""
_MAX_ROWS: Final = 1000
MAX_STRETCH: Final = 8 * MAX_TEXT
"""Characters of a long text in one answer."""
_MAX_HITS: Final = 500
_DIGITS: Final = re.compile(rb"[0-9]{16}")
_MAX_EXACT: Final = 2**53
"""JavaScript rounds larger integers."""
_STATUS_SECONDS: Final = 5.0
_NODE_PATH: Final = re.compile(r"([0-9]{1,9}(-[0-9]{1,9}){0,9999})?")

RASTER: Final = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
"""Types of images that a page may show, with the endings of their files. SVG is none of them: it can hold scripts."""
_UNESCAPED: Final = "!'()*-._~"
INDEX: Final = "index.html"
"""Name of the page among its files."""
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


class PageDataError(AgentFlowError):
    """Refusal of a path, with the status of an HTTP answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status."""


Query: TypeAlias = Mapping[str, str]


class PageData:
    """Answers about the runs of a collection. Every method may be called from any thread.

    A path is what follows `/api/` in the address of an answer. See docs/view.md.
    """

    def __init__(self, runs: RunCollection) -> None:
        self.runs = runs
        """The runs."""

    def load(self, path: str) -> bytes:
        """Return the answer of a path, as JSON.

        :raises PageDataError: if there is no such path, run, seed or node.
        """
        try:
            return self._load(path)
        except AgentFlowError:
            raise
        except (KeyError, *DAMAGE) as error:
            reason = decode_reason(error) if isinstance(error, DECODE_ERRORS) else error_line(error)
            raise PageDataError(
                503, f"a record of the run is damaged: {reason} ({path.partition('?')[0]})"
            ) from None

    def _load(self, path: str) -> bytes:
        name, _, text = path.partition("?")
        query = dict(parse_qsl(text, keep_blank_values=True))
        match [unquote(part) for part in name.split("/")]:
            case ["runs"]:
                return _encode(self.runs.runs())
            case ["r", run]:
                return _encode(self.reader(run).summary())
            case ["r", run, what] if what in _OF_RUN:
                return _encode(_OF_RUN[what](self.reader(run), query))
            case ["r", run, "s", seed, what] if what in _OF_SEED:
                reader = self.reader(run)
                try:
                    return _encode(_OF_SEED[what](reader, seed, query))
                except KeyError as error:
                    raise PageDataError(404, f"seed {seed!r} has no such part: {error}") from None
                except RecursionError:
                    raise PageDataError(400, "it is nested too deeply to be shown") from None
            case _:
                raise PageDataError(404, f"there is no answer {name!r}")

    def reader(self, run_id: str) -> RunReader:
        """Return the reader of a run.

        :raises PageDataError: if there is no such run.
        """
        try:
            return self.runs.run(run_id)
        except KeyError:
            raise PageDataError(404, f"there is no run {run_id!r}") from None

    def blob(self, run_id: str, digest: str) -> tuple[bytes, str]:
        """Return bytes of a run and their MIME type.

        :raises PageDataError: if there are none.
        """
        try:
            return self.reader(run_id).blob(digest)
        except KeyError:
            raise PageDataError(404, f"there is no blob {digest!r}") from None

    def export(
        self, run_id: str, format: str, take: str | None = None, view: str = "agent", split: bool = False
    ) -> dict[str, object]:
        """Write a run as a data set into `exports/FORMAT` of its output directory and return the manifest with the folder.

        :raises ConfigurationError: if it can't be exported.
        :raises PageDataError: if there is no such run, or its output directory is not on this machine.
        """
        folder = Path(self.reader(run_id).summary().folder)
        if not folder.is_dir() or folder == Path():
            raise PageDataError(
                400, "the run has no output directory on this machine; use `agentflow export` there"
            )
        if format not in set(ExportFormat):
            raise PageDataError(400, f"format: {format[:40]!r} is none of {', '.join(ExportFormat)}")
        target = folder / "exports" / format
        manifest = export_run(folder, format, target, take=take, view=view, split=split)
        return {**structs.asdict(manifest), "folder": str(target)}


_encode = msgspec.json.Encoder().encode


def _bounded(answer: object) -> object:
    """Return an answer with texts of at most a million characters, and with integers that JavaScript does not round."""
    body = _encode(answer)
    if len(body) <= MAX_TEXT and not _DIGITS.search(body):
        return msgspec.Raw(body)
    try:
        return _reduced(msgspec.to_builtins(answer))
    except RecursionError:
        # JSON may be nested more deeply than functions may call each other.
        return msgspec.Raw(body)


def _reduced(value: object) -> object:
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}… and {len(value) - MAX_TEXT:,} more characters in the journal of the run"
    if isinstance(value, int) and abs(value) > _MAX_EXACT:
        return str(value)
    if is_mapping(value):
        return {name: _reduced(inner) for name, inner in value.items()}
    return [_reduced(inner) for inner in value] if is_list_or_tuple(value) else value


def _seeds(run: RunReader, query: Query) -> object:
    state = query.get("state", "")
    if state and state not in set(WorkState):
        raise PageDataError(400, f"state: {state[:40]!r} is none of {', '.join(WorkState)}")
    return run.seeds(
        after=query.get("after", ""),
        limit=_number(query, "limit", PAGE_ROWS, _MAX_ROWS),
        text=query.get("text", ""),
        state=WorkState(state) if state else None,
    )


def _search(run: RunReader, query: Query) -> object:
    return run.search(query.get("text", ""), limit=_number(query, "limit", 50, _MAX_HITS))


def _status(run: RunReader, query: Query) -> object:
    """Ask the control server of an active run for its actors and calls."""
    try:
        control = read_control_address(Path(run.summary().folder))
        if not control.is_own:
            raise PageDataError(404, "the run is not active on this machine")
        with SyncSandbox(
            control.url, token=control.token, timeout=_STATUS_SECONDS, auto_start=False
        ) as sandbox:
            answer = sandbox.execute("run:actors", {})
    except (OSError, ValueError, ToolFailure):
        raise PageDataError(404, "the run is not active, or not on this machine") from None
    if answer.error is not None:
        raise PageDataError(503, answer.error.message)
    return answer.data


def _nodes(run: RunReader, seed: str, query: Query) -> object:
    return run.nodes(
        seed, [_node_path(node_path) for node_path in query.get("spots", "").split(",")[:PAGE_ROWS]]
    )


class TextStretch(msgspec.Struct):
    """Stretch of a text of an observation."""

    text: str
    """The stretch."""
    chars: int
    """Length of the whole text."""


def _text(run: RunReader, seed: str, query: Query) -> TextStretch:
    node_path, part = _node_path(query.get("spot", "")), _number(query, "part", 0, sys.maxsize)
    begin, limit = _number(query, "from", 0, sys.maxsize), _number(query, "limit", MAX_TEXT, MAX_STRETCH)
    whole = run.text(seed, node_path, part)
    return TextStretch(whole[begin : begin + limit], len(whole))


def _node_path(text: str) -> str:
    if _NODE_PATH.fullmatch(text):
        return text
    raise PageDataError(404, f"there is no node {text[:40]!r}")


_OF_RUN: Final[dict[str, Callable[[RunReader, Query], object]]] = {
    "tools": lambda run, _: run.tools(),
    "metrics": lambda run, _: run.metrics(),
    "seeds": _seeds,
    "search": _search,
    "status": _status,
}

_OF_SEED: Final[dict[str, Callable[[RunReader, str, Query], object]]] = {
    "summary": lambda run, seed, _: run.seed(seed),
    "skeleton": lambda run, seed, _: run.skeleton(seed),
    "nodes": _nodes,
    "children": lambda run, seed, query: run.children(seed, _node_path(query.get("spot", ""))),
    "node": lambda run, seed, query: _bounded(run.node(seed, _node_path(query.get("spot", "")))),
    "call": lambda run, seed, query: _bounded(run.call(seed, query.get("key", ""))),
    "calls": lambda run, seed, _: _bounded(run.calls(seed)),
    "results": lambda run, seed, _: _bounded(run.results(seed)),
    "text": _text,
    "tokens": lambda run, seed, _: run.tokens(seed),
}


def _number(query: Query, name: str, usual: int, most: int) -> int:
    text = query.get(name) or str(usual)
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise PageDataError(400, f"{name}: {text[:40]!r} is no number from 0 on")
    return min(int(text), most)


def static_files() -> dict[str, tuple[bytes, str]]:
    """Return the files of the page with their MIME types, by name."""
    contents: dict[str, tuple[bytes, str]] = {}
    for file in sorted(files("agentflow.dashboard").joinpath("static").iterdir(), key=lambda file: file.name):
        mime = _TYPES.get("." + file.name.rpartition(".")[2])
        if mime is not None:
            contents[file.name] = (file.read_bytes(), mime)
    return contents


def api_path(*parts: str, **query: str) -> str:
    """Return the path of an answer, as the page spells it: parameters without a value are left out.

    >>> api_path("r", "r1", "s", "a b", "node", spot="0-1")
    'r/r1/s/a%20b/node?spot=0-1'
    """
    path = "/".join(quote(part, safe=_UNESCAPED) for part in parts)
    text = "&".join(f"{name}={quote(value, safe=_UNESCAPED)}" for name, value in query.items() if value)
    return f"{path}{'?' if text else ''}{text}"
