"""Metrics of document benchmarks."""

import pytest

from agentflow.scoring import make_metric, score, summarise
from tests.agentflow.scoring._judging import FunctionModel, task


@pytest.mark.promise("scoring:documents")
@pytest.mark.parametrize(
    ("prediction", "references", "expected"),
    [
        ("color", "colour", 5 / 6),
        ("The  Colour", "the colour", 1),
        ("abc", "xyz", 0),
        ("ab", "ax", 0),
        ("rat", ["house", "cat"], 2 / 3),
        ("x", [], 0),
    ],
)
def test_anls_is_the_similarity_above_its_threshold(
    prediction: str, references: str | list[str], expected: float
) -> None:
    assert score("anls", prediction, references) == pytest.approx(expected)


@pytest.mark.promise("scoring:documents")
@pytest.mark.parametrize(
    ("prediction", "reference", "form", "expected"),
    [
        ("3", "3", "Int", 1),
        ("3.0", "3", "Int", 1),
        ("4", "3", "Int", 0),
        ("three", "3", "Int", 0),
        ("0.121", "12%", "Float", 1),
        ("12.05%", "12", "Float", 1),
        ("$1,200", "1200", "Float", 1),
        ("13", "12", "Float", 0),
        ("0.001", "0.4", "Float", 0),
        ("['b', 'a']", "['a', 'b']", "List", 1),
        ("a and b", "['b', 'a']", "List", 1),
        ("['a']", "['a', 'b']", "List", 0),
        ("[1, 2]", "[1, 3]", "List", 0),
        ("page 3", "page 3", "Str", 1),
        ("page 3", "page 4", "Str", 0),
        ("a@b.org", "a@c.org", "Str", 0),
        ("colors", "colours", "Str", 6 / 7),
        ("Not answerable", "Not answerable", "None", 1),
        ("It can't be answered.", "Not answerable", None, 1),
        ("Not answerable", "3", "Int", 0),
        ("3", "Not answerable", "None", 0),
        ("['x', 'y']", "['y', 'x']", None, 1),
        ("2.02", "2.01", None, 1),
        ("2", "3", None, 0),
    ],
)
def test_documents_are_scored_by_the_kind_of_answer(
    prediction: str, reference: str, form: str | None, expected: float
) -> None:
    assert score("MMLongBench-Doc_Acc", prediction, reference, answer_format=form) == pytest.approx(expected)


@pytest.mark.promise("scoring:documents")
async def test_f1_combines_answerable_and_unanswerable_questions() -> None:
    metric = make_metric("MMLongBench-Doc_F1")
    pairs = [
        ("a", "a"),
        ("b", "a"),
        ("Not answerable", "a"),
        ("b", "Not answerable"),
        ("Not answerable", "Not answerable"),
    ]
    scores = [await metric.score(said, task(right)) for said, right in pairs]
    # One right of three that can be answered, and of three that were.
    assert summarise(scores).mean == pytest.approx(1 / 3)
    assert [each.weight for each in scores] == [1, 1, 0.5, 0.5, 0]


@pytest.mark.promise("scoring:documents")
async def test_a_model_reads_the_short_answer_from_a_long_one() -> None:
    from agentflow.scoring._metrics import Extract

    model = FunctionModel(lambda _: Extract("12%"))
    metric = make_metric("MMLongBench-Doc_Acc", judge=model)
    scored = await metric.score(
        "Looking at the table, it is twelve percent.", task("12", answer_format="Float")
    )
    assert (scored.score, scored.usage.calls) == (1.0, 1)
    assert (await metric.score("<answer>12</answer>", task("12"))).usage.calls == 0
