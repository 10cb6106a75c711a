"""Metrics that are chosen by the source of each task."""

import re

import pytest

from agentflow.errors import ConfigurationError
from agentflow.rollouts import assign
from agentflow.scoring import make_metric, metric_of_source, needs_judge, score
from agentflow.scoring._judge import Opinion
from agentflow.trace import Task
from tests.agentflow.rollouts._rollouts import RolloutConfig
from tests.agentflow.scoring._judging import FunctionModel


def from_source(source: str | None, reference: str) -> Task:
    return Task(index=0, id="t", question="?", references=(reference,), metadata={"source": source})


@pytest.mark.promise("scoring:by-source")
@pytest.mark.parametrize(
    ("source", "metric"),
    [
        ("nq", "exact_match"), ("openai/gsm8k", "math"), ("HuggingFaceH4/MATH-500", "math"), ("mathhard", "math"), ("aime2024", "math"),
        ("HotpotQA", "exact_match"), ("GPQA", "multiple_choice"), ("gaia", "gaia"), ("Game of 24", "game24"), ("diary", None), ("", None), (None, None), (7, None),
    ],
)  # fmt: skip
def test_a_known_source_has_its_usual_metric(source: object, metric: str | None) -> None:
    assert metric_of_source(source) == metric
    if isinstance(source, str) and metric != "multiple_choice":
        assert score("by_source", "1/2", "0.5", source=source) == float(metric == "math")


@pytest.mark.promise("scoring:by-source")
async def test_each_task_is_scored_by_the_metric_of_its_source() -> None:
    metric = make_metric("by_source", options={"birds": "f1_score", "default": "contains_answer"})
    cases = [
        ("mathhard", "1/2", "0.5", "math: "),
        ("nq", "1/2", "0.5", "exact_match"),
        ("birds", "gull tern", "gull", "f1_score"),
    ]
    cases.append(("diary", "It was a gull.", "gull", "contains_answer"))
    scored = [
        await metric.score(prediction, from_source(source, right)) for source, prediction, right, _ in cases
    ]
    assert [round(each.score, 2) for each in scored] == [1.0, 0.0, 0.67, 1.0]
    assert all(each.reason.startswith(reason) for each, (*_, reason) in zip(scored, cases, strict=True))


@pytest.mark.promise("scoring:by-source")
async def test_a_source_may_have_a_judge_and_without_settings_words_decide() -> None:
    assert needs_judge("by_source", {"birds": "llm_judgement"}) and not needs_judge("by_source")
    judge = FunctionModel(lambda _: Opinion("Right.", correct=True))
    options = {"birds": "llm_judgement", "temperature": 0.0}
    metric = make_metric("by_source", options=options, judge=judge)
    assert (await metric.score("A sea bird", from_source("birds", "gull"))).score == 1.0
    assert (await make_metric("by_source").score("the gull!", from_source(None, "gull"))).score == 1.0


@pytest.mark.promise("scoring:by-source")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nq": 3}, "nq: is 3; write the name of a metric"),
        ({"nq": "by_source"}, "nq: is 'by_source'"),
        ({"nq": "exact"}, "did you mean exact_match?"),
        ({"nq": "llm_judgement"}, "name one as the evaluator's model"),
    ],
)
def test_an_unusable_metric_of_a_source_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        make_metric("by_source", options=options)


@pytest.mark.promise("scoring:by-source")
def test_tasks_of_known_sources_are_scored_by_source_unless_a_metric_is_named() -> None:
    mixed = [from_source("nq", "gull"), from_source("mathhard", "2")]
    assert assign(RolloutConfig(), mixed).metric == "by_source"
    assert assign(RolloutConfig(), [from_source("diary", "2")]).metric == "exact_match"
    assert assign(RolloutConfig(evaluation_metric="f1_score"), mixed).metric == "f1_score"
