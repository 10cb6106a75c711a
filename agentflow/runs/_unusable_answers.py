"""Answers that can't be used: a seed for which a role gave no other is unfinished, as after an outage."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

from agentflow.errors import ModelFailureKind, RunStopped, StopCause, WorkPostponed
from agentflow.journal import Page, Run
from agentflow.models import ModelSettings
from agentflow.runs._supervised_resources import REFUSALS
from agentflow.trace import Failure, Seed

T = TypeVar("T")

_REMEDIES: Final[dict[str, str]] = {
    ModelFailureKind.GARBAGE: "use an endpoint that enforces response_format, or a model that follows a JSON schema",
    ModelFailureKind.TOO_LONG: "raise max_tokens, bound texts by max_text_chars, or use a model with a longer context",
}
"""Remedies by the kind of a failed call that the model, and not its endpoint, is the cause of."""
_LASTING: Final = frozenset({ModelFailureKind.REFUSED, ModelFailureKind.BAD_REQUEST})


def may_pass(failure: Failure | None) -> bool:
    """Return whether the same work may succeed later: nothing was refused.

    >>> may_pass(Failure("garbage", "the answer is empty"))
    True
    """
    return failure is not None and failure.kind not in _LASTING


class RoleReplies:
    """Replies of the models to the roles, in the work for one seed."""

    def __init__(self) -> None:
        self.failed: dict[str, Failure] = {}
        """Last failure that may pass, by role."""
        self._usable: set[str] = set()
        self._unusable: dict[str, Failure] = {}

    def add(self, role: str, failure: Failure | None) -> None:
        """Add a reply.

        :param failure: reason for a missing answer.
        """
        if failure is None:
            self._usable.add(role)
            return
        if failure.kind in _REMEDIES:
            self._unusable[role] = failure
        if may_pass(failure):
            self.failed[role] = failure

    @property
    def unanswered(self) -> tuple[str, Failure] | None:
        """A role of whose answers none could be used, and the reason of the last; `None`: each gave a usable one."""
        return next(((role, why) for role, why in self._unusable.items() if role not in self._usable), None)


class AnswerGuard:
    """Tells a model without usable answers from one that fails on single calls."""

    def __init__(
        self,
        models: Mapping[str, ModelSettings] | None = None,
        answered: AbstractSet[str] = frozenset(),
        unit: str = "task",
    ) -> None:
        """Expect usable answers.

        :param models: models by role.
        :param answered: roles that got a usable answer from a model of this process; read at each check.
        :param unit: name of a seed in messages.
        """
        self._models = models or {}
        self._answered = answered
        self._unit = unit
        self._failures: dict[str, int] = {}

    async def work(
        self,
        run: Run,
        seed: Seed,
        work: Callable[[Page], Awaitable[tuple[T, RoleReplies]]],
        kept: Callable[[RoleReplies], Sequence[str]],
    ) -> T:
        """Do the work of a seed on its page, and return its result.

        If a role gave no usable answer, the page is cleared, so that the same command asks the model again.

        :param kept: returns the beginnings of the keys that are not cleared.
        :raises WorkPostponed: if a role gave no usable answer.
        :raises RunStopped: if it has given none for any seed so far.
        """
        while True:
            page = await run.open_page(seed)
            recorded = len(tuple(page.keys()))
            result, replies = await work(page)
            if (unanswered := replies.unanswered) is None:
                return result
            is_new = len(tuple(page.keys())) > recorded
            await run.clear_page(seed, kept(replies))
            if is_new:
                raise self._postponed(*unanswered)
            # An earlier process was killed after its last call: the model was not asked in this one yet.

    def _postponed(self, role: str, failure: Failure) -> RunStopped:
        """Return the error for a seed without a usable answer of a role."""
        name = self._models[role].name if role in self._models else "its model"
        problem = f"{role}: no usable answer from {name}: {failure.message}"
        remedy = _REMEDIES[failure.kind]
        count = self._failures[role] = self._failures.get(role, 0) + 1
        if role in self._answered or count < REFUSALS:
            return WorkPostponed(StopCause.MODEL, f"{problem}; {remedy}", kind=ModelFailureKind(failure.kind))
        every = f"{problem}; nor for any of {count} {self._unit}s so far"
        return RunStopped(StopCause.MODEL, f"{every}: {remedy}, then run the same command to resume")
