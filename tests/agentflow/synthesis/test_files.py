"""The files of a run: as documented, whole or not at all, the same whenever they are written."""

import json
import resource
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from agentflow.errors import ErrorKind, RunStopped, StopCause
from agentflow.synthesis import (
    PAIRS,
    REPORT,
    SURPLUS,
    TRAJECTORIES,
    TREES,
    Report,
    SeedResult,
    SynthesisConfig,
    TreeRecord,
    write_files,
    write_questions,
)
from agentflow.synthesis._files import tree_record
from agentflow.synthesis.pipeline import render_report
from agentflow.testing import ScriptedRoles
from agentflow.trace import Action, Failure, Seed, Tree, Verdict, tree_id
from tests.agentflow.synthesis._careless import Careless
from tests.agentflow.synthesis._grown import (
    FACTS,
    SEED,
    chain,
    failing_on,
    node,
    page,
    roles,
    tree,
)

CONFIG = SynthesisConfig()
OTHER = Seed(index=1, id="own_2", content="Explore Vessel Bay")


async def harvested(
    grown: Tree, asked: ScriptedRoles | None = None, config: SynthesisConfig = CONFIG
) -> SeedResult:
    """The result of that tree."""
    return await write_questions(grown, config, asked or roles(), page())


async def given(*entries: tuple[Seed, SeedResult]) -> AsyncIterator[tuple[Seed, SeedResult]]:
    for entry in entries:
        yield entry


async def written(
    folder: Path, *entries: tuple[Seed, SeedResult], config: SynthesisConfig = CONFIG
) -> Report:
    """Write the files of these harvests."""
    return await write_files(given(*entries), folder, config)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def held(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def shown(report: Report) -> str:
    console = Console(width=500)
    with console.capture() as captured:
        console.print(render_report(report))
    return captured.get()


@pytest.mark.promise("synthesis:files:pairs")
async def test_a_pair_is_written_as_documented(tmp_path: Path) -> None:
    result = await harvested(chain())
    await written(tmp_path, (SEED, result))
    pair = lines(tmp_path / PAIRS)[0]
    kept = result.pairs[0]
    own = result.trajectories[0].id
    assert list(pair) == [
        "question", "answer", "trajectory_id", "source_id", "qa_id", "reasoning_steps", "metadata"
    ]  # fmt: skip
    assert (pair["question"], pair["answer"]) == (kept.question, kept.answer)
    assert (pair["trajectory_id"], pair["source_id"], pair["qa_id"]) == (own, "seed_001", f"{own}_qa_0")
    assert pair["reasoning_steps"][0] == {
        "step": "The first keeper was Ada Holm.",
        "citations": [
            {
                "node_id": result.trajectories[0].nodes[1],
                "quote": "Its first keeper was Ada Holm",
                "start": 43,
                "end": 72,
            }
        ],
    }
    metadata = pair["metadata"]
    assert {name: metadata[name] for name in ("engine", "kind", "hops", "grounding", "tries", "known")} == {
        "engine": "offline", "kind": "bridge", "hops": 2, "grounding": "quoted", "tries": 1, "known": 0.0,
    }  # fmt: skip
    assert metadata["answer"] == {"kind": "entity", "name": "Jorun Pike"}
    assert metadata["asker"] == "A keeper who writes the history of the port."
    assert [(each["complete"], each["computed"]) for each in metadata["documents"]] == [(True, True)] * 3
    assert metadata["support"] == list(result.trajectories[0].nodes[1:])
    assert metadata["path"] == list(result.trajectories[0].nodes)
    checks = [vote["check"] for vote in metadata["votes"]]
    assert checks == ["one_document", "known", "evidence", "one_document"]
    computed = lines(tmp_path / PAIRS)[2]["reasoning_steps"][3]
    assert computed == {
        "step": "Between these years lie 33 years.",
        "citations": [],
        "computes": "years(s3, s1)",
    }
    assert (metadata["score"], metadata["trajectory_depth"]) == (result.trajectories[0].score.total, 3)


@pytest.mark.promise("synthesis:files:trajectories")
async def test_a_trajectory_is_written_as_documented(tmp_path: Path) -> None:
    grown = chain()
    await written(tmp_path, (SEED, await harvested(grown)))
    (trajectory,) = lines(tmp_path / TRAJECTORIES)
    assert list(trajectory)[:5] == ["trajectory_id", "source_id", "seed_data", "total_depth", "nodes"]
    assert (trajectory["seed_data"], trajectory["total_depth"]) == (SEED.content, 3)
    root, first, *_ = trajectory["nodes"]
    documented = ["node_id", "observation", "intent", "action", "parent_id", "children_ids", "depth"]
    assert list(root)[:7] == list(first)[:7] == documented
    assert {name: root[name] for name in documented[1:]} == {
        "observation": f"Starting point: {SEED.content}", "intent": "Initialize exploration", "action": None,
        "parent_id": None, "children_ids": [first["node_id"]], "depth": 0,
    }  # fmt: skip
    assert first["action"] == {"tool": "rag_search", "args": {"query": FACTS[0][:20]}}
    assert (first["parent_id"], first["observation"], first["verdict"]) == (root["node_id"], FACTS[0], "new")


@pytest.mark.promise("synthesis:files:trees")
async def test_the_whole_tree_is_written(tmp_path: Path) -> None:
    own = tree_id("run", SEED)
    failure = Failure(ErrorKind.TIMEOUT, "too slow")
    dead = node(own, (1,), "", verdict=Verdict.ERROR, failure=failure)
    grown = tree({(0,): FACTS[0], (0, 0): FACTS[1], (1,): dead}, stalled={"node_x": "nothing new to try"})
    await written(tmp_path, (SEED, await harvested(grown)))
    (record,) = lines(tmp_path / TREES)
    assert [one["node_id"] for one in record["nodes"]] == [one.id for one in grown.nodes]
    assert record["stalled"] == {"node_x": "nothing new to try"}
    assert record["nodes"][2]["failure"] == {"kind": "timeout", "message": "too slow"}


@pytest.mark.promise("synthesis:files:near-duplicates")
async def test_a_question_that_an_earlier_seed_asked_is_dropped_in_seed_order(tmp_path: Path) -> None:
    one, two = await harvested(chain()), await harvested(chain(seed=OTHER))
    report = await written(tmp_path, (SEED, one), (OTHER, two))
    assert {pair["source_id"] for pair in lines(tmp_path / PAIRS)} == {"seed_001"}
    assert (report.pairs, report.near_duplicates) == (len(one.pairs), len(two.pairs))
    assert len(lines(tmp_path / TRAJECTORIES)) == 2


@pytest.mark.promise("synthesis:files:near-duplicates")
async def test_a_question_in_other_words_about_the_same_documents_is_dropped(tmp_path: Path) -> None:
    one = await harvested(chain())
    other = tuple(
        replace(pair, question=f"Which {word}?") for pair, word in zip(one.pairs, "abc", strict=True)
    )
    report = await written(tmp_path, (SEED, one), (OTHER, replace(one, pairs=other)))
    assert (report.pairs, report.near_duplicates) == (len(one.pairs), len(other))
    apart = tuple(
        replace(pair, documents=tuple(replace(each, id=f"another {each.id}") for each in pair.documents))
        for pair in other
    )
    report = await written(tmp_path, (SEED, one), (OTHER, replace(one, pairs=apart)))
    assert (report.pairs, report.near_duplicates) == (len(one.pairs) + len(apart), 0)


@pytest.mark.promise("synthesis:files:same")
async def test_the_same_harvests_give_the_same_bytes(tmp_path: Path) -> None:
    entries = (SEED, await harvested(chain())), (OTHER, await harvested(chain(seed=OTHER)))
    await written(tmp_path / "a", *entries)
    await written(tmp_path / "b", *entries)
    await written(tmp_path / "b", *entries)
    for name in (PAIRS, TRAJECTORIES, TREES, REPORT):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert held(tmp_path / "b").keys() == {PAIRS, SURPLUS, TRAJECTORIES, TREES, REPORT}


@pytest.mark.promise("synthesis:files:atomic")
async def test_a_write_that_ends_early_leaves_the_old_files_and_nothing_else(tmp_path: Path) -> None:
    first = (SEED, await harvested(chain()))
    await written(tmp_path, first)
    before = held(tmp_path)

    async def broken() -> AsyncIterator[tuple[Seed, SeedResult]]:
        yield OTHER, await harvested(chain(seed=OTHER))
        raise RunStopped(StopCause.JOURNAL, "the database is gone")

    with pytest.raises(RunStopped, match="the database is gone"):
        await write_files(broken(), tmp_path, CONFIG)
    assert held(tmp_path) == before


@pytest.mark.promise("synthesis:files:atomic")
async def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    orphan = tmp_path / f".{PAIRS}.{2**22 + 1}.new"
    orphan.write_text("half a li")
    await written(tmp_path, (SEED, await harvested(chain())))
    assert not orphan.exists()


@pytest.mark.promise("synthesis:files:full-disk")
async def test_a_folder_that_can_not_be_written_stops_the_run_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunStopped) as raised:
        await written(tmp_path / "file" / "out", (SEED, await harvested(chain())))
    assert raised.value.cause is StopCause.JOURNAL
    assert "can't be written: Not a directory; " in raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.promise("synthesis:files:full-disk")
async def test_a_disk_that_takes_no_more_stops_the_run_and_leaves_the_old_files(tmp_path: Path) -> None:
    await written(tmp_path, (SEED, await harvested(chain())))
    before = held(tmp_path)
    other = await harvested(chain(seed=OTHER))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(RunStopped) as raised:
            await written(tmp_path, (OTHER, other))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.cause is StopCause.JOURNAL
    assert "can't be written: " in raised.value.message
    assert held(tmp_path) == before


@pytest.mark.promise("synthesis:report")
async def test_the_report_counts_written_and_dropped_items_with_reasons(tmp_path: Path) -> None:
    config = SynthesisConfig.model_validate(
        {
            "model_name": "big",
            "prices": {"input": 10, "output": 1000},
            "generator_model": {"model_name": "own"},
        }
    )
    first = await harvested(chain(), Careless(), config)
    second = await harvested(tree({(0,): FACTS[0]}, OTHER), config=config)
    lost = Seed(index=2, id="seed_003", content="lost")
    report = await written(
        tmp_path, (SEED, first), (OTHER, second), (lost, SeedResult(failure="no room")), config=config
    )
    pairs = len(first.pairs)
    assert report.engines == {
        "planner": "big", "verifier": "big", "generator": "own", "reader": "own", "learner": "big", "agent": "big"
    }  # fmt: skip
    assert (report.seeds, report.failed_seeds, report.trees, report.nodes) == (3, 1, 2, 4)
    assert report.verdicts == {"new": 4}
    assert (report.trajectories, report.selected_paths, report.joined_paths) == (1, 1, 0)
    assert report.left_out == {"too short": 1}
    assert (report.drafts, report.rejected) == (2 * pairs, {"form": pairs})
    assert report.passing == {"form": 0.5}
    assert report.kinds == {"bridge": 1, "computation": 1, "duration": 1}
    assert (report.pairs, report.documents, report.copies, report.repaired) == (pairs, 3, 0, pairs)
    assert (report.hops, report.naturalness, report.known) == ({"2": pairs}, 4.0, {"0": pairs})
    assert report.agreement == {"evidence": 1.0, "known": 1.0, "one_document": 1.0}
    samples = {check: sum(vote.samples for pair in first.pairs for vote in pair.votes if vote.check == check)
               for check in report.agreement}  # fmt: skip
    assert report.votes == samples
    assert report.rejection_examples["form"].startswith("the question refers to a text")
    assert (report.path_calls, report.trimmed_calls) == (3 * pairs, 1)
    assert (report.duplicates, report.why_empty) == (4, "")
    calls = sum(used.calls for used in report.usage.values())
    assert report.calls_per_pair == round(calls / pairs, 2) < 25
    assert report.usage["planner"].prompt_tokens == 600
    assert report.cost["planner"] == 0.066
    assert report.cost_per_pair == pytest.approx(sum(report.cost.values()) / pairs, abs=1e-6)
    assert report.prices_as_of == ""
    assert report.cost["reader"] == pytest.approx(report.usage["reader"].calls * 0.011)
    assert json.loads((tmp_path / REPORT).read_text())["failures_of_seeds"] == [
        {"source_id": "seed_003", "why": "no room"}
    ]
    text = shown(report)
    assert f"form {pairs}" in text
    assert f"{pairs} written" in text
    assert "no room" in text
    assert "by the prices of the settings" in text


@pytest.mark.promise("synthesis:report")
async def test_paths_that_join_branches_are_not_counted_as_selected(tmp_path: Path) -> None:
    branches = tree({(0,): FACTS[0], (1,): FACTS[1], (2,): FACTS[2]})
    config = SynthesisConfig(min_depth=1, max_selected_traj=1)
    report = await written(tmp_path, (SEED, await harvested(branches, config=config)), config=config)
    records = lines(tmp_path / TRAJECTORIES)
    joined = [record for record in records if record.get("joined")]
    assert report.pairs > 0
    assert report.selected_paths == 1
    assert report.joined_paths == len(joined) == len(records) - 1 > 0
    assert f"1 selected, {len(joined)} joined for questions that span branches" in shown(report)


@pytest.mark.promise("synthesis:report")
async def test_costs_by_built_in_prices_come_with_their_date(tmp_path: Path) -> None:
    config = SynthesisConfig(model_name="gpt-4.1")
    report = await written(tmp_path, (SEED, await harvested(chain(), config=config)), config=config)
    assert report.cost["planner"] == pytest.approx(3 * (100 * 2.0 + 10 * 8.0) / 1_000_000)
    assert report.prices_as_of == str(config.model.prices_as_of)
    assert f"list prices as of {report.prices_as_of}; `prices` in the settings overrides them" in shown(
        report
    )


def failing() -> Tree:
    """A tree whose every call failed."""
    own = tree_id("run", SEED)
    failure = Failure(ErrorKind.UNAVAILABLE, "the index\nis gone")
    return tree(
        {(place,): node(own, (place,), "", verdict=Verdict.ERROR, failure=failure) for place in range(2)}
    )


EMPTY: list[tuple[str, Iterable[SeedResult], str]] = [
    ("no seeds", [], "no seed was finished"),
    ("lost", [SeedResult(failure="no room")], "every seed failed: no room"),
    (
        "stalled",
        [SeedResult(tree=tree({}, stalled={"x": "model unavailable"}))],
        "no tree grew: model unavailable",
    ),
    (
        "tools",
        [SeedResult(tree=failing())],
        "all 2 tool calls failed, so there is no evidence: unavailable: the index is gone",
    ),
]


@pytest.mark.promise("synthesis:report:empty")
@pytest.mark.parametrize(("name", "harvests", "why"), EMPTY, ids=[case[0] for case in EMPTY])
async def test_without_a_pair_the_report_says_why(
    tmp_path: Path, name: str, harvests: Iterable[SeedResult], why: str
) -> None:
    report = await written(tmp_path, *((SEED, one) for one in harvests))
    assert report.why_empty == why
    assert f"Nothing was written: {why}" in shown(report)
    assert (tmp_path / PAIRS).read_bytes() == b""


@pytest.mark.promise("synthesis:report:empty")
@pytest.mark.parametrize(
    ("failing_calls", "settings", "why"),
    [
        (
            "none",
            {"min_depth": 4},
            "no path was selected (too short 1): a path needs 4 observations with something new; lower min_depth",
        ),
        ("none", {"min_documents": 9}, "the trees show 3 documents, and a question needs 9"),
        ("ProposalRequest", {}, "no draft was written: model calls failed (timeout 1)"),
        (
            "HiddenRequest",
            {"repair": False},
            "all 3 drafts were rejected, 3 by the check one_document: no reader answered",
        ),
    ],
)
async def test_without_a_pair_the_report_names_the_stage_that_rejected_everything(
    tmp_path: Path, failing_calls: str, settings: dict[str, Any], why: str
) -> None:
    config = SynthesisConfig.model_validate(settings)
    slow = Failure("timeout", "slow")
    asked = roles(fails=failing_on(failing_calls, slow))
    report = await written(tmp_path, (SEED, await harvested(chain(), asked, config)), config=config)
    assert report.why_empty.startswith(why)


@pytest.mark.promise("synthesis:report:empty")
async def test_the_report_names_trees_without_new_observations(tmp_path: Path) -> None:
    own = tree_id("run", SEED)
    grown = tree({(0,): node(own, (0,), "", verdict=Verdict.EMPTY)})
    report = await written(tmp_path, (SEED, await harvested(grown)))
    assert report.why_empty == "none of 1 observations contained anything new (empty 1)"


@pytest.mark.promise("synthesis:files:streamed")
async def test_harvests_are_held_one_at_a_time(tmp_path: Path) -> None:
    padding = " It was lit each evening by hand." * 3000
    body = msgspec.json.encode(await harvested(chain([fact + padding for fact in FACTS])))
    decoder = msgspec.json.Decoder(SeedResult)

    async def many() -> AsyncIterator[tuple[Seed, SeedResult]]:
        for index in range(100):
            yield replace(SEED, index=index), decoder.decode(body)

    tracemalloc.start()
    try:
        await write_files(many(), tmp_path, CONFIG)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(body)


@pytest.mark.promise("synthesis:files:nodes")
async def test_nodes_are_read_as_they_are_written_and_those_of_other_systems_too(tmp_path: Path) -> None:
    failure = Failure(ErrorKind.TIMEOUT, "too slow")
    dead = node(tree_id("run", SEED), (1,), "", verdict=Verdict.ERROR, failure=failure)
    grown = tree({(0,): FACTS[0], (0, 0): FACTS[1], (1,): dead})
    await written(tmp_path, (SEED, await harvested(grown)))
    (record,) = lines(tmp_path / TREES)
    read = msgspec.convert(record, TreeRecord).tree
    assert json.loads(msgspec.json.encode(tree_record(read))) == record
    assert (read.nodes[0].action, read.nodes[2].failure) == (None, failure)
    documented: dict[str, Any] = {
        "node_id": "node_002", "observation": "Search results", "intent": "Search", "depth": 1,
        "action": {"tool": "web_search", "args": {"query": "GDP"}}, "parent_id": "node_001", "children_ids": [],
    }  # fmt: skip
    [other] = msgspec.convert({"seed_data": "GDP", "nodes": [documented]}, TreeRecord).tree.nodes
    assert other.action == Action("web_search", {"query": "GDP"})
    assert (other.id, other.parent, other.depth) == ("node_002", "node_001", 1)
    assert (other.intent, other.observation.text) == ("Search", "Search results")
