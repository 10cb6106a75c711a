"""Tasks from traces: the results of our rollouts, and OpenTelemetry spans of language models."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from agentflow._decoding import DECODE_ERRORS, JsonError, decode_json, decode_reason
from agentflow._folder_files import read_lines
from agentflow._typeguards import is_list, is_object
from agentflow.errors import ConfigurationError, error_line
from agentflow.readers._reading import Located, read_tasks, refuse_options, take_option
from agentflow.readers._settings import ParsedSource, ReaderSettings
from agentflow.rollouts.benchmarks import BenchmarkRow, read_rows
from agentflow.trace import Task

_RESULTS: Final = "results.jsonl"
_OPTIONS: Final = ("answers", "min_score")
_RIGHT: Final = 0.99
"""Score from which an attempt counts as right."""
_NANOSECONDS: Final = re.compile(r"\d{1,30}")
_INPUTS: Final = ("gen_ai.input.messages", "gen_ai.prompt", "input.value")
_OUTPUTS: Final = ("gen_ai.output.messages", "gen_ai.completion", "output.value")
_FLAT: Final = {
    "gen_ai.input.messages": ("gen_ai.prompt.{}.role", "gen_ai.prompt.{}.content"),
    "gen_ai.output.messages": ("gen_ai.completion.{}.role", "gen_ai.completion.{}.content"),
}
_FLAT_OF_OPENINFERENCE: Final = {
    "gen_ai.input.messages": ("llm.input_messages.{}.message.role", "llm.input_messages.{}.message.content"),
    "gen_ai.output.messages": (
        "llm.output_messages.{}.message.role",
        "llm.output_messages.{}.message.content",
    ),
}


def read_traces(source: ParsedSource, settings: ReaderSettings) -> Iterator[Located]:
    """Iterate over the tasks of a trace: `traces:FOLDER` of a rollout, or `traces:FILE` of spans, one a line.

    `answers=true` uses the recorded answers as references; with `min_score`, only answers with at least that score.

    :raises ConfigurationError: one line with the place, if it can't be read.
    """
    answers = take_option(source, "answers", bool, False)
    min_score = take_option(source, "min_score", float, None)
    refuse_options(source, _OPTIONS)
    if min_score is not None and not answers:
        raise ConfigurationError(
            "traces: min_score chooses among recorded answers; add answers=true, or leave it out"
        )
    path = Path(source.target)
    path = path / _RESULTS if path.is_dir() else path
    rows = read_rows(path, "jsonl" if path.suffix not in {".json", ".jsonl"} else "")
    first = next(rows, None)
    if first is None:
        raise ConfigurationError(f"{path}: is empty; name results of a rollout, or a file of spans")
    if "task_id" in first.fields:
        yield from _of_results(path, _chained(first, rows), answers=answers, min_score=min_score)
    else:
        yield from _of_spans(path, _chained(first, rows), answers=answers, min_score=min_score)


def _chained(first: BenchmarkRow, rows: Iterator[BenchmarkRow]) -> Iterator[BenchmarkRow]:
    yield first
    yield from rows


class _Attempted(Struct):
    place: str
    question: str
    references: tuple[str, ...]
    metadata: dict[str, Any]
    scores: list[float] = field(default_factory=list[float])
    answers: list[tuple[str, float | None]] = field(default_factory=list[tuple[str, float | None]])


def _of_results(
    path: Path, rows: Iterator[BenchmarkRow], *, answers: bool, min_score: float | None
) -> Iterator[Located]:
    """Iterate over the tasks of a rollout's results, each with its measured pass rate."""
    tasks: dict[str, _Attempted] = {}
    for row in rows:
        id, question = row.text("task_id"), row.text("question")
        stored_metadata = row.fields.get("metadata")
        metadata = dict(stored_metadata) if is_object(stored_metadata) else {}
        attempted = tasks.setdefault(id, _Attempted(row.place, question, row.texts("references"), metadata))
        if attempted.question != question:
            raise ConfigurationError(
                f"{row.place}: task_id: {id} has another question than at {attempted.place}"
            )
        score: object = row.fields.get("score")
        scored = float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None
        if scored is not None:
            attempted.scores.append(scored)
        if answer := row.perhaps("answer"):
            attempted.answers.append((answer, scored))
    for id, task in tasks.items():
        measured: dict[str, Any] = {}
        if task.scores:
            right = sum(score >= _RIGHT for score in task.scores)
            measured = {"attempts": len(task.scores), "pass_rate": round(right / len(task.scores), 4)}
        references = task.references or _accepted(task.answers, answers=answers, min_score=min_score)
        metadata = {**task.metadata, **measured}
        yield (
            task.place,
            Task(index=0, id=id, question=task.question, references=references, metadata=metadata),
        )


def _accepted(
    scored_answers: list[tuple[str, float | None]], *, answers: bool, min_score: float | None
) -> tuple[str, ...]:
    if not answers:
        return ()
    fit = [
        answer
        for answer, score in scored_answers
        if min_score is None or (score is not None and score >= min_score)
    ]
    return tuple(dict.fromkeys(fit))


class _Trace(Struct):
    place: str
    begin: int = 0
    end: int = 0
    question: str = ""
    answer: str = ""
    model: str = ""
    score: float | None = None


def _of_spans(
    path: Path, rows: Iterator[BenchmarkRow], *, answers: bool, min_score: float | None
) -> Iterator[Located]:
    """Iterate over the traces of a file of spans: the first request of each, in the order of their first spans."""
    traces: dict[str, _Trace] = {}
    for row in rows:
        for span in _spans(row):
            _add(traces, row, span)
    asked_traces = {id: trace for id, trace in traces.items() if trace.question}
    if not asked_traces:
        raise ConfigurationError(
            f"{path}: no span has the messages of a model call (gen_ai.input.messages); record their contents"
        )
    for id, trace in asked_traces.items():
        metadata = {"source": "traces", "model": trace.model, "answered": trace.answer, "score": trace.score}
        references = _accepted(
            [(trace.answer, trace.score)] if trace.answer else [], answers=answers, min_score=min_score
        )
        yield (
            trace.place,
            Task(
                index=0,
                id=id,
                question=trace.question,
                references=references,
                metadata={name: value for name, value in metadata.items() if value not in (None, "")},
            ),
        )


def _spans(row: BenchmarkRow) -> Iterator[Mapping[str, Any]]:
    """Iterate over the spans of a line: a span, or a batch in the OTLP format."""
    batches: object = row.fields.get("resourceSpans")
    if not is_list(batches):
        yield row.fields
        return
    for batch in batches:
        for scope in _objects(batch, "scopeSpans"):
            yield from _objects(scope, "spans")


def _objects(holder: object, name: str) -> Iterator[dict[str, Any]]:
    values: object = holder.get(name) if is_object(holder) else None
    for value in values if is_list(values) else []:
        if is_object(value):
            yield value


def _add(traces: dict[str, _Trace], row: BenchmarkRow, span: Mapping[str, Any]) -> None:
    context: object = span.get("context")
    id = (
        span.get("traceId")
        or span.get("trace_id")
        or (context.get("trace_id") if is_object(context) else None)
    )
    if not isinstance(id, str):
        row.refuse("traceId", "is missing; write one span a line, as OpenTelemetry exports it")
    attributes = _attributes(span.get("attributes"))
    events = [_attributes(event.get("attributes")) for event in _objects(span, "events")]
    for event in events:
        attributes = {**event, **attributes}
    trace = traces.setdefault(id, _Trace(row.place))
    begin, end = _time(span, "start"), _time(span, "end")
    question = _message_text(attributes, "gen_ai.input.messages", _INPUTS, "user")
    answer = _message_text(attributes, "gen_ai.output.messages", _OUTPUTS, "assistant")
    if question and (not trace.question or begin < trace.begin):
        trace.question, trace.begin = question, begin
    if answer and (not trace.answer or end >= trace.end):
        trace.answer, trace.end = answer, end
    trace.model = trace.model or str(attributes.get("gen_ai.request.model") or "")
    score = attributes.get("gen_ai.evaluation.score.value")
    if isinstance(score, int | float) and not isinstance(score, bool):
        trace.score = float(score)


def _attributes(otlp: object) -> dict[str, Any]:
    """Return attributes by name, from an object or from the list of the OTLP format."""
    if is_object(otlp):
        return otlp
    attributes: dict[str, Any] = {}
    for entry in otlp if is_list(otlp) else []:
        value: object = entry.get("value") if is_object(entry) else None
        if is_object(entry) and is_object(value) and value:
            attributes[str(entry.get("key"))] = next(iter(value.values()))
    return attributes


def _time(span: Mapping[str, Any], which: str) -> int:
    for name in (f"{which}TimeUnixNano", f"{which}_time_unix_nano"):
        value: object = span.get(name)
        if isinstance(value, int) or (isinstance(value, str) and _NANOSECONDS.fullmatch(value)):
            return int(value)
    # Dates of one exporter have one format, so that their digits are in order.
    digits = "".join(letter for letter in str(span.get(f"{which}_time") or "") if letter.isdecimal())
    return int(digits[:20].ljust(20, "0")) if digits else 0


def _message_text(attributes: Mapping[str, Any], name: str, whole: tuple[str, ...], role: str) -> str:
    """Return the first request or the last answer of a span."""
    messages: list[tuple[str, str]] = []
    for key in whole:
        if key in attributes:
            messages = _messages(attributes[key], role)
            break
    else:
        for flat in (_FLAT, _FLAT_OF_OPENINFERENCE):
            roles, texts = flat[name]
            number = 0
            while texts.format(number) in attributes or roles.format(number) in attributes:
                content = str(attributes.get(texts.format(number)) or "")
                messages.append((str(attributes.get(roles.format(number), role)), content))
                number += 1
    texts_of_role = [text.strip() for author, text in messages if author == role and text.strip()]
    if not texts_of_role:
        return ""
    return texts_of_role[0] if role == "user" else texts_of_role[-1]


def _messages(stored: object, role: str) -> list[tuple[str, str]]:
    """Return the author and the text of each message, from JSON or a text."""
    read = stored
    if isinstance(stored, str):
        try:
            read = decode_json(stored)
        except JsonError:
            return [(role, stored)]
    if is_object(read) and is_list(read.get("messages")):
        read = read["messages"]
    if not is_list(read):
        return [(role, stored)] if isinstance(stored, str) else []
    return [(str(message.get("role", role)), _text(message)) for message in read if is_object(message)]


def _text(message: Mapping[str, Any]) -> str:
    content: object = message.get("parts", message.get("content"))
    if isinstance(content, str):
        return content
    pieces = [piece for piece in (content if is_list(content) else []) if is_object(piece)]
    texts = [
        piece.get("content", piece.get("text")) for piece in pieces if piece.get("type", "text") == "text"
    ]
    return "\n".join(text for text in texts if isinstance(text, str))


class _StoredSample(Struct):
    reward: float
    details: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def score(self) -> float:
        """Score of the answer: the reward, unless that has other parts."""
        return self.details.get("answer_score", self.reward)


class _StoredGroup(Struct):
    name: str = ""
    samples: list[_StoredSample] = field(default_factory=list[_StoredSample])


def stored_rates(path: Path) -> dict[str, float]:
    """Return the share of right attempts by task: in results of a rollout, or in the output folder of a training.

    :raises ConfigurationError: one line, if they can't be read.
    """
    steps = sorted((path / "rollouts").glob("step_*.jsonl.gz"))
    if not steps:
        pass_rates = {task.id: task.metadata.get("pass_rate") for task in read_tasks(f"traces:{path}")}
        return {id: rate for id, rate in pass_rates.items() if isinstance(rate, float)}
    decoder = msgspec.json.Decoder(_StoredGroup)
    scores: dict[str, list[float]] = {}
    for step in steps:
        try:
            groups = [decoder.decode(line) for line in read_lines(step, path)]
        except OSError as error:
            raise ConfigurationError(f"{step}: can't be read: {error_line(error)}") from None
        except DECODE_ERRORS as error:
            raise ConfigurationError(f"{step}: can't be read: {decode_reason(error)}") from None
        for group in groups:
            # A group is a task and the number of its draw.
            task, drawn, _ = group.name.rpartition("@")
            if drawn:
                scores.setdefault(task, []).extend(sample.score for sample in group.samples)
    return {
        task: sum(score >= _RIGHT for score in task_scores) / len(task_scores)
        for task, task_scores in scores.items()
        if task_scores
    }
