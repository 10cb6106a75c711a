"""Selection strategies: the order in which paths are selected."""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from msgspec.structs import replace

from agentflow.errors import ConfigurationError
from agentflow.synthesis._selection._paths import EvidencePath, similarity
from agentflow.synthesis._selection._score import Scale, Score
from agentflow.trajectory import Tree

if TYPE_CHECKING:
    from agentflow.synthesis._config import SynthesisConfig


Picker: TypeAlias = Callable[
    [Sequence[EvidencePath], Sequence[EvidencePath]], tuple[EvidencePath, Score] | None
]
"""Returns the best remaining path given those selected before, with its score; `None` ends the selection."""
Strategy: TypeAlias = Callable[[Tree, Sequence[EvidencePath], Scale, "SynthesisConfig"], Picker]
"""Returns the picker for the paths of a tree."""
UserStrategy: TypeAlias = Callable[[Tree, Sequence[EvidencePath], "SynthesisConfig"], Sequence[int | float]]
"""A user's strategy: returns indices of paths, the best first, or one score (a float from 0 to 100) per path."""


def _novelty(tree: Tree, paths: Sequence[EvidencePath], scale: Scale, config: "SynthesisConfig") -> Picker:
    """Prefer the most content that is neither repeated on the path nor in a selected path."""

    def pick(remaining: Sequence[EvidencePath], chosen: Sequence[EvidencePath]) -> tuple[EvidencePath, Score]:
        known = frozenset[tuple[str, str]]().union(*(path.content for path in chosen))
        return _best((path, scale.score(path, _fresh(path, known))) for path in remaining)

    return pick


def _fresh(path: EvidencePath, known: frozenset[tuple[str, str]]) -> float:
    return (len(path.content) - len(path.content & known)) / max(1, path.words)


def _documented(tree: Tree, paths: Sequence[EvidencePath], scale: Scale, config: "SynthesisConfig") -> Picker:
    """Prefer the longest observations on average, in characters."""
    lengths = {path.leaf: _average_length(path) for path in paths}
    least, most = min(lengths.values()), max(lengths.values())
    span = most - least
    scores = {
        path.leaf: scale.score(path, (lengths[path.leaf] - least) / span if span else 1.0) for path in paths
    }

    def pick(remaining: Sequence[EvidencePath], chosen: Sequence[EvidencePath]) -> tuple[EvidencePath, Score]:
        return _best((path, scores[path.leaf]) for path in remaining)

    return pick


def _average_length(path: EvidencePath) -> float:
    return sum(len(node.observation.text) for node in path.evidence) / len(path.evidence)


def _diverse(tree: Tree, paths: Sequence[EvidencePath], scale: Scale, config: "SynthesisConfig") -> Picker:
    """Take the best score first, then the path farthest from its nearest selected path."""
    scores = {path.leaf: scale.score(path, _fresh(path, frozenset())) for path in paths}

    def pick(remaining: Sequence[EvidencePath], chosen: Sequence[EvidencePath]) -> tuple[EvidencePath, Score]:
        best = max(
            remaining,
            key=lambda path: (
                -max((similarity(path.content, other.content) for other in chosen), default=0.0),
                scores[path.leaf].total,
            ),
        )
        return best, scores[best.leaf]

    return pick


def _best(rated: Iterable[tuple[EvidencePath, Score]]) -> tuple[EvidencePath, Score]:
    # `max` keeps the first of equals: ties are resolved by path order.
    return max(rated, key=lambda one: one[1].total)


BUILT_IN: Final[dict[str, Strategy]] = {"novelty": _novelty, "documented": _documented, "diverse": _diverse}
"""Built-in strategies by name."""


def find_strategy(name: str) -> Strategy:
    """Return the strategy of that name, or the user's function at `module:function`.

    :raises ConfigurationError: if there is none.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise ConfigurationError(
            f"selection_strategy: {name} is unknown; write {', '.join(BUILT_IN)} or module:function"
        )
    try:
        found: object = getattr(import_module(module), function)
    except ImportError as error:
        raise ConfigurationError(f"selection_strategy: {name}: {error}; it must be importable") from None
    except AttributeError:
        raise ConfigurationError(f"selection_strategy: {name}: {module} has no {function}") from None
    if not callable(found):
        raise ConfigurationError(f"selection_strategy: {name}: not a function")
    return _user(name, cast("UserStrategy", found))


def _user(name: str, function: UserStrategy) -> Strategy:
    def strategy(
        tree: Tree, paths: Sequence[EvidencePath], scale: Scale, config: "SynthesisConfig"
    ) -> Picker:
        try:
            said = list(function(tree, paths, config))
        except Exception as error:  # boundary: a user's code may raise anything
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigurationError(f"selection_strategy: {name}: raised {why}; fix it") from error
        ranked = _ranked(name, said, paths, scale)

        def pick(
            remaining: Sequence[EvidencePath], chosen: Sequence[EvidencePath]
        ) -> tuple[EvidencePath, Score] | None:
            left = {path.leaf for path in remaining}
            return next((one for one in ranked if one[0].leaf in left), None)

        return pick

    return strategy


def _ranked(
    name: str, said: list[int | float], paths: Sequence[EvidencePath], scale: Scale
) -> list[tuple[EvidencePath, Score]]:
    """Return the paths in the order of a user's function."""
    own = [(path, scale.score(path, _fresh(path, frozenset()))) for path in paths]
    if any(isinstance(one, float) for one in said):
        if len(said) != len(paths) or not all(0 <= one <= 100 for one in said):
            raise ConfigurationError(
                f"selection_strategy: {name}: returned {len(said)} scores for {len(paths)} paths; give one from 0 to 100 for each"
            )
        scored = [
            (path, replace(score, total=float(one))) for (path, score), one in zip(own, said, strict=True)
        ]
        return sorted(scored, key=lambda one: -one[1].total)
    chosen = [index for index in said if type(index) is int and 0 <= index < len(paths)]
    if len(chosen) != len(said) or len(set(chosen)) != len(chosen):
        raise ConfigurationError(
            f"selection_strategy: {name}: returned neither distinct indices from 0 to {len(paths) - 1} nor scores"
        )
    return [own[index] for index in chosen]
