"""Score of the documents that episodes have read, on the results of real tools."""

from pathlib import Path

import msgspec
import pytest

from agentflow.learner import EvidenceSettings
from agentflow.questions import documents_of
from agentflow.scoring import evidence_score
from agentflow.trace import Action, ActionOutcome, Ending, Episode, Node, Observation, Text
from tests.agentflow.scoring._reading import episode_of, get, search, task_with
from tests.agentflow.team._solving import Book

AGENTS = ["team", "single"]
LONG = {
    name: f"The {name} of the harbour. " + f"Records of the {name} are kept in the hall. " * 60
    for name in ("lamp", "bell", "rope", "mast")
}
"""Documents of 2,500 characters: a hit of a search shows at most 500."""


@pytest.mark.promise("training:evidence")
@pytest.mark.parametrize("agent", AGENTS)
async def test_documents_that_tools_showed_count_and_those_in_the_answer_do_not(agent: str) -> None:
    needed = ["needle-light", "morning-toll", "kelder-bridge"]
    episode = await episode_of([get("needle-light"), get("ossel")], needed, agent=agent)
    # One of three needed documents was found, and two were read: 5 · 1 / (4 · 3 + 2).
    assert evidence_score(episode) == 5 / 14
    assert evidence_score(episode, beta=1) == 2 / 5


@pytest.mark.promise("training:evidence")
@pytest.mark.parametrize("agent", AGENTS)
async def test_a_document_that_is_read_repeatedly_counts_once(agent: str) -> None:
    actions = [get("needle-light"), get("needle-light"), get("needle-light", start=100)]
    assert evidence_score(await episode_of(actions, ["needle-light"], agent=agent)) == 1.0


@pytest.mark.promise("training:evidence")
async def test_reading_everything_costs_precision() -> None:
    needed = ["needle-light", "ossel"]
    precise = await episode_of([get("needle-light"), get("ossel")], needed)
    others = ["quillan", "skarra", "tollen", "maddon", "mossing", "sandrell"]
    everything = await episode_of([get(id) for id in (*needed, *others)], needed)
    assert (evidence_score(precise), evidence_score(everything)) == (1.0, 10 / 16)


@pytest.mark.promise("training:evidence")
@pytest.mark.parametrize("agent", AGENTS)
async def test_hits_that_a_search_only_lists_are_not_read(agent: str, tmp_path: Path) -> None:
    listed = await episode_of(
        [search("records hall harbour", 4)], ["lamp", "bell"], agent=agent, corpus=LONG, folder=tmp_path
    )
    sources = listed.turns[0].sources
    assert sources is not msgspec.UNSET
    assert {source.document for source in sources} == set(LONG)
    assert evidence_score(listed) == 0.0
    opened = [search("records hall harbour", 4), get("lamp", length=1_200)]
    episode = await episode_of(opened, ["lamp", "bell"], agent=agent, corpus=LONG, folder=tmp_path)
    assert evidence_score(episode) == 5 / 9


@pytest.mark.promise("training:evidence")
async def test_hits_that_show_most_of_their_documents_are_read() -> None:
    episode = await episode_of([search("Needle Light", 3)], ["needle-light"])
    assert evidence_score(episode) == 5 / (4 + 3)


@pytest.mark.promise("training:evidence")
async def test_only_what_is_left_of_a_result_after_its_cut_is_read(tmp_path: Path) -> None:
    actions = [search("records hall harbour", 4)]
    whole = await episode_of(actions, ["bell"], corpus=LONG, folder=tmp_path)
    cut = await episode_of(actions, ["bell"], corpus=LONG, folder=tmp_path, max_observation_chars=200)
    [shown, windows] = [episode.turns[0].sources for episode in (whole, cut)]
    assert shown is not msgspec.UNSET
    assert windows is not msgspec.UNSET
    assert sum(source.end - source.start for source in windows) < 250
    assert sum(source.end - source.start for source in shown) > 1_000
    for episode in (whole, cut):
        [turn] = episode.turns
        assert turn.sources is not msgspec.UNSET
        for source in turn.sources:
            text = LONG[source.document]
            assert (
                turn.result[source.start : source.end] == text[source.offset :][: source.end - source.start]
            )


@pytest.mark.promise("training:evidence")
async def test_a_resumed_episode_has_read_the_same() -> None:
    book, needed = Book(), ["needle-light", "ossel"]
    first = await episode_of([get("ossel")], needed, page=book.open())
    again = await episode_of([get("ossel")], needed, page=book.open())
    assert first.turns == again.turns
    assert evidence_score(again) == 5 / 9


@pytest.mark.promise("training:evidence")
async def test_pairs_name_copies_and_results_of_calls() -> None:
    documents = [
        {"id": "ossel-mirror", "title": "Ossel", "complete": True, "copies": ["ossel"]},
        {"id": "sql_query({})", "title": "", "complete": True, "computed": True},
    ]
    assert evidence_score(await episode_of([get("ossel")], documents)) == 1.0
    only_computed = await episode_of([get("ossel")], documents[1:])
    assert evidence_score(only_computed) is None
    assert only_computed.turns[0].sources is msgspec.UNSET


@pytest.mark.promise("training:evidence")
@pytest.mark.parametrize(
    ("start", "expected"), [(0, 5 / 9), (1_500, 5 / 9), (700, 0.0)], ids=["first", "second", "between"]
)
async def test_sections_of_one_document_are_found_by_their_places(
    start: int, expected: float, tmp_path: Path
) -> None:
    needed = ["lamp#100", "lamp#1600"]
    episode = await episode_of([get("lamp", start=start, length=500)], needed, corpus=LONG, folder=tmp_path)
    assert evidence_score(episode) == expected


@pytest.mark.promise("training:evidence")
async def test_sections_that_a_synthesis_needs_of_a_manual_are_found_by_reading_their_passages(
    tmp_path: Path,
) -> None:
    parts = (f"## Part {number}\n\n" + f"Pump {number} has {number} valves. " * 30 for number in range(9))
    (tmp_path / "manual.md").write_text("# Manual\n\n" + "\n\n".join(parts), encoding="utf-8")
    backends = {"document": {"folder": str(tmp_path)}}
    grown = [Action("document_search", {"query": "pump 3"}), Action("document_read", {"start": 3_000})]
    tree = await episode_of(grown, ["manual.md"], backends=backends)
    nodes = [
        Node(
            id=str(turn.number),
            action=turn.action,
            outcome=ActionOutcome(
                Observation((Text(turn.result),), () if turn.sources is msgspec.UNSET else turn.sources)
            ),
        )
        for turn in tree.turns
    ]
    needed = [document.id for document in documents_of(nodes)][2:4]
    assert all(id.startswith("manual.md#") for id in needed)
    again = [Action("document_search", {"query": "pump 3", "max_results": 2})]
    starts = [int(id.partition("#")[2]) for id in needed]
    read = [
        Action("document_read", {"start": start + moved, "end": start + 300})
        for start, moved in zip(starts, (0, 30), strict=True)
    ]
    assert evidence_score(await episode_of(read, needed, backends=backends)) == 1.0
    assert evidence_score(await episode_of(read[:1], needed, backends=backends)) == 5 / 9
    searched = evidence_score(await episode_of(again, needed, backends=backends))
    assert searched is not None
    assert 0 < searched < 1


@pytest.mark.promise("training:evidence")
@pytest.mark.parametrize(
    "documents",
    [
        None,
        [],
        {},
        "needle-light",
        7,
        [7],
        [""],
        [{"title": "Ossel"}],
        [{"id": 7}],
        [{"id": "a", "copies": "b"}],
    ],
    ids=repr,
)
async def test_tasks_that_name_no_documents_have_no_score_and_keep_nothing(documents: object) -> None:
    episode = await episode_of([get("ossel")], documents)
    assert evidence_score(episode) is None
    assert b"sources" not in msgspec.json.encode(episode)


@pytest.mark.promise("training:evidence")
async def test_unknown_names_are_needed_but_never_found() -> None:
    needed = [
        "ossel",
        "no such document",
        "ossel#99999999999999999999",
        "#",
        "\ud800".encode("utf-8", "replace").decode(),
    ]
    episode = await episode_of([get("ossel")], needed)
    assert evidence_score(episode) == 5 / (4 * 5 + 1)


@pytest.mark.promise("training:evidence")
async def test_an_episode_that_read_nothing_has_score_0_and_one_that_tells_nothing_has_none() -> None:
    assert evidence_score(Episode(task=task_with(["ossel"]), agent="team", ending=Ending.ANSWERED)) == 0.0
    nothing = await episode_of([search("zzzz")], ["ossel"])
    assert (nothing.turns[0].sources, evidence_score(nothing)) == ((), 0.0)
    recorded_without = await episode_of([get("ossel")], None)
    untold = msgspec.structs.replace(recorded_without, task=task_with(["ossel"]))
    assert evidence_score(untold) is None


@pytest.mark.promise("training:evidence")
def test_the_default_reward_is_that_of_longrlvr() -> None:
    for score in (0.0, 0.5, 1.0):
        for evidence in (0.0, 5 / 9, 1.0):
            published = score + 0.1 * evidence + 0.9 * score * evidence
            assert EvidenceSettings().reward(score, evidence) == pytest.approx(published, abs=1e-15)
    assert EvidenceSettings(weight=0.5, unconditional=1.0).reward(0.0, 0.5) == 0.25
    # A reward may be any number; evidence never makes a bad one worse.
    assert EvidenceSettings().reward(-2.0, 1.0) == -1.9
