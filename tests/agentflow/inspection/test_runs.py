"""Reading real runs: a synthesis, a rollout, a training."""

import json
from pathlib import Path

import anyio
import pytest

from agentflow.inspection import RunKind, RunReader, WorkState, open_runs
from agentflow.learner import Batch, Group
from agentflow.learner._checkpoints import RolloutStore
from agentflow.sandbox import register_api_tool
from agentflow.sandbox._api_tools import registered_tools
from tests._reasoners import reasoning_endpoint
from tests.agentflow.inspection._journals import digests
from tests.agentflow.learner.test_token_page import samples, write_run
from tests.agentflow.rollouts import _rollouts as rollouts
from tests.agentflow.synthesis import _runs as syntheses
from tests.agentflow.team.test_long_episodes import ENTRIES, Reader, served


@pytest.fixture(scope="module")
def synthesis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished synthesis."""
    folder = tmp_path_factory.mktemp("inspected") / "synthesis"
    anyio.run(syntheses.run_to_the_end, syntheses.config_for(folder, number_of_seed=1))
    return folder


def first_run(place: Path) -> RunReader:
    """Return the only run of a folder."""
    collection = open_runs(place)
    (summary,) = collection.runs()
    return collection.run(summary.id)


@pytest.mark.promise("inspection:trees", "inspection:tools", "inspection:unchanged")
def test_the_tree_of_a_synthesis_is_that_of_its_files(synthesis: Path) -> None:
    before = digests(synthesis)
    reader = first_run(synthesis)
    summary = reader.summary()
    assert (summary.kind, summary.state, summary.seeds.done) == (RunKind.SYNTHESIS, WorkState.DONE, 1)
    assert summary.started and summary.models["planner"] == "offline" and summary.usage["planner"].calls > 0
    assert {"rag_search", "rag_get"} == {tool.name for tool in reader.tools()}
    assert all(tool.schema["properties"] for tool in reader.tools())
    (written,) = [json.loads(line) for line in (synthesis / "trees.jsonl").read_text().splitlines()]
    (seed,) = reader.seeds()
    skeleton = reader.skeleton(seed.id)
    nodes = [reader.node(seed.id, spot) for spot in skeleton.spots]
    assert [node.id for node in nodes] == [node["node_id"] for node in written["nodes"]]
    assert [node.verdict for node in nodes] == [node["verdict"] for node in written["nodes"]]
    assert [node.parts[0].text for node in nodes[1:]] == [
        node["observation"] for node in written["nodes"][1:]
    ]
    assert [node.arguments for node in nodes[1:]] == [node["action"]["args"] for node in written["nodes"][1:]]
    letters = {"new": "n", "repeats": "r", "empty": "e", "error": "x", "off_topic": "o"}
    assert skeleton.marks == "".join(letters[node.verdict] for node in nodes)
    rows = reader.nodes(seed.id, skeleton.spots)
    assert [(row.tool, row.children) for row in rows] == [(node.tool, node.children) for node in nodes]
    pairs = [json.loads(line) for line in (synthesis / "synthesized_qa.jsonl").read_text().splitlines()]
    answers = {answer.id: answer for answer in reader.results(seed.id).answers}
    assert pairs and all(answers[pair["qa_id"]].answer == pair["answer"] for pair in pairs)
    cited = {
        (citation.pair, citation.quote): node.parts[0].text[citation.start : citation.end]
        for node in nodes
        for citation in node.citations
    }
    assert cited and all(quote == shown for (_, quote), shown in cited.items())
    assert digests(synthesis) == before


@pytest.mark.promise("inspection:episodes", "inspection:tools")
async def test_the_turns_of_a_rollout_are_those_of_its_files(tmp_path: Path) -> None:
    config = rollouts.config_for(tmp_path / "out")
    await rollouts.run_to_the_end(config, rollouts.some_tasks(2))
    reader = first_run(tmp_path / "out")
    assert reader.summary().kind is RunKind.ROLLOUT
    results = {line["task_id"]: line for line in rollouts.lines(tmp_path / "out", "results.jsonl")}
    trajectories = {line["task_id"]: line for line in rollouts.lines(tmp_path / "out", "trajectories.jsonl")}
    assert reader.tools() and [seed.task for seed in reader.seeds()] == list(results)
    for seed in reader.seeds():
        result, written = results[seed.task], trajectories[seed.task]["nodes"][1:]
        assert (seed.score, seed.answer, seed.nodes) == (
            result["score"],
            result["answer"],
            result["tool_calls"],
        )
        skeleton = reader.skeleton(seed.id)
        nodes = [reader.node(seed.id, spot) for spot in skeleton.spots[1:]]
        assert [(node.tool, node.arguments) for node in nodes] == [
            (node["action"]["tool"], node["action"]["args"]) for node in written
        ]
        assert [row.spot for row in reader.children(seed.id, "")] == ["0"]
        assert all(call.role for node in nodes for call in node.calls)
        (answer,) = reader.results(seed.id).answers
        assert (answer.answer, list(answer.references)) == (result["answer"], result["references"])
    assert reader.search("Needle")[0].seed == reader.seeds()[0].id


@pytest.mark.promise("inspection:episodes")
async def test_a_lost_turn_and_a_compaction_are_shown(tmp_path: Path) -> None:
    async with reasoning_endpoint("agentflow-planner-7b") as endpoint:
        endpoint.careless = 1
        config = rollouts.config_for(
            tmp_path / "team", base_url=endpoint.url, model_name="agentflow-planner-7b", planner_format="labelled", max_attempts=1
        )  # fmt: skip
        await rollouts.run_to_the_end(config, rollouts.some_tasks(1))
    reader = first_run(tmp_path / "team")
    (seed,) = reader.seeds()
    lost = reader.node(seed.id, "0")
    assert lost.failure is not None and lost.verdict == "error"
    assert lost.failure.message == "the answer has no 'Tool Name:'; it reads 'I would search.'"
    assert lost.calls[0].text == "I would search."
    assert reader.children(seed.id, "")[0].line == lost.failure.message
    assert reader.node(seed.id, "0-0").tool == "rag_search"

    before = dict(registered_tools)

    @register_api_tool("canned:show", read_only=True)
    def show(name: str) -> str:
        """Show a text.

        :param name: which
        """
        return ENTRIES[name]

    assert callable(show)
    try:
        async with served(Reader(16)) as pages:
            config = rollouts.config_for(
                tmp_path / "single", base_url=pages.url, model_name="reader", agent="single", available_tools=["canned:show"],
                context_tokens=1_600, max_turns=100,
            )  # fmt: skip
            await rollouts.run_to_the_end(config, rollouts.some_tasks(1))
    finally:
        registered_tools.clear()
        registered_tools.update(before)
    reader = first_run(tmp_path / "single")
    (seed,) = reader.seeds()
    assert len(reader.skeleton(seed.id).spots) == 17
    [compaction] = reader.node(seed.id, "").calls
    assert (compaction.key, compaction.role) == ("try1/compaction/1", "agent")
    assert compaction.text.startswith('"I have read up to page')
    assert "will be replaced by your summary" in str(reader.call(seed.id, compaction.key))


@pytest.mark.promise("inspection:trainings")
def test_the_episodes_of_a_training_have_their_rewards_tokens_and_advantages(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "training")
    (folder / "metrics.jsonl").write_text(
        '{"step": 1, "reward": 0.5, "loss": null, "episodes/failed_time": 2}\n{"step', encoding="utf-8"
    )
    before = digests(folder)
    reader = first_run(folder)
    summary = reader.summary()
    assert (summary.kind, summary.state, summary.seeds.done) == (RunKind.TRAINING, WorkState.STOPPED, 6)
    assert summary.failures == {"time": 2}
    assert [(line.step, line.figures["loss"], line.figures["reward"]) for line in reader.metrics()] == [
        (1, None, 0.5)
    ]
    seeds = reader.seeds()
    assert [seed.score for seed in seeds] == [sample.reward for sample in samples()]
    assert [seed.id for seed in reader.seeds(after=seeds[3].id)] == [seed.id for seed in seeds[4:]]
    first = seeds[0]
    assert reader.skeleton(first.id).spots == ("", "0", "0-0", "0-1")
    rows = reader.tokens(first.id)
    trained = [piece for row in rows for piece in row.pieces if piece.kind == "trained"]
    assert sum(len(piece.ids) for piece in trained) == sum(len(call.sampled) for call in samples()[0].calls)
    assert all(piece.advantage is not None and len(piece.logprobs) == len(piece.ids) for piece in trained)
    assert reader.node(first.id, "0-1").calls[0].sampled == 1
    assert reader.call(first.id, "1").prompt[0].text
    assert [hit.spot for hit in reader.search("sat", seed=seeds[1].id)] == []
    cursor = reader.changes().cursor
    assert reader.changes(cursor).steps is False
    RolloutStore(folder / "rollouts").write(
        Batch(step=2, version=1, taken=2, groups=(Group(number=1, name="t"),))
    )
    assert reader.changes(cursor).steps is True
    assert digests(folder) == before
    with pytest.raises(KeyError):
        reader.node("9.0.x", "")
