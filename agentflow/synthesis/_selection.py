"""Paths of a tree that questions are written about: candidates, scores and strategies; paths without wandering."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias, TypeGuard

from msgspec import Struct, field
from msgspec.structs import replace

from agentflow._typeguards import is_list
from agentflow.errors import ConfigurationError, error_line
from agentflow.settings import import_object
from agentflow.text import content_word_pairs
from agentflow.trace import Node, Tree, Verdict, trajectory_id

if TYPE_CHECKING:
    from agentflow.synthesis._config import SynthesisConfig


Content = frozenset[tuple[str, str]]
"""Content of observations as a comparable set of word pairs."""


_NOTHING: Content = frozenset()


class EvidencePath(Struct, frozen=True, kw_only=True, dict=True):
    """Path from the root to its last node with new evidence."""

    leaf: str
    """Id of its last node."""
    nodes: tuple[Node, ...]
    """Its nodes without the root."""
    evidence: tuple[Node, ...]
    """Nodes with the verdict `new`."""
    content: Content
    """Content of its evidence."""
    words: int
    """Amount of content, with repetitions."""

    @property
    def id(self) -> str:
        """Id of the trajectory."""
        return trajectory_id(self.leaf)

    @cached_property
    def tools(self) -> frozenset[str]:
        """Tools that produced its evidence."""
        return frozenset(node.action.tool for node in self.evidence if node.action is not None)


DEPTH = 40.0
"""Points for evidence at every depth up to `max_depth`."""


INFORMATION = 30.0
"""Points for content that is entirely new."""


TOOLS = 30.0
"""Points for a different tool for each piece of evidence."""


class Score(Struct, frozen=True):
    """Score of a path and its parts."""

    total: float
    """From 0 to 100."""
    depth: float
    """Pieces of evidence as a share of the maximum depth."""
    information: float
    """Value of its content by the strategy, from 0 to 1."""
    tools: float
    """Number of tools as a share of the maximum for this path."""


class Scale(Struct, frozen=True):
    """Maxima by which paths of a tree are scored."""

    depth: int
    """Maximum depth of a path."""
    tools: int
    """Number of tools that the tree used."""

    def score(self, path: EvidencePath, information: float) -> Score:
        """Return the score of a path whose content has this value."""
        depth = min(1.0, len(path.evidence) / max(1, self.depth))
        tools = len(path.tools) / max(1, min(len(path.evidence), self.tools))
        total = DEPTH * depth + INFORMATION * information + TOOLS * tools
        return Score(*(round(share, 4) for share in (total, depth, information, tools)))


class Selection(Struct, frozen=True):
    """Selected paths of a tree."""

    chosen: tuple[tuple[EvidencePath, Score], ...] = ()
    """Paths with their scores, in the order of selection."""
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Number of other paths, by reason."""


def select(tree: Tree, config: "SynthesisConfig") -> Selection:
    """Select the best paths whose content is not too similar.

    :raises ConfigurationError: if the user's own strategy can't be used.
    """
    paths, left_out = find_paths(tree, config.min_depth)
    if not paths:
        return Selection((), left_out)
    used = {node.action.tool for node in tree.nodes if node.action is not None}
    pick = find_strategy(config.selection_strategy)(tree, paths, Scale(config.max_depth, len(used)), config)
    remaining = paths
    chosen: list[tuple[EvidencePath, Score]] = []
    similar = 0
    while remaining and len(chosen) < config.max_selected_traj:
        best = pick(remaining, [path for path, _ in chosen])
        if best is None:
            break
        chosen.append(best)
        others = [path for path in remaining if path is not best[0]]
        remaining = [path for path in others if not _too_similar(path, best[0], config)]
        similar += len(others) - len(remaining)
    counts = {"too similar to a selected path": similar, "not among the best": len(remaining)}
    return Selection(tuple(chosen), left_out | {why: count for why, count in counts.items() if count})


def _too_similar(path: EvidencePath, other: EvidencePath, config: "SynthesisConfig") -> bool:
    return similarity(path.content, other.content) > config.path_similarity_threshold


def find_paths(tree: Tree, min_depth: int) -> tuple[list[EvidencePath], dict[str, int]]:
    """Return the path to each leaf, in path order, and the number of paths left out, by reason.

    A path ends at its last evidence. It is left out if it has fewer than `min_depth` pieces of evidence, or is a prefix of
    another path.
    """
    contents = {node.id: _content(node) for node in tree.nodes if _is_evidence(node)}
    ends = [_last_evidence(tree, leaf) for leaf in tree.leaves()]
    inner = {node.id for end in ends if end is not None for node in tree.path(end.id)[:-1]}
    paths: dict[str, EvidencePath] = {}
    left_out = {"no evidence": 0, "part of another path": 0, "too short": 0}
    for end in ends:
        if end is None:
            left_out["no evidence"] += 1
        elif end.id in inner or end.id in paths:
            left_out["part of another path"] += 1
        else:
            nodes = tree.path(end.id)[1:]
            evidence = tuple(node for node in nodes if _is_evidence(node))
            if len(evidence) < min_depth:
                left_out["too short"] += 1
                continue
            paths[end.id] = EvidencePath(
                leaf=end.id,
                nodes=nodes,
                evidence=evidence,
                content=_NOTHING.union(*(contents[node.id] for node in evidence)),
                words=sum(len(contents[node.id]) for node in evidence),
            )
    ordered = sorted(paths.values(), key=lambda path: [node.position for node in path.nodes])
    return ordered, {why: count for why, count in left_out.items() if count}


def join_paths(tree: Tree, ends: Sequence[str], max_depth: int) -> tuple[EvidencePath, Score]:
    """Return the paths to some nodes as one, with its score: their nodes in path order."""
    wanted = {node.id for end in ends for node in tree.path(end)[1:]}
    nodes = tuple(node for node in tree.nodes if node.id in wanted)
    evidence = tuple(node for node in nodes if _is_evidence(node))
    contents = [_content(node) for node in evidence]
    path = EvidencePath(
        leaf="+".join(ends),
        nodes=nodes,
        evidence=evidence,
        content=_NOTHING.union(*contents),
        words=sum(map(len, contents)),
    )
    used = {node.action.tool for node in tree.nodes if node.action is not None}
    return path, Scale(max_depth, len(used)).score(path, _fresh(path, frozenset()))


def similarity(content: Content, other: Content) -> float:
    """Return the share of common content, from 0 to 1."""
    common = len(content & other)
    every = len(content) + len(other) - common
    return common / every if every else 1.0


def _content(node: Node) -> Content:
    pairs = content_word_pairs(node.observation.text)
    # A picture counts as one item of content.
    pictures = node.observation.blobs
    return pairs.union((blob.hash, "") for blob in pictures) if pictures else pairs


def _is_evidence(node: Node) -> bool:
    return node.action is not None and node.verdict is Verdict.NEW


def _last_evidence(tree: Tree, leaf: Node) -> Node | None:
    return next((node for node in reversed(tree.path(leaf.id)) if _is_evidence(node)), None)


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
        selected = frozenset[tuple[str, str]]().union(*(path.content for path in chosen))
        return _best((path, scale.score(path, _fresh(path, selected))) for path in remaining)

    return pick


def _fresh(path: EvidencePath, selected: frozenset[tuple[str, str]]) -> float:
    return (len(path.content) - len(path.content & selected)) / max(1, path.words)


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
    return max(rated, key=lambda rating: rating[1].total)


BUILT_IN: Final[dict[str, Strategy]] = {"novelty": _novelty, "documented": _documented, "diverse": _diverse}
"""Built-in strategies by name."""


def find_strategy(name: str) -> Strategy:
    """Return the strategy of that name, or the user's function at `module:function`.

    :raises ConfigurationError: if there is none.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" not in name.strip(":"):
        near = get_close_matches(name, BUILT_IN, n=1)
        meant = f"did you mean {near[0]}?" if near else f"write {', '.join(BUILT_IN)} or module:function"
        raise ConfigurationError(f"selection_strategy: {name} is unknown; {meant}")
    try:
        strategy = import_object(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"selection_strategy: {error}") from None
    if not _is_strategy(strategy):
        raise ConfigurationError(f"selection_strategy: {name}: not a function")
    return _user(name, strategy)


def _is_strategy(candidate: object) -> TypeGuard[UserStrategy]:
    return callable(candidate)


def _user(name: str, function: UserStrategy) -> Strategy:
    def strategy(
        tree: Tree, paths: Sequence[EvidencePath], scale: Scale, config: "SynthesisConfig"
    ) -> Picker:
        try:
            returned = list(function(tree, paths, config))
        except Exception as error:  # boundary: a user's code may raise anything
            raise ConfigurationError(
                f"selection_strategy: {name}: raised {error_line(error)}; fix it"
            ) from error
        ranked = _ranked(name, returned, paths, scale)

        def pick(
            remaining: Sequence[EvidencePath], chosen: Sequence[EvidencePath]
        ) -> tuple[EvidencePath, Score] | None:
            left = {path.leaf for path in remaining}
            return next((choice for choice in ranked if choice[0].leaf in left), None)

        return pick

    return strategy


def _ranked(
    name: str, returned: list[int | float], paths: Sequence[EvidencePath], scale: Scale
) -> list[tuple[EvidencePath, Score]]:
    """Return the paths in the order of a user's function."""
    scored_paths = [(path, scale.score(path, _fresh(path, frozenset()))) for path in paths]
    if any(isinstance(value, float) for value in returned):
        if len(returned) != len(paths) or not all(0 <= value <= 100 for value in returned):
            raise ConfigurationError(
                f"selection_strategy: {name}: returned {len(returned)} scores for {len(paths)} paths; give one from 0 to 100 for each"
            )
        scored = [
            (path, replace(score, total=float(value)))
            for (path, score), value in zip(scored_paths, returned, strict=True)
        ]
        return sorted(scored, key=lambda value: -value[1].total)
    chosen = [index for index in returned if type(index) is int and 0 <= index < len(paths)]
    if len(chosen) != len(returned) or len(set(chosen)) != len(chosen):
        raise ConfigurationError(
            f"selection_strategy: {name}: returned neither distinct indices from 0 to {len(paths) - 1} nor scores"
        )
    return [scored_paths[index] for index in chosen]


_MIN_NAME = 3
"""Length from which an argument can name something that another observation has shown."""


def trimmed_path(tree: Tree, wanted: Collection[str]) -> tuple[str, ...]:
    """Return the nodes of the tree that yield the observations of others, with their prerequisites, the root first.

    A search that showed the name of a document precedes the call that reads it. A tool with state needs what was done before
    on its branch.

    :param wanted: ids of nodes.
    """
    positions = {node.id: position for position, node in enumerate(tree.nodes)}
    needed = set[str]()
    waiting = [node for node in tree.nodes if node.id in wanted]
    unnamed: list[list[Node]] = []
    while waiting or unnamed:
        while waiting:
            node = waiting.pop()
            if node.id in needed or node.action is None:
                continue
            needed.add(node.id)
            waiting += _earlier_calls(tree, node)
            unnamed += _showing(tree, node)
        unnamed = [showing for showing in unnamed if not any(call.id in needed for call in showing)]
        if unnamed:
            # One call may show several names; of equal ones, the first of the own branch.
            counts = Counter(call.id for showing in unnamed for call in showing)
            waiting.append(max(unnamed[0], key=lambda call: counts[call.id]))
    return (tree.nodes[0].id, *sorted(needed, key=positions.__getitem__))


def _earlier_calls(tree: Tree, node: Node) -> Iterator[Node]:
    """Yield the calls on whose files, variables or pages a call without sources may depend."""
    if node.observation.sources or node.action is None:
        return
    family = node.action.tool.partition("_")[0]
    for call in tree.path(node.id)[:-1]:
        if call.action is not None and call.action.tool.startswith(f"{family}_"):
            yield call


def _showing(tree: Tree, node: Node) -> Iterator[list[Node]]:
    """Yield, for each name in the arguments of a call, the earlier calls that show it; those of its branch come first."""
    branch = tree.path(node.id)[:-1]
    others = tree.nodes[: tree.nodes.index(node)] if node.observation.sources else ()
    elsewhere = [call for call in others if call.observation.sources and call not in branch]
    for name in _names(node):
        showing = [call for call in (*branch, *elsewhere) if call.action is not None and _shows(call, name)]
        if showing:
            yield showing


def _names(node: Node) -> Iterator[str]:
    """Yield the arguments of a call that may name something, other than words to search for."""
    for name, value in (node.action.arguments if node.action is not None else {}).items():
        values: Sequence[object] = value if is_list(value) else (value,)
        if name not in ("query", "queries", "q", "goal"):
            yield from (text for text in values if isinstance(text, str) and len(text) >= _MIN_NAME)


def _shows(node: Node, name: str) -> bool:
    if node.verdict is Verdict.ERROR:
        return False
    return (
        any(source.document == name for source in node.observation.sources) or name in node.observation.text
    )
