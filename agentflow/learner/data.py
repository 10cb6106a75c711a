# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyarrow is partially typed.
"""Training data: convert published data sets to parquet files that training and rollouts read. See docs/train-data.md."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._typeguards import is_list
from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.rollouts.benchmarks import BenchmarkRow, read_rows, references
from agentflow.scoring import extract_answer
from agentflow.trace import Action, ChatBuilder, ChatMessage, Failure

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

_PAIRS: Final = "synthesized_qa.jsonl"
_TRAJECTORIES: Final = "trajectories.jsonl"
_ATTEMPTS: Final = "attempts.jsonl"


class _SpanLine(Struct):
    region: object = None


class _StepLine(Struct):
    citations: list[_SpanLine] = field(default_factory=list[_SpanLine])


class _PairLine(Struct):
    question: str
    answer: str
    trajectory_id: str
    reasoning_steps: list[_StepLine] = field(default_factory=list[_StepLine])

    @property
    def is_text(self) -> bool:
        """Texts state all that it rests on."""
        steps = [step.citations for step in self.reasoning_steps if step.citations]
        return all(any(span.region is None for span in citations) for citations in steps)


class _CallLine(Struct):
    tool: str
    args: dict[str, Any]


class _ImageLine(Struct):
    file: str = ""


class _AttemptLine(Struct):
    qa_id: str
    messages: list[ChatMessage]


class _NodeLine(Struct):
    observation: str
    intent: str
    action: _CallLine | None
    trainable: bool = True
    failure: Failure | None = None
    images: list[_ImageLine] = field(default_factory=list[_ImageLine])
    fixed: list[str] | None = None


class _PathLine(Struct):
    trajectory_id: str
    nodes: list[_NodeLine] = field(default_factory=list[_NodeLine])
    seed_data: str = ""
    task_id: str | None = None
    answer: str = ""
    score: float | dict[str, Any] | None = None

    def is_right(self, min_score: float) -> bool:
        """The episode has an answer with at least that score."""
        return bool(self.answer) and isinstance(self.score, float) and self.score >= min_score


def read_conversations(
    folder: str | Path, *, max_result_chars: int = 6_000, images: bool = False, min_score: float = 1.0
) -> list[list[ChatMessage]]:
    """Return the pairs of a synthesis, or the right episodes of a rollout, as conversations in the order of their file.

    The user asks, the assistant calls the tools of the path and answers. Messages that no model should learn to write have
    `"trainable": False`: `lessons_of` trains the repair of a failure and no failure. See docs/train-data.md.

    :param folder: output directory of the synthesis or the rollout.
    :param max_result_chars: maximum characters of a tool result; of a longer one, the windows that a single agent is shown.
    :param images: a result with images is a list of parts, the images by their paths; without it, only its text is given,
        and what rests on an image alone is not trained.
    :param min_score: minimum score of an episode of a rollout.
    :raises ConfigurationError: one line with file and line, if something can't be read, or if no episode has a score.
    """
    root = Path(folder)
    lines = list(_read(root / _TRAJECTORIES, _PathLine))
    if not (root / _PAIRS).exists() and any(path.task_id is not None for path in lines):
        if all(path.score is None for path in lines):
            problem = "no episode has a score; give the tasks answers and set evaluate_results"
            raise ConfigurationError(f"{root / _TRAJECTORIES}: {problem}")
        right = [path for path in lines if path.is_right(min_score)]
        chats = [_chat_of(path, path.seed_data, path.answer, max_result_chars) for path in right]
        return [_with_images(root, chat, wanted=images) for chat in chats]
    paths = {path.trajectory_id: path for path in lines}
    conversations: list[list[ChatMessage]] = []
    for number, pair in enumerate(_read(root / _PAIRS, _PairLine), 1):
        path = paths.get(pair.trajectory_id)
        if path is None:
            missing = f"trajectory {pair.trajectory_id} is not in {_TRAJECTORIES}; write the files again"
            raise ConfigurationError(f"{root / _PAIRS}:{number}: {missing}")
        shown = images or pair.is_text
        chat = _chat_of(path, pair.question, pair.answer, max_result_chars, shown=shown)
        conversations.append(_with_images(root, chat, wanted=images))
    return conversations


def read_attempts(folder: str | Path, *, images: bool = False) -> list[list[ChatMessage]]:
    """Return the right attempts at the pairs of a synthesis as conversations, in the order of their file.

    See docs/train-data.md.

    :param folder: output directory of the synthesis.
    :param images: as for `read_conversations`.
    :raises ConfigurationError: one line with file and line, if something can't be read.
    """
    root = Path(folder)
    return [
        _with_images(root, attempt.messages, wanted=images)
        for attempt in _read(root / _ATTEMPTS, _AttemptLine)
    ]


def _chat_of(
    path: _PathLine, question: str, answer: str, limit: int, *, shown: bool = True
) -> list[ChatMessage]:
    """Return a path with a question and its answer.

    :param shown: the conversation shows what the answer rests on.
    """
    from agentflow.team import result_text  # imports the sandbox

    chat = ChatBuilder(question)
    for node in path.nodes:
        if node.action is None:
            continue
        fixed = frozenset(node.fixed or ())
        written = {name: value for name, value in node.action.args.items() if name not in fixed}
        action = Action(node.action.tool, written)
        # A rollout's results contain the reason of a failure already.
        failure = node.failure if path.task_id is None else None
        chat.call(
            action.tool,
            written,
            node.intent,
            result_text(node.observation, limit, question, action, node.intent, failure=failure),
            images=[image.file for image in node.images],
            failed=not node.trainable,
        )
    chat.answer(answer, trainable=shown)
    return chat.messages


def _with_images(root: Path, messages: list[ChatMessage], *, wanted: bool) -> list[ChatMessage]:
    """Return a conversation with the paths of its images, or without images and with all masked that rests on one alone."""
    shown: list[ChatMessage] = []
    hidden = False
    for message in messages:
        parts = message.get("content")
        if hidden and message.get("role") == "assistant":
            shown.append({**message, "trainable": False})
        elif is_list(parts):
            text = "\n".join(str(part.get("text")) for part in parts if part.get("type") != "image")
            content = [_located(root, part) for part in parts] if wanted else text or "(empty)"
            shown.append({**message, "content": content})
            hidden = hidden or not (wanted or text)
        else:
            shown.append(message)
    return shown


def _located(root: Path, part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a message, an image with the path of its file.

    :raises ConfigurationError: if it is not a file of the folder.
    """
    if part.get("type") != "image":
        return part
    path = root / str(part.get("path"))
    if not path.is_file() or root.resolve() not in path.resolve().parents:
        raise ConfigurationError(
            f"{path}: the image is missing; run the synthesis again, which writes it, or copy it there"
        )
    return {**part, "path": str(path)}


def _read(path: Path, kind: type[T]) -> Iterator[T]:
    decoder = msgspec.json.Decoder(kind)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield decoder.decode(line)
                except DECODE_ERRORS as error:
                    raise ConfigurationError(
                        f"{path}:{number}: {decode_reason(error)}; name files of a synthesis"
                    ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{path}: can't be read: {error.strerror}; name the output directory of a synthesis"
        ) from None
