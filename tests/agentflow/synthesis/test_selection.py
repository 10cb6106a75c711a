"""Selection of paths of a tree."""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentflow.errors import ConfigurationError
from agentflow.synthesis import SynthesisConfig
from agentflow.synthesis._selection import EvidencePath, Selection, find_paths, select, similarity
from agentflow.text import content_word_pairs
from agentflow.trace import Node, Tree, Verdict, tree_id
from tests.agentflow.synthesis._grown import SEED, chain, node, tree

OWN = tree_id("run", SEED)
STRATEGIES = ("novelty", "documented", "diverse")


def words(prefix: str, count: int = 30) -> str:
    """A text of its own."""
    return " ".join(f"{prefix}observation{number}" for number in range(count))


def judged(path: Sequence[int], verdict: Verdict, text: str = "other words") -> Node:
    """A node with that verdict."""
    return node(OWN, path, text, verdict=verdict)


def chosen(selection: Selection) -> list[str]:
    """The last nodes of the chosen paths."""
    return [path.leaf for path, _ in selection.chosen]


FAN: dict[tuple[int, ...], str] = {
    (0,): words("a"), (1,): words("b"), (2,): words("c"),
    (0, 0): words("aa"), (1, 0): words("bb", 60), (2, 0): words("cc", 90),
}  # fmt: skip
"""Three paths that have nothing in common."""


@pytest.mark.promise("synthesis:selection:evidence")
def test_a_path_is_cut_back_to_its_last_evidence() -> None:
    grown = tree({(0,): words("a"), (0, 0): words("b"), (0, 0, 0): judged((0, 0, 0), Verdict.ERROR)})
    (path,), left_out = find_paths(grown, 2)
    assert path.leaf == grown.nodes[2].id
    assert [one.depth for one in path.nodes] == [1, 2]
    assert left_out == {}


@pytest.mark.promise("synthesis:selection:evidence")
@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.NEW])
def test_only_new_observations_are_evidence(verdict: Verdict) -> None:
    grown = tree({(0,): judged((0,), verdict), (1,): words("a"), (1, 0): judged((1, 0), verdict)})
    assert find_paths(grown, 1)[1] == {"no evidence": 1}
    assert [len(path.evidence) for path in find_paths(grown, 1)[0]] == [1]


@pytest.mark.promise("synthesis:selection:evidence")
def test_a_path_without_enough_evidence_is_left_out() -> None:
    assert chosen(select(chain(), SynthesisConfig(min_depth=3))) != []
    too_deep = select(chain(), SynthesisConfig(min_depth=4))
    assert too_deep == Selection((), {"too short": 1})


@pytest.mark.promise("synthesis:selection:once")
def test_a_path_that_is_the_beginning_of_another_is_left_out() -> None:
    grown = tree(
        {
            (0,): words("a"),
            (0, 0): words("b"),
            (0, 1): words("c"),
            (0, 0, 0): judged((0, 0, 0), Verdict.REPEATS),
            (0, 0, 1): judged((0, 0, 1), Verdict.EMPTY),
            (0, 1, 0): words("d"),
            (0, 1, 1): judged((0, 1, 1), Verdict.OFF_TOPIC),
        }
    )
    paths, left_out = find_paths(grown, 1)
    assert [[one.position for one in path.nodes] for path in paths] == [[0, 0], [0, 1, 0]]
    assert left_out == {"part of another path": 2}


@pytest.mark.promise("synthesis:selection:most")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_at_most_the_configured_number_of_paths_is_selected(strategy: str) -> None:
    for most in range(5):
        config = SynthesisConfig(selection_strategy=strategy, max_selected_traj=most)
        selection = select(tree(FAN), config)
        assert len(selection.chosen) == min(most, 3)
        assert selection.left_out.get("not among the best", 0) == max(0, 3 - most)


@pytest.mark.promise("synthesis:selection:similar")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_paths_with_the_same_content_are_selected_once_whatever_their_node_ids(strategy: str) -> None:
    same = tree({(0,): words("a"), (1,): words("a"), (0, 0): words("b"), (1, 0): words("b")})
    config = SynthesisConfig(selection_strategy=strategy)
    assert chosen(select(same, config)) == [same.nodes[3].id]
    assert select(same, config).left_out == {"too similar to a selected path": 1}
    assert (
        len(select(same, SynthesisConfig(selection_strategy=strategy, path_similarity_threshold=1)).chosen)
        == 2
    )


@pytest.mark.promise("synthesis:selection:novelty")
def test_novelty_prefers_content_that_no_selected_path_has() -> None:
    shared = words("shared", 60)
    grown = tree(
        {
            (0,): words("a", 40), (1,): words("b", 40), (2,): words("c", 40),
            (0, 0): shared, (1, 0): shared, (2, 0): words("d", 40),
        }
    )  # fmt: skip
    config = SynthesisConfig(max_selected_traj=2, path_similarity_threshold=1)
    assert chosen(select(grown, config)) == [grown.nodes[4].id, grown.nodes[6].id]


@pytest.mark.promise("synthesis:selection:novelty")
def test_longer_observations_do_not_raise_the_score() -> None:
    longer = tree({(0,): words("a", 9), (1,): words("b") * 3, (0, 0): words("c", 9), (1, 0): words("d") * 3})
    assert chosen(select(longer, SynthesisConfig(max_selected_traj=1))) == [longer.nodes[3].id]
    documented = SynthesisConfig(max_selected_traj=1, selection_strategy="documented")
    assert chosen(select(longer, documented)) == [longer.nodes[4].id]


@pytest.mark.promise("synthesis:selection:documented")
def test_the_documented_score_is_depth_normalised_average_length_and_tools() -> None:
    config = SynthesisConfig(selection_strategy="documented", max_depth=4)
    scores = {path.leaf: score for path, score in select(tree(FAN), config).chosen}
    ordered = [scores[one.id] for one in tree(FAN).nodes[4:]]
    assert [score.information for score in ordered] == [0, pytest.approx(0.5, abs=0.03), 1]
    assert [(score.depth, score.tools) for score in ordered] == [(0.5, 1)] * 3
    assert ordered[2].total == 40 * 0.5 + 30 + 30


@pytest.mark.promise("synthesis:selection:diverse")
def test_diverse_takes_the_path_farthest_from_selected_ones() -> None:
    grown = tree(
        {
            (0,): words("a"), (1,): words("a"), (2,): words("z"),
            (0, 0): words("b"), (1, 0): words("b", 40), (2, 0): words("y"),
        }
    )  # fmt: skip
    config = SynthesisConfig(selection_strategy="diverse", max_selected_traj=2, path_similarity_threshold=1)
    assert grown.nodes[6].id in chosen(select(grown, config))


@pytest.mark.promise("synthesis:selection:score")
def test_a_path_with_more_tools_has_a_better_score() -> None:
    mixed: dict[tuple[int, ...], str | Node] = {
        path: node(OWN, path, text, tool="code_run" if path == (1, 0) else "rag_search")
        for path, text in FAN.items()
    }
    config = SynthesisConfig(max_selected_traj=1)
    grown = tree(mixed)
    assert chosen(select(grown, config)) == [grown.nodes[5].id]


TREES = st.dictionaries(
    st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple),
    st.tuples(st.text("abcdef 1é東", max_size=60), st.sampled_from(Verdict), st.sampled_from(["x_a", "x_b"])),
    max_size=14,
)


def grown_from(parts: dict[tuple[int, ...], tuple[str, Verdict, str]]) -> Tree:
    """A tree of those nodes whose parents are there."""
    kept = {path for path in parts if all(path[:end] in parts for end in range(1, len(path)))}
    return tree(
        {path: node(OWN, path, parts[path][0], verdict=parts[path][1], tool=parts[path][2]) for path in kept}
    )


@pytest.mark.promise("synthesis:selection:score")
@given(TREES, st.sampled_from(STRATEGIES), st.floats(0, 1))
def test_scores_are_from_0_to_100_and_selected_paths_are_not_too_similar(
    parts: dict[tuple[int, ...], tuple[str, Verdict, str]], strategy: str, threshold: float
) -> None:
    config = SynthesisConfig(selection_strategy=strategy, path_similarity_threshold=threshold, min_depth=1)
    selection = select(grown_from(parts), config)
    for index, (path, score) in enumerate(selection.chosen):
        assert 0 <= score.total <= 100
        assert all(0 <= share <= 1 for share in (score.depth, score.information, score.tools))
        assert all(
            similarity(path.content, other.content) <= threshold for other, _ in selection.chosen[:index]
        )
        assert path.evidence[-1].id == path.leaf
    leaves = sum(1 for one in grown_from(parts).leaves() if one.parent is not None)
    assert len(selection.chosen) + sum(selection.left_out.values()) == max(leaves, 1)


@pytest.mark.promise("synthesis:selection:similar")
@given(TREES, st.sampled_from(STRATEGIES), st.floats(0, 1))
def test_the_best_path_is_always_selected_and_no_threshold_drops_nothing(
    parts: dict[tuple[int, ...], tuple[str, Verdict, str]], strategy: str, threshold: float
) -> None:
    def first(value: float) -> Selection:
        config = SynthesisConfig(
            selection_strategy=strategy, path_similarity_threshold=value, min_depth=1, max_selected_traj=99
        )
        return select(grown_from(parts), config)

    assert chosen(first(threshold))[:1] == chosen(first(1))[:1]
    assert set(chosen(first(threshold))) <= set(chosen(first(1)))
    assert "too similar to a selected path" not in first(1).left_out


@pytest.mark.promise("synthesis:selection:order")
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(order=st.permutations(range(3)))
def test_the_order_of_nodes_does_not_matter(strategy: str, order: list[int]) -> None:
    config = SynthesisConfig(selection_strategy=strategy, max_selected_traj=2)
    grown = tree(FAN)
    root, *nodes = grown.nodes
    moved = replace(
        grown, nodes=(root, *(nodes[index] for index in order), *(nodes[3 + index] for index in order))
    )
    assert chosen(select(moved, config)) == chosen(select(grown, config))


@pytest.mark.promise("synthesis:selection:order")
def test_ties_are_broken_by_the_order_of_paths() -> None:
    even = tree({(0,): words("a"), (1,): words("b"), (0, 0): words("c"), (1, 0): words("d")})
    for strategy in STRATEGIES:
        config = SynthesisConfig(selection_strategy=strategy, max_selected_traj=1)
        assert chosen(select(even, config)) == [even.nodes[3].id]


UserFunction = Callable[[Tree, Sequence[EvidencePath], SynthesisConfig], Sequence[object]]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[[UserFunction], SynthesisConfig]:
    """Settings with a function of the user's own."""

    def install(function: UserFunction) -> SynthesisConfig:
        module = ModuleType("own_strategy")
        module.__dict__["choose"] = function
        monkeypatch.setitem(sys.modules, "own_strategy", module)
        return SynthesisConfig(selection_strategy="own_strategy:choose")

    return install


@pytest.mark.promise("synthesis:selection:own")
def test_a_user_function_may_return_indices_or_scores(
    own: Callable[[UserFunction], SynthesisConfig],
) -> None:
    grown = tree(FAN)
    last, first = grown.nodes[6].id, grown.nodes[4].id
    assert chosen(select(grown, own(lambda tree, paths, config: [2, 0]))) == [last, first]
    scored = select(grown, own(lambda tree, paths, config: [10.0, 50.0, 90.0]))
    assert [score.total for _, score in scored.chosen] == [90, 50, 10]
    assert chosen(scored)[0] == last
    assert select(grown, own(lambda tree, paths, config: [])).chosen == ()


@pytest.mark.promise("synthesis:selection:own")
@pytest.mark.parametrize(
    "said", [[3], [-1], [0, 0], [True], ["a"], [0.5], [0.0, 1.0, 101.0], [float("nan")] * 3]
)
def test_an_invalid_return_value_of_a_user_function_gives_one_line(
    own: Callable[[UserFunction], SynthesisConfig], said: list[object]
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^selection_strategy: own_strategy:choose: returned [^\n]*$"
    ):
        select(tree(FAN), own(lambda tree, paths, config: said))


@pytest.mark.promise("synthesis:selection:own")
def test_an_error_of_a_user_function_gives_one_line(
    own: Callable[[UserFunction], SynthesisConfig],
) -> None:
    def broken(tree: Tree, paths: Sequence[EvidencePath], config: SynthesisConfig) -> Sequence[object]:
        raise KeyError("two\nlines")

    with pytest.raises(
        ConfigurationError, match=r"^selection_strategy: own_strategy:choose: raised KeyError: [^\n]*$"
    ):
        select(tree(FAN), own(broken))


def test_texts_with_the_same_content_are_similar_and_others_are_not() -> None:
    assert similarity(content_word_pairs(words("a")), content_word_pairs(words("a"))) == 1
    assert similarity(content_word_pairs(words("a")), content_word_pairs(words("b"))) == 0
    assert similarity(content_word_pairs("東京は日本の首都"), content_word_pairs("東京は日本の都市")) > 0.4
