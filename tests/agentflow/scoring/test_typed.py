"""The metric that compares answers by type."""

import pytest

from agentflow.errors import ConfigurationError
from agentflow.scoring import make_metric, score
from agentflow.trace import Task


@pytest.mark.promise("scoring:typed")
@pytest.mark.parametrize(
    ("prediction", "reference", "right"),
    [
        ("No, it was not.", "no", 1),
        ("Yes.", "no", 0),
        ("It was built on May 12, 1841.", "12 May 1841", 1),
        ("13 May 1841 in Port Vannick", "12 May 1841 in Port Vannick", 0),
        ("It was 34 feet.", "34 metres", 0),
        ("It was 3,400 cm.", "34 metres", 1),
        ("not the Guild of Glaziers", "the Guild of Glaziers", 0),
        ("Peru and Norway", "Norway, Peru", 1),
        ("Peru, Norway and Chad", "Norway, Peru", 0),
        ("<think>34? 36?</think>It is 34 metres.", "34 metres", 1),
        ("", "34 metres", 0),
        ("34 metres", "", 0),
    ],
)
def test_a_prediction_is_right_if_it_states_the_value_of_the_reference(
    prediction: str, reference: str, right: int
) -> None:
    assert score("typed_match", prediction, reference) == right
    assert score("typed_match", prediction, ["something else", reference]) == right


@pytest.mark.promise("scoring:typed")
@pytest.mark.parametrize(
    ("prediction", "reference", "right"),
    [
        ("1 year", "1 year and 9 months", 0),
        ("9 months", "1 year and 9 months", 0),
        ("21 months", "1 year and 9 months", 1),
        ("1 year 9 months", "1 year and 9 months", 1),
        ("It took one year, nine months.", "1 year and 9 months", 1),
        ("1.75 years", "1 year and 9 months", 1),
        ("1 year and 9 months", "1 year", 0),
        ("It lasted a total of 1 year and 9 months.", "1 year", 0),
        ("1 year and a half", "1 year", 0),
        ("1 year and a half", "18 months", 1),
        ("5 feet", "5 feet 3 inches", 0),
        ("63 inches", "5 feet 3 inches", 1),
        ("She was 5 ft 3 in tall.", "5 feet 3 inches", 1),
        ("5 ft. 3 in.", "5 feet 3 inches", 1),
        ("5 feet 4 inches", "5 feet 3 inches", 0),
        ("2 h", "2 h 15 min", 0),
        ("2 hours and 15 minutes", "2 h 15 min", 1),
        ("135 minutes", "2 h 15 min", 1),
        ("2 hours", "135 minutes", 0),
        ("1 month", "1 month and 3 days", 0),
        ("1 month, 3 days", "1 month and 3 days", 1),
        ("1 month 4 days", "1 month and 3 days", 0),
        ("1 month and 3 days", "1 month", 0),
        ("1 month and 3 days", "3 days", 0),
        ("1 year, 1 month and 3 days", "13 months, 3 days", 1),
    ],
)
def test_a_quantity_in_several_units_is_compared_as_a_whole(
    prediction: str, reference: str, right: int
) -> None:
    assert score("typed_match", prediction, reference) == right


@pytest.mark.promise("scoring:typed")
async def test_the_question_and_the_type_come_from_the_task() -> None:
    metric = make_metric("typed_match")
    said = "Of the 80 lamps, Jorun Pike bought 12."
    asked = "Of the 80 lamps, how many did Jorun Pike buy?"
    task = Task(index=0, id="lamps", question=asked, references=("12",))
    assert (await metric.score(said, task)).score == 1
    assert (await metric.score("80", task)).score == 0
    task = Task(index=0, id="year", question="When?", references=("1841",), metadata={"answer_kind": "date"})
    assert (await metric.score("In 1841.", task)).score == 1
    assert (await metric.score("12 May 1841", task)).score == 0
    task = Task(index=0, id="bad", question="When?", references=("1841",), metadata={"answer_kind": "when"})
    assert "answer_kind" in str((await metric.score("1841", task)).failure)


@pytest.mark.promise("scoring:typed")
def test_an_unknown_type_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigurationError, match=r"typed_match: answer_kind: .*'entity', 'number'"):
        score("typed_match", "1841", "1841", answer_kind="when")
