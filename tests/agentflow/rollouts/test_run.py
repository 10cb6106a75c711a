"""A rollout: run, gone on with, refused, stopped; tried again; its files."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs

from agentflow import quick_rollout, rollout
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.learner.data import read_conversations
from agentflow.rollouts import RESULTS, SUMMARY, TRAJECTORIES, RolloutRun, aquick_rollout, arollout
from agentflow.rollouts.analysis import summary_card
from agentflow.runs import Phase
from agentflow.sandbox import register_api_tool
from agentflow.sandbox._api_tools import registered_tools
from agentflow.testing import fake_endpoint
from mcp_servers import HttpOptions, ToolTable, load_backend
from tests.agentflow.rollouts._rollouts import (
    assigned,
    config_for,
    contents,
    lines,
    run_to_the_end,
    some_tasks,
)
from tests.agentflow.telemetry._collected import attributes, collected, trace_of
from tests.mcp_servers._counter import PIXEL
from tests.mcp_servers._serving import serving

FILES = (RESULTS, TRAJECTORIES)


class Shelf:
    """A tool without state that tells the same each time; remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.then: Callable[[], None] = lambda: None
        self.broken = False
        self.text = ""

    def look(self, query: str) -> str:
        self.calls.append(query)
        self.then()
        if self.broken:
            raise OSError("the shelf is gone")
        return self.text or f"{query} is a thing of the shelf, number {len(query)}."


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    before = dict(registered_tools)
    shelf = Shelf()

    @register_api_tool("shelf:search", read_only=True)
    def search(query: str) -> str:
        """Search for something.

        :param query: what
        """
        return shelf.look(query)

    assert callable(search)
    yield shelf
    registered_tools.clear()
    registered_tools.update(before)


@pytest.mark.promise("rollout:run")
async def test_a_rollout_answers_every_task_scores_it_and_writes_its_files(tmp_path: Path) -> None:
    run, summary = await run_to_the_end(config_for(tmp_path))
    assert (summary.tasks, summary.results, summary.failed) == (4, 4, 0)
    assert summary.score is not None and summary.interval is not None
    assert summary.interval.low <= summary.score <= summary.interval.high
    results = lines(tmp_path, RESULTS)
    assert [result["task_id"] for result in results] == ["q1", "q2", "q3", "q4"]
    assert sum(result["score"] for result in results) / 4 == pytest.approx(summary.score)
    assert summary.score > 0, "the offline engine finds some of it in the corpus"
    assert json.loads((tmp_path / SUMMARY).read_text())["tasks"] == 4
    assert run.status().phase is Phase.DONE


@pytest.mark.promise("rollout:files")
async def test_trajectories_have_the_format_of_synthesis_and_contain_every_call(tmp_path: Path) -> None:
    await run_to_the_end(config_for(tmp_path), some_tasks(1))
    (record,) = lines(tmp_path, TRAJECTORIES)
    (result,) = lines(tmp_path, RESULTS)
    nodes = record["nodes"]
    assert nodes[0]["action"] is None and nodes[0]["parent_id"] is None
    assert [node["parent_id"] for node in nodes[1:]] == [node["node_id"] for node in nodes[:-1]]
    assert nodes[1]["action"]["tool"] == "rag_search"
    assert len(record["exchanges"]) == sum(result["calls"].values())
    assert record["answer"] == result["answer"]
    assert not any("seconds" in exchange for exchange in record["exchanges"])


@pytest.mark.promise("rollout:same")
async def test_the_same_tasks_give_the_same_bytes_at_any_concurrency(tmp_path: Path) -> None:
    await run_to_the_end(config_for(tmp_path / "one", max_workers=1))
    await run_to_the_end(config_for(tmp_path / "many", max_workers=8))
    assert contents(tmp_path / "one", *FILES) == contents(tmp_path / "many", *FILES)


@pytest.mark.promise("rollout:resume")
async def test_a_second_run_has_nothing_to_do_and_accepts_more_tasks(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    await run_to_the_end(config, some_tasks(2))
    before = contents(tmp_path, *FILES)
    run, _ = await run_to_the_end(config, some_tasks(2))
    assert run.nothing_to_do
    assert contents(tmp_path, *FILES) == before
    run, summary = await run_to_the_end(config, some_tasks(3))
    assert not run.nothing_to_do
    assert summary.tasks == 3
    assert (tmp_path / RESULTS).read_bytes().startswith(before[RESULTS])


@pytest.mark.promise("tracing:resume")
@pytest.mark.promise("tracing:scores")
async def test_a_resumed_rollout_emits_no_effect_and_no_score_twice(shelf: Shelf, tmp_path: Path) -> None:
    config = config_for(tmp_path, available_tools=["shelf:search"], max_workers=1)
    run, asked = RolloutRun(config), len(shelf.calls)
    shelf.then = lambda: run.stop("a test") if len(shelf.calls) == asked + 4 else None
    with collected() as found:
        with pytest.raises(RunStopped):
            await run.run(assigned(config))
        before = found.all
        await RolloutRun(config).run(assigned(config))
    assert 0 < len(before) < len(found.all)
    effects = [
        (trace_of(span), span.name, effect)
        for span in found.all
        if (effect := attributes(span).get("agentflow.effect"))
    ]
    assert len(effects) == len(set(effects))
    tasks = [span for span in found.all if "agentflow.seed" in attributes(span)]
    assert sorted(str(attributes(span)["agentflow.seed"]) for span in tasks) == ["q1", "q2", "q3", "q4"]
    assert [len(span.events) for span in tasks] == [1, 1, 1, 1]


@pytest.mark.promise("rollout:resume")
async def test_other_settings_are_refused_with_each_difference(tmp_path: Path) -> None:
    await run_to_the_end(config_for(tmp_path), some_tasks(1))
    with pytest.raises(ConfigurationError, match=r"max_turns: 3 -> 4\); choose another output_dir"):
        await run_to_the_end(config_for(tmp_path, max_turns=4), some_tasks(1))
    with pytest.raises(ConfigurationError, match="resume: there is a run 'rollout'"):
        await RolloutRun(config_for(tmp_path), resume="never").run(assigned(config_for(tmp_path)))
    with pytest.raises(ConfigurationError, match="resume: there is no run"):
        config = config_for(tmp_path / "other")
        await RolloutRun(config, resume="always").run(assigned(config))


@pytest.mark.promise("rollout:stop")
async def test_a_resumed_rollout_gives_the_same_files(shelf: Shelf, tmp_path: Path) -> None:
    settings: dict[str, object] = {"max_workers": 1, "available_tools": ["shelf:search"]}
    await run_to_the_end(config_for(tmp_path / "whole", **settings))
    asked = len(shelf.calls)
    config = config_for(tmp_path / "stopped", **settings)
    run = RolloutRun(config)
    shelf.then = lambda: run.stop("a test") if len(shelf.calls) == asked + 4 else None
    with pytest.raises(RunStopped) as stopped:
        await run.run(assigned(config))
    assert stopped.value.cause is StopCause.INTERRUPTED
    assert len(lines(tmp_path / "stopped", RESULTS)) == 1
    await run_to_the_end(config)
    assert contents(tmp_path / "stopped", *FILES) == contents(tmp_path / "whole", *FILES)
    assert len(shelf.calls) == 2 * asked, "no call is made twice"


@pytest.mark.promise("rollout:failed-tools")
async def test_a_tool_that_fails_is_data_and_is_counted(shelf: Shelf, tmp_path: Path) -> None:
    shelf.broken = True
    _, summary = await run_to_the_end(config_for(tmp_path, available_tools=["shelf:search"]), some_tasks(1))
    assert shelf.calls
    assert summary.failed == 0
    assert summary.tool_error_rate == 1.0
    assert summary.tool_use["shelf_search"].errors == summary.tool_calls
    assert lines(tmp_path, TRAJECTORIES)[0]["nodes"][1]["verdict"] == "error"


@pytest.mark.promise("training:conversations:episodes")
async def test_a_failed_call_of_a_rollout_is_masked_and_its_repair_is_trained(
    shelf: Shelf, tmp_path: Path
) -> None:
    def repaired() -> None:
        shelf.broken = len(shelf.calls) == 1

    shelf.then = repaired
    shelf.text = "Needle Light was built in 1834."
    config = config_for(tmp_path, max_turns=2, available_tools=["shelf:search"])
    for _ in range(2):  # the second run resumes, and writes the same
        await run_to_the_end(config, some_tasks(1))
        ((root, failed, *others),) = [line["nodes"] for line in lines(tmp_path, TRAJECTORIES)]
        assert others
        assert failed["trainable"] is False
        assert not any("trainable" in node for node in (root, *others))
        (conversation,) = read_conversations(tmp_path)
        assert [each.get("trainable", True) for each in conversation if each["role"] == "assistant"] == [
            False,
            *[True] * len(others),
            True,
        ]


@pytest.mark.promise("rollout:quick")
def test_quick_rollout_answers_one_question_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = quick_rollout("When was Needle Light built?", tools=["rag:search"], answer="1834", max_turns=3)
    assert given["answer"] == "1834"
    assert (given["success"], given["score"]) == (True, 1.0)
    assert given["trajectory"]["nodes"][1]["action"]["tool"] == "rag_search"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("rollout:quick")
async def test_quick_rollout_also_works_inside_a_running_loop() -> None:
    question = "When was Needle Light built?"
    inside = quick_rollout(question, tools=["rag:search"], max_turns=2)
    assert inside["answer"] == (await aquick_rollout(question, tools=["rag:search"], max_turns=2))["answer"]


@pytest.mark.promise("rollout:call")
def test_rollout_takes_a_file_of_settings_tasks_and_any_setting_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"output_dir: {tmp_path / 'out'}\nmax_turns: 2\n")
    given = rollout(tmp_path / "config.yaml", some_tasks(2), evaluate=True, metric="f1_score", max_workers=2)
    assert given["summary"]["metric"] == "f1_score"
    assert len(given["results"]) == 2
    assert given["output_dir"] == str(tmp_path / "out")
    assert given["results"] == lines(tmp_path / "out", RESULTS)


@pytest.mark.promise("rollout:call")
async def test_without_evaluation_nothing_is_scored(tmp_path: Path) -> None:
    given = await arollout(data_path=some_tasks(1), evaluate=False, output_dir=str(tmp_path), max_turns=1)
    assert given["summary"]["score"] is None
    assert given["results"][0]["score"] is None


@pytest.mark.promise("rollout:samples")
async def test_each_sample_is_an_episode_and_is_in_the_summary(tmp_path: Path) -> None:
    _, summary = await run_to_the_end(config_for(tmp_path, samples=3), some_tasks(2))
    assert (summary.tasks, summary.results) == (2, 6)
    assert list(summary.pass_at) == ["1", "2", "3"]
    assert summary.majority is not None and summary.best_by_verifier is not None
    assert [(line["task_id"], line["sample"]) for line in lines(tmp_path, RESULTS)] == [
        (task, sample) for task in ("q1", "q2") for sample in range(3)
    ]


@pytest.mark.promise("rollout:evidence")
async def test_results_and_summary_have_the_evidence_of_tasks_that_name_their_documents(
    tmp_path: Path,
) -> None:
    first, second = some_tasks(2)
    tasks = [structs.replace(first, metadata={"documents": [{"id": "needle-light"}]}), second]
    _, summary = await run_to_the_end(config_for(tmp_path), tasks)
    [with_documents, without] = lines(tmp_path, RESULTS)
    # One search showed the document among five.
    assert with_documents["evidence"] == summary.evidence == 5 / (4 + 5)
    assert "evidence" not in without
    assert "55.6% (F2 of the documents read)" in summary_card(summary)
    _, summary = await run_to_the_end(config_for(tmp_path / "other"), [second])
    assert "evidence" not in json.loads((tmp_path / "other" / SUMMARY).read_text(encoding="utf-8"))


@pytest.mark.promise("rollout:saved")
async def test_disabled_files_are_not_written(tmp_path: Path) -> None:
    saved: dict[str, dict[str, object]] = {
        "nothing": {"save_results": False, "save_trajectories": False, "save_summary": False},
        "trajectories": {"trajectory_only": True, "save_trajectories": False},
    }
    for name, settings in saved.items():
        await run_to_the_end(config_for(tmp_path / name, **settings), some_tasks(1))
    assert {path.name for path in (tmp_path / "nothing").iterdir()} == {"journal.db", "settings.yaml"}
    (line,) = lines(tmp_path / "trajectories", RESULTS)
    assert set(line) == {"task_id", "sample", "success", "trajectory"}


@pytest.mark.promise("rollout:quick")
async def test_quick_rollout_uses_the_tools_of_a_server() -> None:
    async with (
        ToolTable([load_backend("rag")]) as table,
        serving(table, HttpOptions(port=0, tokens={"me": "sesame"})) as server,
    ):
        given = await aquick_rollout(
            "When was Needle Light built?",
            tools=["rag:search"],
            sandbox_url=server.url,
            sandbox_token="sesame",
            answer="1834",
            max_turns=3,
        )
    assert (given["answer"], given["score"]) == ("1834", 1.0)


@pytest.mark.promise("rollout:pictures")
@pytest.mark.promise("rollout:images")
async def test_pictures_of_a_question_reach_a_vision_model(tmp_path: Path) -> None:
    picture, log = anyio.Path(tmp_path / "dot.png"), tmp_path / "log.jsonl"
    await picture.write_bytes(PIXEL)
    (tmp_path / "tasks.jsonl").write_text(
        json.dumps({"id": "a", "question": "What is this?", "answer": "x", "image": "dot.png"})
    )
    shown = base64.b64encode(PIXEL).decode()
    async with fake_endpoint(log=log) as url:
        settings: dict[str, Any] = {"model_name": "fake", "base_url": url, "available_tools": ["rag_search"]}
        given = await aquick_rollout("What is this?", images=[str(picture)], max_turns=1, **settings)
        assert shown in log.read_text(encoding="utf-8")
        assert given["trajectory"]["nodes"][0]["images"][0]["mime"] == "image/png"
        log.write_text("")
        await arollout(
            data_path=tmp_path / "tasks.jsonl", output_dir=str(tmp_path / "out"), agent="single", **settings
        )
        assert shown in log.read_text(encoding="utf-8")
    (record,) = lines(tmp_path / "out", TRAJECTORIES)
    (image,) = record["nodes"][0]["images"]
    assert await anyio.Path(tmp_path / "out" / image["file"]).read_bytes() == PIXEL
    for name, message in (
        ("nowhere.png", "can't be read: No such file"),
        ("log.jsonl", "not a picture by its name"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            await aquick_rollout("What is this?", images=[str(tmp_path / name)])
