"""Short and long form of a property."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis.strategies import SearchStrategy

LONG = 20_000
"""Cases of a long form: minutes."""


def forms(
    body: Callable[..., Any],
    *,
    short: int,
    examples: Sequence[Mapping[str, object]] = (),
    **arguments: SearchStrategy[Any],
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the tests of a property: a fixed number of fixed cases, and with `-m soak` many new ones.

    Example::

        test_any_text_is_read, test_any_text_is_read_long = forms(check, short=50, text=st.text())

    :param examples: arguments of cases that both forms begin with: faults that were found.
    """

    def form(count: int) -> Any:  # noqa: ANN401 - as hypothesis makes it
        test = given(**arguments)(body)
        for case in examples:
            test = example(**case)(test)
        unchecked = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
        return settings(max_examples=count, suppress_health_check=unchecked, deadline=None)(test)

    return form(short), pytest.mark.soak(pytest.mark.timeout(0)(form(LONG)))
