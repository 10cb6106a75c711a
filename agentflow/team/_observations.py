"""Observations in prompts: a budget of characters for all of them, and long ones as windows around what matters."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from agentflow.text import excerpt, name_terms, search_terms
from agentflow.trajectory import Action, Step

_HORIZON: Final = 6
"""Number of observations to share a budget among if the length of the path is unknown."""


class ObservationLimits(Struct, frozen=True):
    """Room for observations in a prompt.

    Example::

        Team(planner=model, generator=model, put_blob=put, blob=read, observations=ObservationLimits(each=8_000))
    """

    each: int = 12_000
    """Maximum characters of an observation."""
    total: int = 24_000
    """Maximum characters of all observations of a request."""


def path_texts(seed: str, path: Sequence[Step], limits: ObservationLimits, depth: int = 0) -> list[str]:
    """Return the observations of a path as they are shown.

    An observation gets an equal share of the budget that earlier ones leave, and its windows depend only on the seed and
    the path up to its node. So the prompt of a path extends that of its parent.

    :param depth: maximum number of observations of the path; 0 if it is unknown.
    """
    shown: list[str] = []
    left = limits.total
    for number in range(len(path)):
        expected = max(1, depth - number) if depth else max(2, _HORIZON - number)
        limit = min(limits.each, left // expected)
        shown.append(_windows(seed, path[: number + 1], shown, limit))
        left = max(0, left - len(shown[-1]))
    return shown


def evidence_texts(seed: str, steps: Sequence[Step], limits: ObservationLimits) -> list[str]:
    """Return observations that are shown together: short ones whole, the others with equal shares of what is left."""
    limit = min(limits.each, fair_limit([len(step.observation) for step in steps], limits.total))
    shown: list[str] = []
    for number in range(len(steps)):
        shown.append(_windows(seed, steps[: number + 1], shown, limit))
    return shown


def fair_limit(lengths: Iterable[int], total: int) -> int:
    """Return the largest limit of each text for which all of them fit into the total.

    >>> fair_limit([10, 500, 900], 610)
    300
    """
    ordered = sorted(lengths)
    for position, length in enumerate(ordered):
        share = total // (len(ordered) - position)
        if length > share:
            return max(0, share)
        total -= length
    return max(ordered, default=0)


def result_text(result: str, limit: int, question: str, action: Action | None, *goals: str) -> str:
    """Return the result of a step of an episode as it is shown: at most `limit` characters."""
    if len(result) <= limit:
        return result
    return excerpt(result, limit, search_terms(question, *goals, *_arguments(action)), name_terms(question))


def _windows(seed: str, path: Sequence[Step], before: Sequence[str], limit: int) -> str:
    """Return the last observation of a path, given the earlier ones as shown."""
    text = path[-1].observation
    if len(text) <= limit:
        return text
    said = [seed, *(part for step in path for part in (step.intent, *_arguments(step.action)))]
    names = frozenset[str]().union(*map(name_terms, before))
    return excerpt(text, limit, search_terms(*said), names)


def _arguments(action: Action | None) -> list[str]:
    """Return the texts in the arguments of an action."""
    return [] if action is None else [str(value) for value in action.arguments.values()]
