"""Observations in prompts: a budget of characters for all of them, and long ones as windows around what matters."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from agentflow.text import excerpt, name_terms, search_terms
from agentflow.trace import Action, Failure, Memory, NextStep, Node, Turn

_HORIZON: Final = 6
"""Number of observations to share a budget among if the length of the path is unknown."""


class ObservationLimits(Struct, frozen=True):
    """Room for observations in a prompt.

    Example::

        Team({"planner": model, "generator": model}, observations=ObservationLimits(each=8_000))
    """

    each: int = 12_000
    """Maximum characters of an observation."""
    total: int = 24_000
    """Maximum characters of all observations of a request."""


_LIMITS: Final = ObservationLimits()


def path_texts(seed: str, path: Sequence[Node], limits: ObservationLimits, depth: int = 0) -> list[str]:
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


def result_text(
    result: str, limit: int, question: str, action: Action | None, *goals: str, failure: Failure | None = None
) -> str:
    """Return the result of a step of an episode as it is shown: at most `limit` characters, and the reason of a failed call.

    See docs/team.md.
    """
    if len(result) > limit:
        terms = search_terms(question, *goals, *_arguments(action))
        result = excerpt(result, limit, terms, name_terms(question))
    return with_reason(result, "" if failure is None else f"{failure.kind}: {failure.message}") or "(empty)"


def path_memory(
    seed: str, path: Sequence[Node], max_depth: int, limits: ObservationLimits = _LIMITS
) -> Memory:
    """Return a path of a tree as the memory of an episode, with the results that its planner was shown.

    No planner was shown the observation of a leaf at `max_depth`; it has room of its own, `limits.each`. See docs/training.md.

    :param path: nodes in path order; the root is left out.
    :param max_depth: maximum number of actions of a path of the tree.
    """
    steps = [node for node in path if node.action is not None]
    shown = path_texts(seed, steps[: max_depth - 1], limits, max_depth - 1)
    if len(shown) < len(steps):
        shown.append(_windows(seed, steps, shown, limits.each))
    return Memory(
        turns=tuple(
            Turn(
                number=number,
                step=NextStep(step.intent, "", step.intent, step.call.tool),
                action=step.action,
                result=with_reason(text, step.error) or "(empty)",
                images=step.images,
                failure=step.failure,
            )
            for number, (step, text) in enumerate(zip(steps, shown, strict=True), start=1)
        )
    )


def with_reason(text: str, failure: str) -> str:
    """Return an observation of growth as it is shown, with the reason of a failure."""
    return "\n".join(filter(None, (text, failure and f"The call failed: {failure}")))


def _windows(seed: str, path: Sequence[Node], before: Sequence[str], limit: int) -> str:
    """Return the last observation of a path, given the earlier ones as shown."""
    text = path[-1].text
    if len(text) <= limit:
        return text
    said = [seed, *(part for step in path for part in (step.intent, *_arguments(step.action)))]
    names = frozenset[str]().union(*map(name_terms, before))
    return excerpt(text, limit, search_terms(*said), names)


def _arguments(action: Action | None) -> list[str]:
    """Return the texts in the arguments of an action."""
    return [] if action is None else [str(value) for value in action.arguments.values()]
