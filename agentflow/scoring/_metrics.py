"""Metrics by name: rules on texts, similarity of vectors, documents, judges, custom functions."""

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache, partial
from math import sqrt
from typing import Any, Final, get_type_hints

from anyio import to_thread
from msgspec import Struct, structs
from pydantic import TypeAdapter, ValidationError

from agentflow.errors import ConfigurationError, ErrorKind, ModelFailure, RunStopped
from agentflow.models import Call, Model, Sampling, ask_model
from agentflow.scoring._answers import extract_answer, marked_answer, short_answer, tidy
from agentflow.scoring._choice import multiple_choice
from agentflow.scoring._expressions import Apply, Expression, Number, Symbol, parse
from agentflow.scoring._judge import Judge, judge_messages, schema_of
from agentflow.scoring._mathematics import judge_math, math_match
from agentflow.scoring._scored import VERIFIER, Embed, Metric, Scored, VerifierMetric
from agentflow.scoring._text_rules import (
    anls,
    contains_answer,
    document_score,
    exact_match,
    f1_score,
    gaia_match,
    is_unanswerable,
    likeness,
    numeric_match,
    typed_match,
)
from agentflow.settings import import_object
from agentflow.text import without_reasoning
from agentflow.trace import Failure, Reply, Task

_TIMES: Final = re.compile(r"(?<=[\d)])\s*[xX]\s*(?=[\d(])")
_BREAK: Final = re.compile(r"\s+(?:or|and)\s+|[\n,;]")
_RESULT: Final = re.compile(r"\s*=\s*(.*)$")
_MARKS: Final = re.compile(r"\\(?:left|right)(?![a-z])|\\[,;:! ()\[\]]|[$`]")
_BESIDE: Final = re.compile(r"\d\s+\d")


def game24(
    prediction: str, references: Sequence[str] = (), *, numbers: Sequence[int] = (), target: int = 24
) -> float:
    """Return 1 if each expression uses every number exactly once, with + - * / and brackets, and equals the target.

    :param references: the numbers, or a solution from which they are read, unless `numbers` is given.
    :param numbers: the numbers to use.
    :param target: the value to reach.
    """
    wanted = sorted(map(Fraction, numbers)) or _reference_numbers(references)
    pieces = _pieces(extract_answer(prediction))
    return float(bool(wanted) and bool(pieces) and all(_solves(piece, wanted, target) for piece in pieces))


def _reference_numbers(references: Sequence[str]) -> list[Fraction]:
    first = _RESULT.sub("", _pieces(references[0])[0]) if references and _pieces(references[0]) else ""
    solution = parse(first)
    if solution is not None and _numbers_of(solution) and not _BESIDE.search(first):
        return sorted(_numbers_of(solution))
    return sorted(Fraction(digits) for digits in re.findall(r"\d{1,9}", references[0] if references else ""))


def _pieces(text: str) -> list[str]:
    plain = _TIMES.sub("*", _MARKS.sub("", tidy(text)))
    pieces = [piece.strip().rstrip(".") for piece in _BREAK.split(plain)]
    return [piece for piece in pieces if piece]


def _solves(piece: str, wanted: list[Fraction], target: int) -> bool:
    result = _RESULT.search(piece)
    if result and result[1].strip() != str(target):
        return False
    written = _RESULT.sub("", piece)
    read = parse(written)
    # Two adjacent numbers are neither a sum nor a longer number.
    if read is None or _BESIDE.search(written) or sorted(_numbers_of(read)) != wanted:
        return False
    try:
        return _value(read) == target
    except ArithmeticError:
        return False


def _numbers_of(expression: Expression) -> list[Fraction]:
    match expression:
        case Number(value):
            return [value]
        case Apply(_, arguments):
            return [number for argument in arguments for number in _numbers_of(argument)]
        case Symbol():
            return []


def _value(expression: Expression) -> Fraction:
    """Return the exact value.

    :raises ArithmeticError: on division by zero or an operation that the game does not allow.
    """
    match expression:
        case Number(value):
            return value
        case Apply("neg", (first_argument,)):
            return -_value(first_argument)
        case Apply("+" | "-" | "*" | "/" as sign, (first_argument, second_argument)):
            left, right = _value(first_argument), _value(second_argument)
            return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[sign](
                right
            )
        case _:
            raise ArithmeticError("not of this game")


Rule = Callable[..., float]
"""Function of a prediction and its references; keyword parameters are its options."""

_KEEPS_PROSE: Final = frozenset({"contains_answer", "game24", "multiple_choice", "math"})
"""Rules that extract the answer themselves."""
_EXTRACTED: Final = schema_of(answer="string")
_RULES: Final[Mapping[str, Rule]] = {
    "exact_match": exact_match,
    "f1_score": f1_score,
    "contains_answer": contains_answer,
    "numeric_match": numeric_match,
    "typed_match": typed_match,
    "similarity": likeness,
    "math": math_match,
    "game24": game24,
    "multiple_choice": multiple_choice,
    "anls": anls,
    "gaia": gaia_match,
}
_JUDGES: Final[Mapping[str, Callable[..., Metric]]] = {
    "llm_judgement": partial(Judge, "llm_judgement"),
    "DocBench_LasJ": partial(Judge, "DocBench_LasJ", evidence=True),
    "MMLongBench-Doc_LasJ": partial(Judge, "MMLongBench-Doc_LasJ", evidence=True),
}
_DOCUMENTS: Final = {"MMLongBench-Doc_Acc": False, "MMLongBench-Doc_F1": True}


BY_SOURCE: Final = "by_source"
"""Metric that is chosen by the `source` of each task."""
_SOURCES: Final = {
    "exact_match": "nq naturalquestions triviaqa popqa webquestions hotpotqa 2wiki 2wikimultihopqa musique bamboogle",
    "math": "mathhard math math500 mathlighteval deepmath deepmath103k deepscaler dapomath mathdapo gsm8k aime aime24 aime2024"
    " aime25 aime2025 amc amc23 amc2023 minervamath olympiadbench",
    "multiple_choice": "gpqa gpqadiamond medqa medqausmle mmlu mmlupro",
    "gaia": "gaia",
    "game24": "gameof24 game24",
}
_METRIC_OF_SOURCE: Final = {name: metric for metric, names in _SOURCES.items() for name in names.split()}


def metric_of_source(source: object) -> str | None:
    """Return the usual metric of a data source, by its name in any spelling; `None` if it is not known.

    >>> metric_of_source("openai/gsm8k")
    'math'
    """
    plain = re.sub(r"[\W_]", "", source.rpartition("/")[2]).lower() if isinstance(source, str) else ""
    return _METRIC_OF_SOURCE.get(plain)


def _by_source(prediction: str, references: Sequence[str], *, source: str = "") -> float:
    """Apply the usual rule of a source."""
    return _RULES[metric_of_source(source) or "exact_match"](prediction, references)


def metric_names() -> list[str]:
    """Return the names of all metrics of answers.

    See docs/scoring.md for each of them.
    """
    return [*_RULES, *_JUDGES, *_DOCUMENTS, BY_SOURCE]


def needs_judge(name: str, options: Mapping[str, Any] | None = None) -> bool:
    """Return whether a metric calls a model.

    >>> needs_judge("exact_match")
    False
    """
    return name in _JUDGES or (
        name == BY_SOURCE and any(metric in _JUDGES for metric in (options or {}).values())
    )


def make_metric(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    judge: Model | None = None,
    embed: Embed | None = None,
) -> Metric:
    """Return the metric of a name, or a custom function at `module:function`.

    See docs/scoring.md for examples.

    :param options: options of the metric, such as `tolerance` or `votes`.
    :param judge: model for metrics that need one; document metrics extract answers with it.
    :param embed: returns vectors of texts, for `similarity`.
    :raises ConfigurationError: one line, if the metric or option is unknown, or something it needs is missing.
    """
    metric_options = dict(options or {})
    if name == BY_SOURCE:
        return SourceMetric(metric_options, judge)
    if name == VERIFIER:
        _refuse_unknown(name, metric_options, ())
        return VerifierMetric()
    if name in _JUDGES:
        if judge is None:
            raise ConfigurationError(f"metric {name}: a model judges; name one as the evaluator's model")
        typed = _typed(name, _judge_options, metric_options)
        first = str(typed.pop("rule", "exact_match"))
        return _JUDGES[name](judge, rule=_rule(first) if first else None, **typed)
    if name == "similarity" and embed is not None:
        _refuse_unknown(name, metric_options, ())
        return SimilarityMetric(embed)
    if ":" in name or name in _DOCUMENTS:
        _refuse_unknown(name, metric_options, ())
        return (
            OwnMetric(name, _custom_metric(name))
            if ":" in name
            else DocumentMetric(name, judge, f1=_DOCUMENTS[name])
        )
    rule = _rule(name)
    metric = MathMetric if rule is math_match else RuleMetric
    return metric(name, rule, _typed(name, rule, metric_options))


def score(metric: str, prediction: str, references: str | Sequence[str], **options: object) -> float:
    """Score a prediction by a rule.

    >>> score("exact_match", "The Gull", "gull")
    1.0

    :param references: a right answer, or several.
    :param options: options of the metric, such as `tolerance`, `options` of a choice or `numbers` of a game.
    :raises ConfigurationError: one line, if the rule or option is unknown.
    """
    prediction = without_reasoning(prediction)
    right = (references,) if isinstance(references, str) else tuple(references)
    if metric == BY_SOURCE:
        return _by_source(prediction, right, **_typed(metric, _by_source, options))
    if metric in _DOCUMENTS:
        return document_score(prediction, right, **_typed(metric, document_score, options))
    rule = _rule(metric)
    return rule(prediction, right, **_typed(metric, rule, options))


def _rule(name: str) -> Rule:
    if name == VERIFIER:
        raise ConfigurationError(
            f"metric {name}: it scores episodes of verified tasks, no texts; use a rollout"
        )
    if name in _JUDGES:
        raise ConfigurationError(f"metric {name}: a model judges, no rule; use make_metric(…, judge=…)")
    if name not in _RULES:
        near = difflib.get_close_matches(name, metric_names(), n=1, cutoff=0.4)
        meant = f"did you mean {near[0]}?" if near else f"write one of {', '.join(metric_names())}"
        raise ConfigurationError(f"metric {name}: there is none of that name; {meant}")
    return _RULES[name]


def _judge_options(
    *, votes: int = 1, temperature: float | None = None, rule: str = "exact_match", cache: str = ""
) -> float:
    """Options of a judge."""
    raise NotImplementedError


def _typed(name: str, rule: Rule, options: Mapping[str, object]) -> dict[str, Any]:
    known_options = list(rule.__kwdefaults__ or {})
    _refuse_unknown(name, options, known_options)
    try:
        return typed_options(rule, options)
    except ValueError as error:
        raise ConfigurationError(f"metric {name}: {error}") from None


def _refuse_unknown(name: str, options: Mapping[str, object], known_options: Sequence[str]) -> None:
    for option in options:
        if option not in known_options:
            offered = f"it has {', '.join(known_options)}" if known_options else "it has none"
            raise ConfigurationError(f"metric {name}: there is no option {option}; {offered}")


def _custom_metric(name: str) -> Callable[..., object]:
    try:
        metric = import_object(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"metric {error}") from None
    if not callable(metric):
        raise ConfigurationError(f"metric {name}: not a function; write module:function or file.py:function")
    return metric


def typed_options(rule: Rule, options: Mapping[str, object]) -> dict[str, Any]:
    """Convert the options to the types of the rule's parameters.

    :raises ValueError: one line, if an option has another type.
    """
    typed: dict[str, Any] = {}
    for name, value in options.items():
        try:
            typed[name] = _adapters(rule)[name].validate_python(value)
        except ValidationError as error:
            raise ValueError(f"{name}: {error.errors()[0]['msg']}") from None
    return typed


@cache
def _adapters(rule: Rule) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(rule)
    parameters = inspect.signature(rule).parameters.values()
    return {
        parameter.name: TypeAdapter(hints[parameter.name])
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY
    }


class RuleMetric:
    """Metric of a rule with its options.

    If a prediction marks its answer (`<answer>`, a box, `final answer:`), only that counts. An option that is not set is
    taken from the task: `question`, or the metadata under that name.
    """

    def __init__(self, name: str, rule: Rule, options: Mapping[str, Any]) -> None:
        self.name = name
        """Its name."""
        self._rule = rule
        self._options = options

    async def score(self, prediction: str, task: Task) -> Scored:
        """Apply the rule."""
        prediction = without_reasoning(prediction)
        try:
            options = self._of_task(task)
        except ValueError as error:
            return _unjudged(f"the task's {error}")
        if not task.references and "numbers" not in options:
            return _unjudged("the task has no right answer to compare with")
        answer = prediction if self.name in _KEEPS_PROSE else short_answer(prediction)
        return await self._apply(answer, task.references, options)

    async def _apply(self, answer: str, references: Sequence[str], options: Mapping[str, Any]) -> Scored:
        return Scored(self._rule(answer, references, **options))

    def _of_task(self, task: Task) -> dict[str, Any]:
        available = {"question": task.question, **task.metadata}
        fields = {name: available[name] for name in _adapters(self._rule) if available.get(name) is not None}
        return typed_options(self._rule, fields) | dict(self._options)


class MathMetric(RuleMetric):
    """Metric of mathematical equivalence; its reason names the comparison that decided. It works in a thread."""

    async def _apply(self, answer: str, references: Sequence[str], options: Mapping[str, Any]) -> Scored:
        verdict = await to_thread.run_sync(partial(judge_math, answer, references, **options))
        return Scored(float(verdict.equal), f"decided by {verdict.by}")


class SimilarityMetric:
    """Metric of similarity: cosine of two texts' vectors, the best over references."""

    name = "similarity"
    """Its name."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed

    async def score(self, prediction: str, task: Task) -> Scored:
        """Return the similarity from 0 (unrelated) to 1 (equal)."""
        if not task.references:
            return _unjudged("the task has no right answer to compare with")
        try:
            answer = short_answer(without_reasoning(prediction))
            predicted, *right = await self._embed([answer, *task.references])
        except ModelFailure as failure:
            return Scored(0.0, failure=Failure(failure.kind, str(failure)))
        return Scored(max(0.0, *(_cosine(predicted, reference) for reference in right)))


class SourceMetric:
    """Metric that is chosen by the `source` of each task: the one given for it, else its usual one, else the default."""

    name = BY_SOURCE
    """Its name."""

    def __init__(self, chosen: Mapping[str, Any], judge: Model | None) -> None:
        """:param chosen: metric by source; `default` is that of other sources.
        :raises ConfigurationError: one line, if a metric is unknown or needs a missing judge.
        """
        # The temperature of judges comes along with the sources.
        judging = {name: value for name, value in chosen.items() if name == "temperature"}
        self._chosen: dict[str, Metric] = {}
        for source, metric in chosen.items():
            if source in judging:
                continue
            if not isinstance(metric, str) or metric == BY_SOURCE:
                raise ConfigurationError(
                    f"metric {BY_SOURCE}: {source}: is {metric!r}; write the name of a metric"
                )
            options = judging if metric in _JUDGES else {}
            self._chosen[source] = make_metric(metric, options=options, judge=judge)
        self._usual = {metric: make_metric(metric) for metric in _SOURCES}

    async def score(self, prediction: str, task: Task) -> Scored:
        """Score by the metric of the task's source."""
        source = task.metadata.get("source")
        metric = self._chosen.get(str(source)) or self._usual.get(metric_of_source(source) or "")
        metric = metric or self._chosen.get("default") or self._usual["exact_match"]
        scored = await metric.score(prediction, task)
        return structs.replace(scored, reason=": ".join(filter(None, [metric.name, scored.reason])))


class Extract(Struct, frozen=True):
    """Short answer extracted by a model."""

    answer: str


class DocumentMetric:
    """Accuracy or F1 of MMLongBench-Doc. A model, if given, first extracts the short answer from a long one.

    The F1 weighs tasks: those without an answer in reference and prediction do not count. Its weighted mean is the F1.
    """

    def __init__(self, name: str, model: Model | None, *, f1: bool) -> None:
        self.name = name
        """Its name."""
        self._model = model
        self._f1 = f1

    async def score(self, prediction: str, task: Task) -> Scored:
        """Score the answer by the rules of the benchmark."""
        reply = await self._extract(without_reasoning(prediction), task)
        if reply.value is None:
            return Scored(0.0, failure=reply.failure, usage=reply.usage)
        answer, usage = reply.value.answer, reply.usage
        try:
            options = typed_options(document_score, {"answer_format": task.metadata.get("answer_format")})
        except ValueError as error:
            return _unjudged(f"the task's {error}")
        score = document_score(answer, task.references, **options)
        if not self._f1:
            return Scored(score, usage=usage)
        answered = bool(answer.strip()) and not is_unanswerable(answer)
        answerable = not any(map(is_unanswerable, task.references))
        return Scored(score if answerable else 0.0, usage=usage, weight=(answered + answerable) / 2)

    async def _extract(self, prediction: str, task: Task) -> Reply[Extract]:
        if self._model is None or marked_answer(prediction) is not None:
            return Reply(value=Extract(short_answer(prediction)))
        messages = judge_messages("judge_extraction", question=task.question, answer=prediction)
        sampling = Sampling(temperature=0.0)
        call = Call(role="judge", messages=messages, reply=Extract, schema=_EXTRACTED, sampling=sampling)
        return await ask_model(self._model, call)


class OwnMetric:
    """Custom function of a prediction and its task; it returns a number or a `Scored`, or awaits one."""

    def __init__(self, name: str, function: Callable[[str, Task], object]) -> None:
        self.name = name
        """`module:function`."""
        self._function = function

    async def score(self, prediction: str, task: Task) -> Scored:
        """Call the function; a failure if it raises or returns anything else."""
        try:
            result = self._function(without_reasoning(prediction), task)
            if inspect.isawaitable(result):
                result = await result
        except RunStopped:
            raise
        except Exception as error:  # Custom code may raise anything, and one task must not end a run.
            return _unjudged(f"{self.name}: {type(error).__name__}: {error}")
        if isinstance(result, Scored):
            return result
        if isinstance(result, bool | int | float) and 0 <= result <= 1:
            return Scored(float(result))
        return _unjudged(f"{self.name} gave {result!r}, not a number from 0 to 1")


def _unjudged(why: str) -> Scored:
    return Scored(0.0, failure=Failure(ErrorKind.BAD_ARGUMENTS, " ".join(why.split())))


def _cosine(vector: Sequence[float], other: Sequence[float]) -> float:
    lengths = sqrt(sum(number * number for number in vector)) * sqrt(sum(number * number for number in other))
    return sum(left * right for left, right in zip(vector, other, strict=True)) / lengths if lengths else 0.0
