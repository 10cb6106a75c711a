"""Computed steps are evaluated exactly, and refuse what is not exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.questions import ComputationError, DraftStep, compute, is_inexact
from agentflow.values import show_value


def steps(*values: str, computes: str, quote: str = "") -> list[DraftStep]:
    stated = [DraftStep(statement="s", value=value, quote=quote or value) for value in values]
    return [*stated, DraftStep(statement="s", computes=computes)]


def result(*values: str, computes: str) -> str:
    return show_value(compute(steps(*values, computes=computes))[len(values) + 1])


@pytest.mark.promise("questions:computations")
@pytest.mark.parametrize(
    ("values", "expression", "expected"),
    [
        (["13 October 2022", "9 February 2023"], "days(s1, s2)", "119 days"),
        (["9 February 2023", "13 October 2022"], "days(s1, s2)", "119 days"),
        (["July 2005", "April 2007"], "months(s1, s2)", "21 months"),
        (["2005", "2007"], "years(s1, s2)", "2 years"),
        (["57,703", "703"], "s1 - s2", "57,000"),
        (["30", "12"], "s1 / s2 * 2", "5.0"),
        (["PostgreSQL 15.9", "PostgreSQL 15.12"], "max(s1, s2)", "PostgreSQL 15.12"),
        (["hppa", "ia64", "s390"], "count(s1, s2, s3)", "3"),
        (["3 May 2001", "2 May 2001"], "earliest(s1, s2)", "2 May 2001"),
        (["3", "4"], "s1 < s2", "yes"),
        (["64", "32"], "argmin('hppa', s1, 'ia64', s2)", "ia64"),
        (["64", "32"], "argmin(hppa, s1, ia64, s2)", "ia64"),
        (["64", "32"], "order('hppa', s1, 'ia64', s2)", "ia64, then hppa"),
        (["2023-05-11", "2023-11-09"], "days(2023-05-11, 2023-11-09)", "182 days"),
        (["Hamm", "Slink"], "count(Hamm, Slink)", "2"),
    ],
)
def test_an_expression_over_stated_values_has_an_exact_result(
    values: list[str], expression: str, expected: str
) -> None:
    assert result(*values, computes=expression) == expected


@pytest.mark.promise("questions:computations")
def test_full_months_and_years_leave_a_rest_of_days_out() -> None:
    for unit, expected in (("months", "14 months"), ("years", "1 year")):
        made = steps("16 August 2017", "2 November 2018", computes=f"{unit}(s1, s2)")
        assert show_value(compute(made, full=True)[3]) == expected


@pytest.mark.promise("questions:computations")
@pytest.mark.parametrize(
    ("values", "expression", "reason"),
    [
        (["July 2005", "April 2007"], "years(s1, s2)", "a rest of months"),
        (["2005", "2007"], "days(s1, s2)", "not stated to the day"),
        (["1 May 2001", "3 June 2001"], "months(s1, s2)", "a rest of days"),
        (["3 kg", "4 metres"], "s1 + s2", "can't be added"),
        (["3"], "s1 / 0", "no value"),
        (["3"], "1e999", "no value"),
        (["3"], "s2 + 1", "not an earlier step"),
        (["3"], "__import__('os').system('true')", "not allowed"),
        (["3"], "[s1 for x in s1]", "not allowed"),
        (["3"], "s1 +", "no expression"),
        (["Ada"], "s1 + 1", "no number"),
        (["3"], "(" * 99 + "s1" + ")" * 100, "longer than"),
        (["3"], "-" * 190 + "'a'", "no number"),
        (["2023-05-11"], "days(s1, 2023-11-09)", "value of no earlier step"),
        (["3"], "order('a', s1, 'b')", "has no value"),
        (["3", "3"], "argmax('a', s1, 'b', s2)", "several results"),
    ],
)
def test_what_is_not_exact_or_not_an_expression_is_refused_in_one_line(
    values: list[str], expression: str, reason: str
) -> None:
    with pytest.raises(ComputationError, match=reason) as refused:
        result(*values, computes=expression)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("questions:computations")
@pytest.mark.parametrize(
    ("quote", "value"),
    [
        ("more than 57,700 packages", "57,700"),
        ("about 2250 developers", "2250"),
        ("at least 64 MB", "64 MB"),
        ("57,700 or more", "57,700"),
        ("~300 users", "300"),
    ],
)
def test_a_bound_or_a_rounded_value_is_never_computed_with(quote: str, value: str) -> None:
    assert is_inexact(quote, value)
    with pytest.raises(ComputationError, match="bounds or rounds"):
        compute(steps(value, computes="s1 - 1", quote=quote))


@pytest.mark.promise("questions:computations")
@given(st.text(max_size=60))
def test_no_expression_of_a_model_does_anything_but_compute(expression: str) -> None:
    try:
        compute(steps("3", "4 May 2001", computes=expression or "s1"))
    except ComputationError as error:
        assert "\n" not in str(error)
