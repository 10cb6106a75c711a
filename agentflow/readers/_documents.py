"""Tasks from documents: question-answer pairs that our synthesis writes, kept by the content of the documents and the model."""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from agentflow.errors import ConfigurationError
from agentflow.readers._reading import Located, refuse_options, take_option
from agentflow.readers._replies import cache_folder
from agentflow.readers._settings import ParsedSource, ReaderSettings
from agentflow.rollouts.benchmarks import read_rows
from agentflow.runs import run_sync
from agentflow.synthesis import PAIRS, SynthesisConfig, SynthesisPipeline
from agentflow.trace import Task, digest

SOURCE: Final = "documents"
"""`source` of these tasks."""
_HEADING: Final = re.compile(r"^#\s+(.+)$", re.MULTILINE)
_OPTIONS: Final = ("seeds", "max_seeds", "synthesis")
_SEED: Final = "Explore {} and what is connected with it."
_LINES: Final = frozenset({".jsonl", ".ndjson"})


class _Pair(Struct, frozen=True):
    question: str
    answer: str
    qa_id: str
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


def read_documents(source: ParsedSource, settings: ReaderSettings) -> Iterator[Located]:
    """Iterate over questions about documents: `documents:FOLDER?max_seeds=20`, or a JSONL file with `title` and `text`.

    The synthesis of unchanged documents with the same model and settings is made once.

    :raises ConfigurationError: one line, if the documents can't be read, or give no question.
    :raises RunStopped: if the synthesis ended early; the same reader continues it.
    """
    seeds = take_option(source, "seeds", list[str], None)
    most = take_option(source, "max_seeds", int, 100)
    options = take_option(source, "synthesis", dict[str, Any], {})
    refuse_options(source, _OPTIONS)
    path = Path(source.target)
    files = _files(path)
    chosen = seeds or list(dict.fromkeys(_SEED.format(title) for title in _titles(files)))
    config = _config(path, options, settings)
    # Without the folder of this machine and the key, so that only the content decides.
    content = {"files": [_digest(file) for file in files], "seeds": chosen[:most], "settings": options}
    folder = (
        cache_folder(settings.cache) / SOURCE / digest([content, config.model.name, config.temperature], 12)
    )
    # The run knows the documents by a name that stays if they are moved.
    link = folder.with_name(f"{folder.name}-documents{path.suffix if path.is_file() else ''}")
    _link(link, path)
    config.resource_init_configs = {"rag": {"index_path": str(link.absolute())}}
    report = run_sync(SynthesisPipeline(config, folder).arun, chosen[:most], progress=False)
    number = 0
    for number, line in enumerate((folder / PAIRS).read_bytes().splitlines(), 1):
        pair = msgspec.json.decode(line, type=_Pair)
        kept = {
            name: pair.metadata[name]
            for name in ("kind", "level", "hops", "documents")
            if name in pair.metadata
        }
        yield (
            f"documents:{path}: question {number}",
            Task(
                index=0,
                id=pair.qa_id,
                question=pair.question,
                references=(pair.answer,),
                metadata={"source": SOURCE, **kept},
            ),
        )
    if not number:
        raise ConfigurationError(
            f"documents:{path}: there are no questions: {report.why_empty or 'see its report'}"
        )


def _config(path: Path, options: dict[str, Any], settings: ReaderSettings) -> SynthesisConfig:
    model: dict[str, Any] = {
        name: value
        for name in ("model_name", "base_url", "api_key", "temperature", "max_tokens", "structured")
        if (value := getattr(settings.model, name)) is not None
    }
    documents: dict[str, Any] = {"resource_types": ["rag"]}
    try:
        chosen: dict[str, Any] = {"tasks": "questions", **model, **options, **documents}
        return SynthesisConfig(**chosen)
    except ConfigurationError as error:
        raise ConfigurationError(f"documents:{path}: synthesis: {error}") from None


def _link(link: Path, path: Path) -> None:
    """Let a link in the cache lead to the documents."""
    try:
        link.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = link.with_name(f".{link.name}-{os.getpid()}")
        draft.unlink(missing_ok=True)
        draft.symlink_to(path.absolute())
        draft.replace(link)
    except OSError as error:
        raise ConfigurationError(
            f"cache: {link} can't be written: {error.strerror}; name another folder"
        ) from None


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not files:
        raise ConfigurationError(
            f"documents:{path}: there are no documents; name a folder of texts, or a JSONL file"
        )
    return files


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "blake2b").hexdigest()
    except OSError as error:
        raise ConfigurationError(f"documents:{file}: can't be read: {error.strerror}") from None


def _titles(files: list[Path]) -> Iterator[str]:
    """Iterate over the titles of documents: of a row, a first heading, or the name of the file."""
    for file in files:
        if file.suffix.lower() in _LINES:
            for row in read_rows(file, "jsonl"):
                title: object = row.fields.get("title")
                if isinstance(title, str) and title.strip():
                    yield title.strip()
            continue
        with file.open("rb") as content:
            heading = _HEADING.search(content.read(4_096).decode("utf-8", "replace"))
        named = heading[1].strip() if heading and file.suffix.lower() == ".md" else ""
        yield named or file.stem.replace("_", " ").replace("-", " ")
