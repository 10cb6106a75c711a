"""Metrics by name."""

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from agentflow.errors import ConfigurationError
from agentflow.models import Model
from agentflow.scoring._documents import anls, document_score
from agentflow.scoring._equality import can_compare
from agentflow.scoring._judge import Judge
from agentflow.scoring._mathematics import game24, math_match
from agentflow.scoring._metrics import (
    DocumentMetric,
    OwnMetric,
    Rule,
    RuleMetric,
    SimilarityMetric,
    typed_options,
)
from agentflow.scoring._scored import Embed, Metric
from agentflow.scoring._text_rules import (
    contains_answer,
    exact_match,
    f1_score,
    gaia_match,
    likeness,
    multiple_choice,
    numeric_match,
)

_RULES: Final[Mapping[str, Rule]] = {
    "exact_match": exact_match,
    "f1_score": f1_score,
    "contains_answer": contains_answer,
    "numeric_match": numeric_match,
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


def metric_names() -> list[str]:
    """Return the names of all metrics.

    See docs/scoring.md for each of them.
    """
    return [*_RULES, *_JUDGES, *_DOCUMENTS]


def needs_judge(name: str) -> bool:
    """Return whether a metric calls a model.

    >>> needs_judge("exact_match")
    False
    """
    return name in _JUDGES


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
    given = dict(options or {})
    if ":" in name:
        _refuse_unknown(name, given, ())
        return OwnMetric(name, _own(name))
    if name in _JUDGES:
        if judge is None:
            raise ConfigurationError(f"metric {name}: a model judges; name one as the evaluator's model")
        typed = _typed(name, _judge_options, given)
        first = str(typed.pop("rule", "exact_match"))
        return _JUDGES[name](judge, rule=_rule(first) if first else None, **typed)
    if name in _DOCUMENTS:
        _refuse_unknown(name, given, ())
        return DocumentMetric(name, judge, f1=_DOCUMENTS[name])
    if name == "similarity" and embed is not None:
        _refuse_unknown(name, given, ())
        return SimilarityMetric(embed)
    rule = _rule(name)
    return RuleMetric(name, rule, _typed(name, rule, given))


def score(metric: str, prediction: str, references: str | Sequence[str], **options: object) -> float:
    """Score a prediction by a rule.

    >>> score("exact_match", "The Gull", "gull")
    1.0

    :param references: a right answer, or several.
    :param options: options of the metric, such as `tolerance`, `options` of a choice or `numbers` of a game.
    :raises ConfigurationError: one line, if the rule or option is unknown.
    """
    right = (references,) if isinstance(references, str) else tuple(references)
    if metric in _DOCUMENTS:
        return document_score(prediction, right, **_typed(metric, document_score, options))
    rule = _rule(metric)
    return rule(prediction, right, **_typed(metric, rule, options))


def _rule(name: str) -> Rule:
    if name in _JUDGES:
        raise ConfigurationError(f"metric {name}: a model judges, no rule; use make_metric(…, judge=…)")
    if name not in _RULES:
        near = difflib.get_close_matches(name, metric_names(), n=1, cutoff=0.4)
        meant = f"did you mean {near[0]}?" if near else f"write one of {', '.join(metric_names())}"
        raise ConfigurationError(f"metric {name}: there is none of that name; {meant}")
    if name == "math" and not can_compare():
        raise ConfigurationError("metric math: mpmath is missing; pip install 'agentflow[math]'")
    return _RULES[name]


def _judge_options(
    *, votes: int = 1, temperature: float | None = None, rule: str = "exact_match", cache: str = ""
) -> float:
    """Options of a judge."""
    raise NotImplementedError


def _typed(name: str, rule: Rule, options: Mapping[str, object]) -> dict[str, Any]:
    known = list(rule.__kwdefaults__ or {})
    _refuse_unknown(name, options, known)
    try:
        return typed_options(rule, options)
    except ValueError as error:
        raise ConfigurationError(f"metric {name}: {error}") from None


def _refuse_unknown(name: str, options: Mapping[str, object], known: Sequence[str]) -> None:
    for option in options:
        if option not in known:
            offered = f"it has {', '.join(known)}" if known else "it has none"
            raise ConfigurationError(f"metric {name}: there is no option {option}; {offered}")


def _own(name: str) -> Callable[..., object]:
    module, _, function = name.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigurationError(f"metric {name}: can't be imported: {error}") from None
    if not callable(found):
        raise ConfigurationError(f"metric {name}: is no function")
    return found
