# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyarrow is partially typed.
"""Training data: convert published data sets to parquet files that training and rollouts read. See docs/train-data.md."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from agentflow._typeguards import is_list
from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.rollout.benchmarks import BenchmarkRow, read_rows, references
from agentflow.scoring import extract_answer
from agentflow.text import excerpt, search_terms

__all__ = [
    "Item",
    "Prepared",
    "prepare",
    "read_attempts",
    "read_conversations",
]

SEARCH: Final = "nq"
"""`source` of search questions."""
MATH: Final = "mathhard"
"""`source` of math problems."""
AIME: Final = "aime2024"
"""`source` of the test set."""

_QUESTION: Final = ("question", "Question", "problem", "Problem", "prompt")
_ANSWERS: Final = ("golden_answers", "answer", "answers", "Answer")
_RESULT: Final = ("final_answer", "answer", "Answer")
_SOLUTION: Final = ("solution", "Solution")
_HUB: Final = "hub:"


class Item(Struct, frozen=True, kw_only=True):
    """A question with its answers."""

    question: str
    """The question."""
    answers: tuple[str, ...]
    """Accepted answers; any one is sufficient."""
    source: str
    """Name of the source."""


Reader = Callable[[BenchmarkRow], Item]
"""Reads a row of a source."""


def read_search(row: BenchmarkRow) -> Item:
    """Read a question with short answers in the search format of Natural Questions: `question, golden_answers`.

    :raises ConfigurationError: with line and field, if something is missing or has the wrong type.
    """
    answers = references(row, *_ANSWERS)
    if not answers:
        row.refuse(_ANSWERS[0], "is missing; add it, or answer")
    return Item(question=row.text(*_QUESTION), answers=answers, source=SEARCH)


def read_math(row: BenchmarkRow) -> Item:
    """Read a problem with its result in the format of DeepMath: `question, final_answer`; or with a boxed solution.

    :raises ConfigurationError: with line and field, if something is missing or has the wrong type.
    """
    answers = references(row, *_RESULT)[:1]
    if not answers:
        _, solution = row.find(*_SOLUTION)
        if isinstance(solution, str) and "\\boxed" in solution:
            answers = (extract_answer(solution),)
    if not answers:
        row.refuse(_RESULT[0], "is missing; add it, or a solution with a box")
    return Item(question=row.text(*_QUESTION), answers=answers, source=MATH)


def read_source(source: str | Path, reader: Reader) -> Iterator[Item]:
    """Yield the questions of a source, in order.

    :param source: a file, or a data set of the hub: `hub:OWNER/NAME`, optionally with `:CONFIGURATION` and `:SPLIT`.
    :raises ConfigurationError: one line with file, line and field, if it can't be read.
    """
    fields = (*_QUESTION, *_ANSWERS, *_RESULT, *_SOLUTION, "row", "row_idx")
    named = str(source)
    rows = _hub(named) if named.startswith(_HUB) else read_rows(Path(source), fields=fields)
    for row in rows:
        yield reader(row)


def _hub(named: str) -> Iterator[BenchmarkRow]:
    try:
        datasets: Any = import_module("datasets")
    except ImportError:
        raise ConfigurationError(
            f"{named}: datasets is missing; pip install datasets, or name a file"
        ) from None
    name, configuration, split = (*named.removeprefix(_HUB).split(":"), "", "")[:3]
    try:
        rows = datasets.load_dataset(name, configuration or None, split=split or "train")
    except Exception as error:  # the library raises many types: network, names, formats
        raise ConfigurationError(f"{named}: can't be loaded: {str(error).splitlines()[0]}") from None
    for number, fields in enumerate(rows, 1):
        yield BenchmarkRow(f"{named}: row {number}", fields)


TRAIN = Path("train", "combined_train.parquet")
VALIDATION = Path("val", "held_out.parquet")
TEST = Path("val", "aime24.parquet")


class Prepared(Struct, frozen=True, kw_only=True):
    """Result of a preparation."""

    files: dict[str, int]
    """Number of rows by file."""
    sources: dict[str, int]
    """Number of training questions by source."""
    duplicates: int
    """Number of questions left out as duplicates."""
    tested: int
    """Number of questions left out because they are in the test set."""


def prepare(
    output: Path | str,
    *,
    search: Sequence[str | Path] = (),
    math: Sequence[str | Path] = (),
    aime24: str | Path | None = None,
    validation: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Prepared:
    """Mix search and math questions into `train/combined_train.parquet`, with held-out ones in `val/`.

    The same arguments and files give the same bytes. Every question is in exactly one file and has a unique number.
    See docs/train-data.md.

    :param output: output folder.
    :param search: files or data sets of questions with short answers.
    :param math: files or data sets of problems with results.
    :param aime24: problems of AIME 2024 for `val/aime24.parquet`, a test set; never choose a checkpoint by it.
    :param validation: number of held-out questions; `None`: a tenth, at most 200.
    :param limit: maximum number of questions of each source; `None`: all.
    :param seed: determines order, selection and what is held out.
    :raises ConfigurationError: one line with file, line and field, if something can't be read.
    """
    if not search and not math and aime24 is None:
        raise ConfigurationError("search, math: there is nothing to prepare; name files of either")
    test = [] if aime24 is None else [_tested(item) for item in read_source(aime24, read_math)]
    sources = [read_source(source, read_search) for source in search]
    sources += [read_source(source, read_math) for source in math]
    train, held_out, left_out = mix(sources, test, seed=seed, validation=validation, limit=limit)
    if not train and (search or math):
        raise ConfigurationError(
            f"validation: all {len(held_out)} questions would be held out; hold out fewer, or name more files"
        )
    files: dict[str, int] = {}
    first = 0
    for path, items in ((TRAIN, train), (VALIDATION, held_out), (TEST, test)):
        if items:
            write_items(Path(output, path), items, first)
            files[str(path)] = len(items)
            first += len(items)
    return Prepared(
        files=files,
        sources=dict(sorted(Counter(item.source for item in train).items())),
        duplicates=left_out["duplicates"],
        tested=left_out["tested"],
    )


def _tested(item: Item) -> Item:
    return Item(question=item.question, answers=item.answers, source=AIME)


def mix(
    sources: Iterable[Iterable[Item]],
    tested: Iterable[Item],
    *,
    seed: int,
    validation: int | None,
    limit: int | None,
) -> tuple[list[Item], list[Item], Counter[str]]:
    """Mix sources: return training questions, held-out questions, and the number of those left out by reason.

    Questions that differ only in case or spaces are duplicates. The order depends only on the seed.

    :param tested: questions of test sets, which are left out.
    :param seed: determines order, selection and what is held out. Additional rows do not change the relative order of others.
    :param validation: number of held-out questions; `None`: a tenth, at most 200.
    :param limit: maximum number of questions of each source, selected by the seed; `None`: all.
    """
    forbidden = {_key(item) for item in tested}
    seen: set[str] = set()
    left_out: Counter[str] = Counter()
    mixed: list[tuple[bytes, Item]] = []
    for source in sources:
        chosen: list[tuple[bytes, Item]] = []
        for item in source:
            key = _key(item)
            if key in forbidden or key in seen:
                left_out["tested" if key in forbidden else "duplicates"] += 1
                continue
            seen.add(key)
            chosen.append((sha256(f"{seed}\0{key}".encode()).digest(), item))
        chosen.sort(key=lambda entry: entry[0])
        mixed += chosen[:limit]
    mixed.sort(key=lambda entry: entry[0])
    items = [item for _, item in mixed]
    held_out = min(len(items) // 10, 200) if validation is None else max(validation, 0)
    return items[held_out:], items[:held_out], left_out


def _key(item: Item) -> str:
    """Return the question without case and redundant spaces."""
    return " ".join(item.question.casefold().split())


def write_items(path: Path, items: Sequence[Item], first: int) -> None:
    """Write a file atomically.

    :param first: number of the first item; numbers are unique over all files of one preparation.
    :raises ConfigurationError: if pyarrow is missing, or the file can't be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigurationError(missing_extra(f"{path}: Parquet", "data")) from None
    text, number = pyarrow.string(), pyarrow.int64()
    extra = [("ground_truth", text), ("idx", number), ("golden_answers", pyarrow.list_(text))]
    if any(item.source == AIME for item in items):
        extra.append(("original_problem", text))
    schema = pyarrow.schema(
        [
            ("id", number),
            ("question", text),
            ("chain", text),
            ("result", text),
            ("source", text),
            ("extra_info", pyarrow.struct(extra)),
        ]
    )
    rows = [_row(item, place) for place, item in enumerate(items, first)]
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), part)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ConfigurationError(f"{path}: can't be written: {error.strerror or error}") from None


def _row(item: Item, number: int) -> dict[str, Any]:
    result = "; ".join(item.answers)
    extra = {
        "ground_truth": result,
        "idx": number,
        "golden_answers": list(item.answers),
        "original_problem": item.question,
    }
    return {
        "id": number,
        "question": item.question,
        "chain": "",
        "result": result,
        "source": item.source,
        "extra_info": extra,
    }


T = TypeVar("T", bound=Struct)

ChatMessage: TypeAlias = dict[str, Any]
"""A message in the format of chat templates."""

_PAIRS: Final = "synthesized_qa.jsonl"
_TRAJECTORIES: Final = "trajectories.jsonl"
_ATTEMPTS: Final = "attempts.jsonl"


class _PairLine(Struct):
    question: str
    answer: str
    trajectory_id: str


class _CallLine(Struct):
    tool: str
    args: dict[str, Any]


class _FailureLine(Struct):
    kind: str
    message: str


class _ImageLine(Struct):
    file: str = ""


class _NodeLine(Struct):
    observation: str
    intent: str
    action: _CallLine | None
    trainable: bool = True
    failure: _FailureLine | None = None
    images: list[_ImageLine] = field(default_factory=list[_ImageLine])


class _AttemptLine(Struct):
    qa_id: str
    messages: list[ChatMessage]


class _PathLine(Struct):
    trajectory_id: str
    nodes: list[_NodeLine] = field(default_factory=list[_NodeLine])


def read_conversations(
    folder: str | Path, *, max_result_chars: int = 6_000, images: bool = False
) -> list[list[ChatMessage]]:
    """Return the pairs of a synthesis as conversations with tool calls, in the order of their file.

    The user asks, the assistant calls the tools of the path and answers. Messages of actions that failed have
    `"trainable": False`: `lessons_of` trains their repair and no failure. See docs/train-data.md.

    :param folder: output directory of the synthesis.
    :param max_result_chars: maximum characters of a tool result; of a longer one, windows that fit the question are shown.
    :param images: a result with images is a list of parts, the images by their paths; without it, only its text is given.
    :raises ConfigurationError: one line with file and line, if something can't be read.
    """
    root = Path(folder)
    pictures = root if images else None
    paths = {path.trajectory_id: path.nodes for path in _read(root / _TRAJECTORIES, _PathLine)}
    conversations: list[list[ChatMessage]] = []
    for number, pair in enumerate(_read(root / _PAIRS, _PairLine), 1):
        nodes = paths.get(pair.trajectory_id)
        if nodes is None:
            missing = f"trajectory {pair.trajectory_id} is not in {_TRAJECTORIES}; write the files again"
            raise ConfigurationError(f"{root / _PAIRS}:{number}: {missing}")
        conversations.append(
            [
                {"role": "user", "content": pair.question},
                *_steps(nodes, pair.question, max_result_chars, pictures),
                {"role": "assistant", "content": pair.answer},
            ]
        )
    return conversations


def read_attempts(folder: str | Path, *, images: bool = False) -> list[list[ChatMessage]]:
    """Return the right attempts at the pairs of a synthesis as conversations, in the order of their file.

    See docs/train-data.md.

    :param folder: output directory of the synthesis.
    :param images: as for `read_conversations`.
    :raises ConfigurationError: one line with file and line, if something can't be read.
    """
    root = Path(folder)
    found = [attempt.messages for attempt in _read(root / _ATTEMPTS, _AttemptLine)]
    for message in (message for messages in found for message in messages):
        parts = message.get("content")
        if not is_list(parts):
            continue
        shown = [part for part in parts if images or part.get("type") != "image"]
        if images:
            message["content"] = [
                {**part, "path": str(_existing(root, str(part.get("path"))))}
                if part.get("type") == "image"
                else part
                for part in shown
            ]
        else:
            message["content"] = "\n".join(str(part.get("text")) for part in shown) or "(empty)"
    return found


def _existing(root: Path, file: str) -> Path:
    """Return the path of an image.

    :raises ConfigurationError: if it is not a file of the folder.
    """
    path = root / file
    if not path.is_file() or root.resolve() not in path.resolve().parents:
        raise ConfigurationError(
            f"{path}: the image is missing; run the synthesis again, which writes it, or copy it there"
        )
    return path


def _steps(nodes: list[_NodeLine], question: str, limit: int, images: Path | None) -> Iterator[ChatMessage]:
    """Yield the call of each node and its result.

    :param images: folder of the image files, if they are wanted.
    """
    for number, node in enumerate(nodes):
        if node.action is None:
            continue
        key = f"call_{number}"
        call = {"name": node.action.tool, "arguments": node.action.args}
        message = {
            "role": "assistant",
            "content": node.intent,
            "tool_calls": [{"id": key, "type": "function", "function": call}],
        }
        yield message if node.trainable else {**message, "trainable": False}
        result = excerpt(node.observation, limit, search_terms(question, node.intent))
        failed = (
            "" if node.failure is None else f"The call failed: {node.failure.kind}: {node.failure.message}"
        )
        text = "\n".join(filter(None, (result, failed)))
        content: object = text or "(empty)"
        if images is not None and node.images:
            shown = [{"type": "image", "path": str(_existing(images, one.file))} for one in node.images]
            content = [*([{"type": "text", "text": text}] if text else []), *shown]
        yield {"role": "tool", "tool_call_id": key, "name": node.action.tool, "content": content}


def _read(path: Path, kind: type[T]) -> Iterator[T]:
    decoder = msgspec.json.Decoder(kind)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise ConfigurationError(f"{path}:{number}: {error}; name files of a synthesis") from None
    except OSError as error:
        raise ConfigurationError(
            f"{path}: can't be read: {error.strerror}; name the output directory of a synthesis"
        ) from None
