"""Benchmarks: ten by name, others described by a file; and tasks of any file."""

import difflib
import re
from collections.abc import Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import structs
from pydantic import Field, ValidationError

from agentflow._decoding import DECODE_ERRORS, JsonError, decode_json, decode_reason
from agentflow._typeguards import is_list, is_object
from agentflow.errors import ConfigurationError
from agentflow.rollouts.benchmarks import _readers as readers
from agentflow.rollouts.benchmarks._benchmark import Benchmark, Category, choose, described
from agentflow.rollouts.benchmarks._readers import references
from agentflow.rollouts.benchmarks._rows import BenchmarkRow
from agentflow.rollouts.benchmarks._sources import HUB, find_data
from agentflow.settings import Section, parse_json, parse_yaml
from agentflow.trace import Task

_SAMPLES: Final = Path(__file__).parent / "samples"


_OPEN: Final = "$question\n\nAnswer with a name, a date, a number or a few words."


_EXACT: Final = (
    "$question\n\nAnswer with a number, as few words as possible, or a list of these, separated by commas. Write numbers"
    " in digits, without separators, and without units unless the question asks for them; write no articles and no"
    " abbreviations."
)


_WHOLE: Final = "$question\n\nThe answer is a whole number from 0 to 999."


_VALUE: Final = "$question\n\nAnswer with the exact value."


_GAME: Final = (
    "Use the four numbers $numbers, each exactly once, with + - * / and brackets, so that the result is 24."
    "\n\nAnswer with one expression, as in (1 + 2 + 3) * 4."
)


_CHOICE: Final = "$question\n\n$choices\n\nAnswer with the letter of the right option."


_TEN: Final = (
    Benchmark(
        name="bamboogle", title="Bamboogle", category="search", read=readers.read_open, prompt=_OPEN,
        metric="exact_match", judged=True, limit=125, file=_SAMPLES / "bamboogle.csv",
    ),
    Benchmark(
        name="2wiki", title="2WikiMultihopQA", category="search", read=readers.read_open, prompt=_OPEN,
        metric="exact_match", judged=True, limit=100, file=_SAMPLES / "2wiki.json",
    ),
    Benchmark(
        name="hotpotqa", title="HotpotQA", category="search", read=readers.read_open, prompt=_OPEN,
        metric="exact_match", judged=True, limit=100, file=_SAMPLES / "hotpotqa.json",
    ),
    Benchmark(
        name="musique", title="MuSiQue", category="search", read=readers.read_musique, prompt=_OPEN,
        metric="exact_match", judged=True, limit=100, file=_SAMPLES / "musique.jsonl",
    ),
    Benchmark(
        name="gaia", title="GAIA", category="agentic", read=readers.read_gaia, prompt=_EXACT,
        metric="gaia", judged=True, limit=127, file=_SAMPLES / "gaia.jsonl",
    ),
    Benchmark(
        name="aime24", title="AIME 2024", category="math", read=readers.read_aime, prompt=_WHOLE,
        metric="math", abstain=False, limit=30, file=_SAMPLES / "aime24.jsonl",
    ),
    Benchmark(
        name="amc23", title="AMC 2023", category="math", read=readers.read_amc, prompt=_VALUE,
        metric="math", abstain=False, limit=40, file=_SAMPLES / "amc23.jsonl",
    ),
    Benchmark(
        name="gameof24", title="Game of 24", category="math", read=readers.read_game, prompt=_GAME,
        metric="game24", abstain=False, limit=100, skip=900, file=_SAMPLES / "gameof24.csv",
    ),
    Benchmark(
        name="gpqa", title="GPQA", category="science", read=readers.read_gpqa, prompt=_CHOICE,
        metric="multiple_choice", abstain=False, shuffle=True, limit=100, file=_SAMPLES / "gpqa.csv",
    ),
    Benchmark(
        name="medqa", title="MedQA", category="science", read=readers.read_medqa, prompt=_CHOICE,
        metric="multiple_choice", abstain=False, limit=100, file=_SAMPLES / "medqa.jsonl",
    ),
)  # fmt: skip


_BY_NAME: Final = {benchmark.name: benchmark for benchmark in _TEN}


_ALIASES: Final = {
    "2wikimultihopqa": "2wiki",
    "2wikimultihop": "2wiki",
    "hotpot": "hotpotqa",
    "aime": "aime24",
    "aime2024": "aime24",
    "amc": "amc23",
    "amc2023": "amc23",
    "game24": "gameof24",
    "gpqadiamond": "gpqa",
    "medqausmle": "medqa",
}


def benchmark_names() -> list[str]:
    """Return the names of the ten benchmarks, in the order of their tables. See docs/benchmarks.md."""
    return list(_BY_NAME)


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name in any spelling, or the one that a YAML or JSON file describes. See docs/benchmarks.md.

    :raises ConfigurationError: one line, if there is none, or the file can't be used.
    """
    if Path(name).suffix.lower() in {".yaml", ".yml", ".json"}:
        return read_description(Path(name))
    plain = re.sub(r"[\W_]", "", name).lower()
    benchmark = _BY_NAME.get(_ALIASES.get(plain, plain))
    if benchmark is None:
        near = difflib.get_close_matches(plain, [*_BY_NAME, *_ALIASES], n=1)
        meant = (
            f"did you mean {_ALIASES.get(near[0], near[0])}?"
            if near
            else f"write one of {', '.join(_BY_NAME)}"
        )
        raise ConfigurationError(f"benchmark {name}: unknown; {meant}")
    return benchmark


def load_tasks(
    source: str | PathLike[str],
    *,
    benchmark: str | None = None,
    limit: int | None = None,
    ids: Sequence[str] | None = None,
) -> list[Task]:
    """Load the tasks of a file or of a benchmark. See docs/benchmarks.md.

    A file (JSONL, JSON, CSV, TSV, parquet) has one task per row: `id` or `task_id`; `question`, `query`, `instruction` or `input`;
    `answer`, `ground_truth` or `expected`, one or a list; `kwargs`. Other fields become metadata.

    :param source: a file of tasks, `hub:OWNER/NAME`, a benchmark's name (its bundled samples), or a YAML file that describes a
        benchmark.
    :param benchmark: read the file in the formats of this benchmark, and use its prompt.
    :param limit: maximum number of tasks, from the first; `None`: the benchmark's default, or all.
    :param ids: load only these tasks.
    :raises ConfigurationError: one line with line and field, if they can't be read.
    """
    if str(source).startswith(HUB):
        source = find_data(str(source), benchmark or "") or source
    path = Path(source)
    if benchmark is not None:
        return find_benchmark(benchmark).load(path, limit=limit, ids=ids)
    if path.suffix.lower() in {".yaml", ".yml"} or (
        isinstance(source, str) and not path.suffix and not path.exists()
    ):
        return find_benchmark(str(source)).load(limit=limit, ids=ids)
    if path.is_dir():
        raise ConfigurationError(f"{path}: is a directory; name a file of tasks in it")
    tasks = Benchmark(
        name="task", category="own", read=partial(read_plain, fields=Fields()), metric="exact_match"
    ).load(path)
    return choose(tasks, limit, ids, str(path))


_ID: Final = ("id", "task_id")


_QUESTION: Final = ("question", "query", "instruction", "input")


_ANSWER: Final = ("answer", "ground_truth", "expected", "references", "answers")


_TASK_FIELDS: Final = frozenset({"id", "question", "references"})
"""Fields of a task that its metadata can't hold, too."""


Name = Annotated[str, Field(min_length=1)]


class Fields(Section):
    """Field names of a task in a file; a name that is not set has its usual aliases."""

    id: Name | None = None
    """`id`, `task_id`."""
    question: Name | None = None
    """`question`, `query`, `instruction`, `input`."""
    answer: Name | None = None
    """`answer`, `ground_truth`, `expected`, `references`, `answers`."""
    options: Name | None = None
    """`options` of a multiple-choice question, by letter or as a list."""
    kwargs: Name | None = None
    """`kwargs`: tool arguments that the task fixes."""


class BenchmarkDescription(Section):
    """Description of a benchmark in its file."""

    name: Name
    """Name."""
    path: Name
    """File of its tasks, relative to the description."""
    format: Annotated[str, Field(pattern="^(jsonl|json|csv|tsv|parquet)$")] | None = None
    """Format; `None`: by the extension."""
    fields: Fields = Fields()
    """Names of its fields."""
    prompt: Annotated[str, Field(pattern=r"\$\{?(question|choices|numbers)\b")] = "$question"
    """Prompt template with `$question`, `$choices` and `$numbers`."""
    metric: Name = "exact_match"
    """Name of the metric."""
    metric_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of the metric."""
    judged: bool = False
    """If a judge model is set, it decides about answers that the metric rejects."""
    abstain: bool = True
    """The answer may be left empty instead of a blind guess."""
    shuffle: bool = False
    """Each sample of a task after the first has its options in another order."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Default number of tasks."""
    category: Category = "own"
    """Kind of task."""


def read_description(path: Path) -> Benchmark:
    """Load a benchmark from a YAML or JSON description.

    :raises ConfigurationError: one line with file and key, if it can't be used.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        parse = parse_json if path.suffix.lower() == ".json" else parse_yaml
        description = BenchmarkDescription.model_validate(parse(text, str(path)))
    except ConfigurationError:
        raise
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: no such file; name a benchmark, or a file that describes one"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "it"
        raise ConfigurationError(f"{path}: {key}: {first['msg']}") from None
    except DECODE_ERRORS as error:
        raise ConfigurationError(f"{path}: can't be read: {decode_reason(error)}") from None
    return Benchmark(
        name=description.name,
        category=description.category,
        read=partial(read_plain, fields=description.fields),
        prompt=description.prompt,
        metric=description.metric,
        options=description.metric_options,
        judged=description.judged,
        abstain=description.abstain,
        shuffle=description.shuffle,
        limit=description.limit,
        file=path.parent / description.path,
        form=description.format or "",
    )


_VERIFIED: Final = frozenset({"setup", "gold", "verifier", "wrong"})
"""Fields of a verified task that a rollout keeps together."""


def read_plain(row: BenchmarkRow, fields: "Fields | None" = None) -> Task:
    """Convert a row of a file of tasks; fields that are not known become metadata. See docs/benchmarks.md.

    :param fields: names of its fields; `None`: the usual ones.
    :raises ConfigurationError: with line and field, if something is missing or has the wrong type.
    """
    row, fields = _prepared(row), fields or Fields()
    id = (fields.id,) if fields.id else _ID
    question = (fields.question,) if fields.question else _QUESTION
    answer = (fields.answer,) if fields.answer else _ANSWER
    options, kwargs = fields.options or "options", fields.kwargs or "kwargs"
    taken = {*id, *question, *answer, options, kwargs, "metadata"}
    value = row.fields.get("metadata")
    others = {
        name: value for name, value in row.fields.items() if name not in taken and value not in (None, "")
    }
    metadata = value if is_object(value) else {}
    metadata = others | {name: value for name, value in metadata.items() if name not in _TASK_FIELDS}
    if others.keys() >= _VERIFIED:
        # Its verifier needs it unchanged; the attempts that failed are not needed.
        shown = {name: others[name] for name in others if name not in _VERIFIED}
        whole = {
            name: value for name, value in row.fields.items() if name not in {"answer", "kwargs", "wrong"}
        }
        metadata = {**shown, "task": whole}
    if row.fields.get(options) not in (None, "", []):
        metadata["options"] = _options(row, options)
    task = described(row.text(*question), references(row, *answer), id=row.perhaps(*id), **metadata)
    return structs.replace(task, kwargs=_kwargs(row, kwargs))


def _prepared(row: BenchmarkRow) -> BenchmarkRow:
    """Return a row of prepared training data with its answers under the usual name, and any other row unchanged.

    Such rows have `id, question, chain, result, source, extra_info`; without a list, several answers of a search
    question are one text separated by semicolons.
    """
    extra: object = row.fields.get("extra_info")
    if not is_object(extra) or "ground_truth" not in extra or row.find(*_ANSWER)[1] is not None:
        return row
    answers: object = extra.get("golden_answers") or extra["ground_truth"]
    if isinstance(answers, str) and row.fields.get("source") == "nq":
        answers = answers.split("; ")
    kept = {name: row.fields[name] for name in row.fields if name not in {"chain", "result", "extra_info"}}
    return BenchmarkRow(row.place, {**kept, "answer": answers})


def _kwargs(row: BenchmarkRow, name: str) -> dict[str, Any]:
    value: object = row.fields.get(name)
    # Cells of tables contain only text.
    if isinstance(value, str) and value.strip():
        try:
            value = decode_json(value)
        except JsonError as error:
            row.refuse(name, f"{error}; write an object of names with values")
    if value in (None, ""):
        return {}
    if not is_object(value):
        row.refuse(name, "is not an object; write names with values, or remove it")
    return value


def _options(row: BenchmarkRow, name: str) -> dict[str, str]:
    value: object = row.fields.get(name)
    if isinstance(value, str):
        try:
            value = decode_json(value)
        except JsonError as error:
            row.refuse(name, f"{error}; write an object of letters with texts, or a list")
    if is_list(value):
        value = {chr(ord("A") + place): text for place, text in enumerate(value[:26])}
    if not is_object(value):
        row.refuse(name, "is neither an object of letters with texts nor a list")
    return {str(letter): row.plain(name, text) for letter, text in value.items()}
