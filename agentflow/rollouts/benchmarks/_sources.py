"""Choice of published files: in a folder of downloads, or in a data set of the hub."""

import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from agentflow._decoding import decode_json
from agentflow._http_client import MAX_ANSWER_BYTES
from agentflow._typeguards import is_list, is_object
from agentflow.errors import ConfigurationError

_SYNTAX: Final = re.compile(
    r"hub:(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>[^:]+)|:(?P<configuration>[^:]*)(?::(?P<split>[^:]*))?)?"
)
_PUBLIC: Final = "https://huggingface.co"
_TIMEOUT: Final = 30.0


class HubSource(Struct, frozen=True, kw_only=True):
    """Data set of the hub, or a file in it: `hub:OWNER/NAME[@REVISION][/FILE | :CONFIGURATION[:SPLIT]]`."""

    name: str
    """`OWNER/NAME`."""
    revision: str = "main"
    """Branch, tag or commit."""
    file: str = ""
    """Path of a file; empty: the file is chosen."""
    configuration: str = ""
    """Name of the configuration, which the path of the file contains."""
    split: str = ""
    """Name of the split, which the path of the file contains."""

    @classmethod
    def parse(cls, text: str) -> "HubSource":
        """Read a source.

        :raises ConfigurationError: one line, if it has another form.
        """
        match = _SYNTAX.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"{text}: is not a data set; write hub:OWNER/NAME, hub:OWNER/NAME/FILE or hub:OWNER/NAME:CONFIGURATION:SPLIT"
            )
        return cls(**{name: value for name, value in match.groupdict().items() if value})

    def __str__(self) -> str:
        return f"hub:{self.name}"


def hub_files(source: HubSource) -> list[str]:
    """Return the paths of all files of a data set.

    :raises ConfigurationError: one line, if the hub can't be reached or has no such data set.
    """
    with _open(source, f"/api/datasets/{source.name}/revision/{quote(source.revision, safe='')}") as answer:
        body = answer.read(MAX_ANSWER_BYTES + 1)
        try:
            if len(body) > MAX_ANSWER_BYTES:
                raise ValueError
            read: object = decode_json(body)
        except ValueError:
            raise ConfigurationError(f"{source}: the answer of {_endpoint()} is not that of a hub") from None
    files: object = read.get("siblings") if is_object(read) else None
    names = [file.get("rfilename") for file in files if is_object(file)] if is_list(files) else []
    return [file for file in names if isinstance(file, str)]


def download(source: HubSource, file: str) -> Path:
    """Return a local copy of a file of a data set, from the cache if it is there.

    :raises ConfigurationError: one line, if the hub can't be reached or has no such file.
    """
    parts = [
        re.sub(r"[^\w.-]+", "_", part).lstrip(".") or "_" for part in (source.revision, *file.split("/"))
    ]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    local = cache.joinpath("agentflow", "hub", *source.name.split("/"), *parts)
    # A branch may have moved on; without the hub, the last copy is used.
    fixed = bool(re.fullmatch(r"[0-9a-f]{40}", source.revision))
    if fixed and local.exists():
        return local
    try:
        where = f"/datasets/{source.name}/resolve/{quote(source.revision, safe='')}/{quote(file)}"
        with _open(source, where) as answer:
            _save(answer, local)
    except ConfigurationError:
        if not local.exists():
            raise
    except (OSError, HTTPException) as error:
        raise ConfigurationError(f"{source}: {file} can't be kept as {local}: {error}; try again") from None
    return local


def _save(answer: HTTPResponse, local: Path) -> None:
    local.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=local.parent, delete=False) as part:
        try:
            shutil.copyfileobj(answer, part)
            if answer.length:
                raise OSError(f"{answer.length} bytes of it are missing")
            Path(part.name).replace(local)
        except BaseException:
            with suppress(OSError):
                Path(part.name).unlink()
            raise


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", _PUBLIC).rstrip("/")


def _open(source: HubSource, path: str) -> HTTPResponse:
    request = urllib.request.Request(_endpoint() + path, headers={"User-Agent": "agentflow"})
    if token := os.environ.get("HF_TOKEN"):
        # Files are redirected to storage that must not see the token.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    where = PurePosixPath(path).name
    try:
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise ConfigurationError(f"{source}: {_reason(error.code, where)}") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigurationError(
            f"{source}: {_endpoint()} can't be reached ({reason}); download the file elsewhere and name it"
        ) from None
    return answer


def _reason(status: int, where: str) -> str:
    match status:
        case 401 | 403:
            return "is private, gated or missing; accept its terms on the hub and set HF_TOKEN"
        case 404:
            return f"the hub has no {where} of it; check the name and the revision"
        case _:
            return f"the hub answered {status}; try again later, or download the file elsewhere and name it"


_FORMATS: Final = frozenset({".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"})
_NAMES: Final = {
    "bamboogle": re.compile(r"bamboogle"),
    "2wiki": re.compile(r"2wiki"),
    "hotpotqa": re.compile(r"hotpot"),
    "musique": re.compile(r"musique"),
    "gaia": re.compile(r"^gaia|gaia$"),
    "aime24": re.compile(r"aime(20)?24|^aime$"),
    "amc23": re.compile(r"amc(20)?23|validationamc|^amc$"),
    "gameof24": re.compile(r"gameof24|game24|24game|^24$"),
    "gpqa": re.compile(r"gpqa"),
    "medqa": re.compile(r"medqa"),
}
"""Patterns of folders and files without punctuation."""
_OTHER: Final = frozenset({
    "datasetinfo", "datasetinfos", "state", "config", "idaliases", "predictions", "pred", "singlehop", "experts", "tokenizer",
    "readme", "package",
})  # fmt: skip
"""Words of files beside the data."""
_NO_DATA: Final = frozenset({"node_modules", "__pycache__", "site-packages"})
"""Folders that are not searched."""
_HIDDEN_ANSWERS: Final = frozenset({"2wiki", "gaia", "hotpotqa", "musique"})
"""Benchmarks whose test split has no answers."""
_USUAL: Final = {
    "gpqa": ("diamond", "main", "extended"), "musique": ("ans",), "medqa": ("us", "4options", "4"), "gaia": ("2023",),
    "hotpotqa": ("distractor", "fullwiki"),
}  # fmt: skip
"""Words of the configuration that published figures refer to, the usual one first."""
HUB: Final = "hub:"
"""Prefix of a data set of the hub."""


def find_data(source: str, benchmark: str) -> Path | None:
    """Return the file of a benchmark: the source if it is a file, or the published file in a folder or data set.

    See docs/benchmarks.md.

    :param source: file, folder, or `hub:OWNER/NAME`.
    :param benchmark: name of a built-in benchmark, or of another one.
    :return: `None` if a folder has no file of it.
    :raises ConfigurationError: one line, if a data set of the hub can't be used.
    """
    if source.startswith(HUB):
        return _of_hub(HubSource.parse(source), benchmark)
    path = Path(source)
    return published_files(path, [benchmark]).get(benchmark) if path.is_dir() else path


def published_files(folder: Path, benchmarks: Iterable[str]) -> dict[str, Path]:
    """Return the published file of each benchmark that a folder has one of. See docs/benchmarks.md."""
    files: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NO_DATA]
        files += [str(Path(place, name).relative_to(folder)) for name in names]
    chosen = {benchmark: choose_file(files, benchmark) for benchmark in benchmarks}
    return {benchmark: folder / file for benchmark, file in chosen.items() if file is not None}


def _of_hub(source: HubSource, benchmark: str) -> Path:
    if source.file:
        return download(source, source.file)
    files = hub_files(source)
    words = {word.lower() for word in (source.configuration, source.split) if word}
    named = [file for file in files if words <= set(_words(file)) | {PurePosixPath(file).parent.name.lower()}]
    chosen = choose_file(named, benchmark, whole=True)
    if chosen is None:
        raise ConfigurationError(f"{source}: has no such data file; name one, as in {source}/FILE")
    return download(source, chosen)


def choose_file(files: Iterable[str], benchmark: str, *, whole: bool = False) -> str | None:
    """Return the file of a benchmark among paths, by the names of folders and files: its usual configuration and split.

    :param whole: all the files belong to the benchmark.
    """
    pattern = _NAMES.get(benchmark) or re.compile(re.escape(_plain(benchmark)))
    data = [file for file in files if PurePosixPath(file).suffix.lower() in _FORMATS and not _is_other(file)]
    matching = data if whole else [file for file in data if _matches(file, pattern)]
    return min(matching, key=lambda file: _rank(file, benchmark, pattern), default=None)


def _matches(file: str, pattern: re.Pattern[str]) -> bool:
    return any(
        pattern.search(_plain(part)) for part in (*PurePosixPath(file).parts[:-1], PurePosixPath(file).stem)
    )


def _is_other(file: str) -> bool:
    path = PurePosixPath(file)
    return bool(_OTHER & {*_words(path.name), _plain(path.stem)}) or any(
        part.startswith(".") for part in path.parts
    )


def _rank(file: str, benchmark: str, pattern: re.Pattern[str]) -> tuple[int, int, bool, int, str]:
    words = set(_words(file))
    hidden = benchmark in _HIDDEN_ANSWERS
    splits = {"train": 3, "test": 2 if hidden else 0, "dev": 0 if hidden else 1, "val": 0 if hidden else 1}
    splits["validation"] = splits["val"]
    split = min((rank for name, rank in splits.items() if name in words), default=1)
    usual = _USUAL.get(benchmark, ())
    place = min((place for place, word in enumerate(usual) if word in words), default=len(usual))
    # A name of its own counts more than that of a folder, and a whole file more than a part of it.
    level = any(re.fullmatch(r"level\d", word) for word in words)
    own = bool(pattern.search(_plain(PurePosixPath(file).stem)))
    return (split, place, level, 0 if own else 1, file)


def _words(path: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", path.lower())


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()
