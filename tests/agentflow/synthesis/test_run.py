"""Synthesis runs: started, resumed, refused, paused, stopped."""

import json
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.journal import NewSeed
from agentflow.sandbox import register_api_tool
from agentflow.sandbox._api_tools import registered_tools
from agentflow.synthesis import PAIRS, TREES, SynthesisConfig, SynthesisPipeline
from agentflow.synthesis.api import asynthesize, synthesize
from agentflow.synthesis.pipeline import Phase, SynthesisRun, seeds_for
from agentflow.testing import fake_endpoint
from tests.agentflow.synthesis._runs import FILES, config_for, contents, names, run_to_the_end, until
from tests.mcp_servers.web._services import KEY, some_services

DOCUMENTED = Path(__file__).parent / "documented"


@pytest.fixture
def broken_tool() -> Iterator[str]:
    """A tool that never works, for as long as the test lasts."""
    before = dict(registered_tools)

    @register_api_tool("broken:look", read_only=True)
    def look(word: str) -> str:
        """Look something up. It never works.

        :param word: what
        """
        raise OSError("the shelf is gone")

    assert callable(look)
    yield "broken:look"
    registered_tools.clear()
    registered_tools.update(before)


@pytest.fixture
async def endpoint() -> AsyncGenerator[str]:
    async with fake_endpoint(delay_ms=10) as url:
        yield url


def served(folder: Path, url: str, **settings: object) -> SynthesisConfig:
    return config_for(folder, model_name="fake", base_url=url, **settings)


@pytest.mark.promise("supervisor:run")
async def test_a_run_grows_every_seed_and_writes_pairs_that_name_the_engine(tmp_path: Path) -> None:
    run, report = await run_to_the_end(config_for(tmp_path))
    assert (report.seeds, report.trees, report.failed_seeds) == (3, 3, 0)
    assert report.pairs > 0
    pairs = [json.loads(line) for line in (tmp_path / PAIRS).read_text(encoding="utf-8").splitlines()]
    assert {pair["metadata"]["engine"] for pair in pairs} == {"offline"}
    assert run.status().phase is Phase.DONE
    assert names(tmp_path) == {*FILES, "journal.db", "report.html", "settings.yaml"}


@pytest.mark.promise("supervisor:nothing-to-do")
async def test_a_second_run_has_nothing_to_do_and_gives_the_same_files(tmp_path: Path) -> None:
    await run_to_the_end(config_for(tmp_path))
    before = contents(tmp_path)
    (tmp_path / PAIRS).unlink()
    run, report = await run_to_the_end(config_for(tmp_path))
    assert run.nothing_to_do
    assert run.status().nodes == {}
    assert report.seeds == 3
    assert contents(tmp_path) == before


@pytest.mark.promise("supervisor:other-settings")
async def test_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    await run_to_the_end(config_for(tmp_path))
    with pytest.raises(ConfigurationError, match=r"max_depth: 3 -> 4") as refused:
        await run_to_the_end(config_for(tmp_path, max_depth=4))
    assert "\n" not in str(refused.value)


@pytest.mark.promise("supervisor:other-settings")
async def test_settings_that_do_not_affect_the_content_may_change(tmp_path: Path) -> None:
    await run_to_the_end(config_for(tmp_path))
    run, _ = await run_to_the_end(config_for(tmp_path, max_concurrency=3, max_open_trees=1, max_seconds=1000))
    assert run.nothing_to_do


@pytest.mark.promise("supervisor:resume-choice")
async def test_resume_can_require_or_refuse_an_existing_run(tmp_path: Path) -> None:
    config = config_for(tmp_path / "new")
    with pytest.raises(ConfigurationError, match=r"no run 'synthesis' in .* to resume"):
        await SynthesisRun(config, resume="always").run(seeds_for(config))
    assert not (tmp_path / "new").exists()
    await SynthesisRun(config, resume="never").run(seeds_for(config))
    await SynthesisRun(config, resume="always").run(seeds_for(config))
    with pytest.raises(ConfigurationError, match=r"there is a run 'synthesis' in .* already"):
        await SynthesisRun(config, resume="never").run(seeds_for(config))


@pytest.mark.promise("supervisor:stop")
async def test_a_resumed_run_gives_the_files_of_an_uninterrupted_one(tmp_path: Path, endpoint: str) -> None:
    await run_to_the_end(served(tmp_path / "whole", endpoint))
    config = served(tmp_path / "parts", endpoint)
    stops = 0
    for _ in range(100):
        run = SynthesisRun(config)
        before = run.status().nodes
        assert before == {}
        async with anyio.create_task_group() as tasks:

            async def stop_soon(run: SynthesisRun = run, stops: int = stops) -> None:
                # Resumed nodes count, too: each time it gets farther.
                await until(lambda: sum(run.status().nodes.values()) >= 12 * (stops + 1))
                run.stop("enough for now")

            tasks.start_soon(stop_soon)
            try:
                await run.run(seeds_for(config))
            except RunStopped as stopped:
                assert stopped.cause is StopCause.INTERRUPTED
                assert stopped.message == "stopped: enough for now; run the same command again to resume"
                assert run.status().phase is Phase.STOPPED
                stops += 1
                continue
            finally:
                tasks.cancel_scope.cancel()
            break
    assert stops > 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.promise("supervisor:stop")
async def test_a_stopped_run_has_written_the_finished_seeds(tmp_path: Path, endpoint: str) -> None:
    config = served(tmp_path, endpoint, max_open_trees=1)
    run = SynthesisRun(config)
    async with anyio.create_task_group() as tasks:

        async def stop_after_one() -> None:
            await until(lambda: run.status().done >= 1)
            run.stop()

        tasks.start_soon(stop_after_one)
        with pytest.raises(RunStopped):
            await run.run(seeds_for(config))
    assert 1 <= len((tmp_path / TREES).read_text(encoding="utf-8").splitlines()) < 3


@pytest.mark.promise("supervisor:pause")
async def test_a_paused_run_starts_nothing_new(tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    async with fake_endpoint(delay_ms=10, log=asked) as url:
        config = served(tmp_path, url)
        run = SynthesisRun(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.run, seeds_for(config))
            await until(lambda: run.status().nodes)
            run.pause()
            assert run.status().phase is Phase.PAUSED
            await run.wait_idle()
            before = asked.read_bytes()
            assert run.status().calls_in_flight == 0
            await anyio.wait_all_tasks_blocked()
            await run.wait_idle()
            assert asked.read_bytes() == before
            assert run.status().done < 3
            run.resume()
            assert run.status().phase is Phase.GROWING
        assert run.status().done == 3


@pytest.mark.promise("supervisor:add-seeds")
async def test_seeds_can_be_added_at_runtime_and_repeated_additions_count_once(
    tmp_path: Path, endpoint: str
) -> None:
    config = served(tmp_path, endpoint)
    run = SynthesisRun(config)
    with pytest.raises(ConfigurationError, match="has not begun"):
        await run.add_seeds([NewSeed("too early")], "control/x")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.run, seeds_for(config))
        await until(lambda: run.status().nodes)
        run.pause()
        added, in_time = await run.add_seeds([NewSeed("the lighthouse")], "control/x")
        again, _ = await run.add_seeds([NewSeed("the lighthouse")], "control/x")
        assert (added, in_time) == (again, True)
        assert [seed.id for seed in added] == ["seed_004"]
        assert run.status().seeds == 4
        run.resume()
    assert run.report is not None
    assert run.report.seeds == 4
    same, _ = await run_to_the_end(config)
    assert same.nothing_to_do


@pytest.mark.promise("supervisor:budget")
async def test_a_budget_stops_the_run_cleanly_and_a_higher_one_resumes_it(
    tmp_path: Path, endpoint: str
) -> None:
    with pytest.raises(RunStopped, match="the budget of 5,000 tokens is used up") as stopped:
        await run_to_the_end(served(tmp_path, endpoint, max_total_tokens=5000))
    assert stopped.value.cause is StopCause.BUDGET
    with pytest.raises(RunStopped, match="budget"):
        await run_to_the_end(served(tmp_path, endpoint, max_total_tokens=5000))
    _, report = await run_to_the_end(served(tmp_path, endpoint, max_total_tokens=10_000_000))
    assert report.seeds == 3


@pytest.mark.promise("supervisor:model-gone")
async def test_an_unreachable_endpoint_ends_the_run_with_one_line(tmp_path: Path) -> None:
    async with fake_endpoint(down_after=0) as url:
        config = served(tmp_path, url, call_seconds=5, max_attempts=1)
        with pytest.raises(RunStopped) as stopped:
            await run_to_the_end(config, [NewSeed(f"Explore {number}") for number in range(20)])
    assert stopped.value.cause is StopCause.MODEL
    assert "\n" not in stopped.value.message


@pytest.mark.promise("supervisor:missing-key")
async def test_a_named_model_without_its_key_is_refused_before_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = config_for(tmp_path / "out", model_name="gpt-4.1-2025-04-14")
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        await run_to_the_end(config)
    assert not (tmp_path / "out").exists()


@pytest.mark.promise("supervisor:missing-tool")
async def test_a_tool_that_does_not_exist_is_refused_in_one_line(tmp_path: Path) -> None:
    config = config_for(tmp_path / "out", available_tools=["retrieval", "read_minds"])
    with pytest.raises(
        ConfigurationError, match=r"read_minds can't be used: .*on_missing_tool=drop"
    ) as refused:
        await run_to_the_end(config, [NewSeed("Explore")])
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.promise("supervisor:missing-tool")
async def test_an_unusable_tool_is_refused_in_one_line(tmp_path: Path) -> None:
    config = config_for(
        tmp_path / "out",
        available_tools=["retrieval"],
        resource_types=["knowledge_base"],
        resource_init_configs={"knowledge_base": {"index_path": str(tmp_path / "nowhere"), "top_k": 5}},
    )
    with pytest.raises(ConfigurationError, match="nowhere") as refused:
        await run_to_the_end(config, [NewSeed("Explore")])
    assert "\n" not in str(refused.value)


@pytest.mark.promise("supervisor:dropped-tool")
async def test_a_tool_that_does_not_exist_is_dropped_if_configured(tmp_path: Path) -> None:
    config = config_for(
        tmp_path, available_tools=["retrieval", "read_minds"], on_missing_tool="drop", number_of_seed=1
    )
    run, report = await run_to_the_end(config, [NewSeed("Explore the harbour")])
    assert list(report.dropped_tools) == ["read_minds"]
    assert [tool.name for tool in run.chosen.tools] == ["rag_search"]
    assert report.trees == 1


@pytest.mark.promise("supervisor:optional-tool")
async def test_a_tool_beside_the_resources_that_does_not_work_is_dropped_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SERPER_API_KEY", "AGENTFLOW_WEB_SERPER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/tides.csv").write_text("hour,height\n1,2.5\n", encoding="utf-8")
    settings: dict[str, Any] = {
        "available_tools": ["read_file", "web_search"],
        "resource_types": ["filesystem"],
        "resource_init_configs": {"filesystem": {"data_dir": str(tmp_path / "data")}},
    }
    run, report = await run_to_the_end(config_for(tmp_path / "out", **settings), [NewSeed("the tides")])
    assert [tool.name for tool in run.chosen.tools] == ["files_read"]
    assert list(report.dropped_tools) == ["web_search"]
    assert "serper" in report.dropped_tools["web_search"].lower()
    misspelt = {**settings, "available_tools": ["read_file", "web_serch"]}
    with pytest.raises(ConfigurationError, match="web_serch can't be used"):
        await run_to_the_end(config_for(tmp_path / "other", **misspelt), [NewSeed("the tides")])


@pytest.mark.promise("supervisor:dropped-tool")
async def test_a_run_that_has_no_tool_left_is_refused(tmp_path: Path) -> None:
    config = config_for(tmp_path, available_tools=["read_minds"], on_missing_tool="drop")
    with pytest.raises(ConfigurationError, match="none is left"):
        await run_to_the_end(config, [NewSeed("Explore")])


@pytest.mark.promise("supervisor:all-tools-fail")
async def test_with_every_tool_failing_no_pair_is_written_and_the_report_says_why(
    tmp_path: Path, broken_tool: str
) -> None:
    config = config_for(tmp_path, available_tools=[broken_tool])
    _, report = await run_to_the_end(config, [NewSeed("Explore the harbour")])
    assert report.pairs == 0
    assert "tool calls failed" in report.why_empty
    assert "the shelf is gone" in report.why_empty
    assert (tmp_path / PAIRS).read_bytes() == b""


@pytest.mark.promise("supervisor:seeds-missing")
async def test_a_run_with_its_own_resource_needs_seeds(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="seeds_file: there are no seeds"):
        seeds_for(config_for(tmp_path, available_tools=["bash_run"]))


@pytest.mark.promise("supervisor:pipeline")
async def test_the_pipeline_works_inside_a_running_loop(tmp_path: Path) -> None:
    pipeline = SynthesisPipeline(config=config_for(tmp_path / "unused"), output_dir=str(tmp_path / "mine"))
    assert pipeline.run([{"content": "Explore the harbour", "kwargs": {}}]) is None
    assert len((tmp_path / "mine" / TREES).read_text(encoding="utf-8").splitlines()) == 1
    report = await pipeline.arun(["Explore the harbour"])
    assert report.seeds == 1


@pytest.mark.promise("supervisor:pipeline")
def test_synthesize_does_everything_with_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("{max_depth: 2, control: false}", encoding="utf-8")
    assert (
        synthesize(config_path="config.yaml", seeds="Explore the harbour", overrides=["output_dir=out"])
        is None
    )
    assert (tmp_path / "out" / PAIRS).exists()


def library(folder: Path) -> Path:
    """A folder with documents."""
    documents = folder / "documents"
    documents.mkdir()
    (documents / "harbour.txt").write_text(
        "The harbour of Orm was built in 1820 by Ada Lind.", encoding="utf-8"
    )
    (documents / "lind.txt").write_text("Ada Lind was born in Low Varn in 1790.", encoding="utf-8")
    return documents


def places(folder: Path) -> dict[str, dict[str, str]]:
    """Local replacements of the paths in the examples, by resource."""
    documents = library(folder)
    (folder / "report.html").write_text("<h1>Orm</h1><p>The harbour of Orm.</p>", encoding="utf-8")
    with closing(sqlite3.connect(folder / "orm.db")) as database:
        database.execute("CREATE TABLE ships (name TEXT, built INTEGER)")
        database.execute("INSERT INTO ships VALUES ('Lind', 1820)")
        database.commit()
    return {
        "database": {"connection_string": f"sqlite:///{folder / 'orm.db'}"},
        "document": {"file_path": str(folder / "report.html")},
        "filesystem": {"data_dir": str(documents)},
        "knowledge_base": {"index_path": str(documents)},
    }


def settings_of(example: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(example.read_text(encoding="utf-8")))


@pytest.mark.promise("supervisor:documented")
async def test_a_knowledge_base_needs_its_documents_and_seeds_alone(tmp_path: Path) -> None:
    seeds = tmp_path / "seeds.jsonl"
    seeds.write_text('{"content": "Explore the harbour of Orm"}\n', encoding="utf-8")
    config = SynthesisConfig(
        output_dir=str(tmp_path / "out"),
        seeds_file=str(seeds),
        resource_init_configs={"knowledge_base": {"index_path": str(library(tmp_path))}},
    )
    run, report = await run_to_the_end(config)
    assert {tool.backend for tool in run.chosen.tools} == {"rag"}
    assert report.verdicts["new"] > 0


@pytest.mark.promise("supervisor:documented")
@pytest.mark.parametrize("example", sorted(DOCUMENTED.glob("*.json")), ids=lambda path: path.stem)
async def test_the_documented_configurations_run_with_their_own_tools(
    example: Path, tmp_path: Path, endpoint: str
) -> None:
    said = settings_of(example)
    resources = said.get("resource_init_configs", {})
    for resource, settings in resources.items():
        settings.update(places(tmp_path)[resource])
    changes: dict[str, object] = {"model_name": "fake", "base_url": endpoint, "sandbox_server_url": None}
    # The fake planner proposes as many different tools as there are branches: the root tries each of the three.
    small = {"max_depth": said.get("min_depth", 2), "depth_threshold": 1, "branching_factor": 3}
    config = config_for(tmp_path / "out", **{**said, **small, **changes, "output_dir": str(tmp_path / "out")})
    seeds = [NewSeed("Explore the harbour")]
    async with some_services() as services:
        if "web_search" in said["available_tools"]:
            web = services.settings(serper_api_key=KEY, cache=None, retry_times=1)
            config = config.model_copy(update={"resource_init_configs": {**resources, "web": web}})
        run, report = await run_to_the_end(config, seeds)
    assert report.trees == 1
    assert report.dropped_tools == {}
    chosen = {tool.name for tool in run.chosen.tools}
    assert (
        chosen
        == {
            "data_analysis": {"code_run", "files_read", "web_search"},
            "document": {"code_run", "document_read", "document_search"},
            "full": {"code_run", "web_search", "web_visit"},
            "rag": {"rag_search", "web_search"},
            "text2sql": {"sql_execute", "sql_schema"},
            "web": {"web_search", "web_visit"},
        }[example.stem]
    )
    assert ("/serper/search" in dict(services.requests)) == ("web_search" in chosen)


@pytest.mark.promise("supervisor:data-dir")
async def test_a_data_folder_is_mounted_for_the_tools(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "tides.csv").write_text("hour,height\n1,2.5\n", encoding="utf-8")
    config = config_for(
        tmp_path / "out",
        resource_types=["filesystem"],
        resource_init_configs={"filesystem": {"data_dir": str(data)}},
        max_depth=1,
        branching_factor=1,
        min_depth=1,
        available_tools=["read_file"],
    )
    await run_to_the_end(config, [NewSeed("the tides", kwargs={"path": str(data / "tides.csv")})])
    [tree] = [
        json.loads(line) for line in (tmp_path / "out" / TREES).read_text(encoding="utf-8").splitlines()
    ]
    assert any("hour,height" in node["observation"] for node in tree["nodes"])


def stored_results(folder: Path) -> dict[int, dict[str, Any]]:
    """Results of finished seeds, as they are in the journal."""
    with closing(sqlite3.connect(folder / "journal.db")) as database:
        rows = database.execute("SELECT seed, body FROM agentflow_harvests").fetchall()
    return {seed: json.loads(body) for seed, body in rows}


@pytest.mark.promise("synthesis:files:stored-once")
async def test_observations_are_stored_once_in_the_journal(tmp_path: Path) -> None:
    await run_to_the_end(config_for(tmp_path))
    results = stored_results(tmp_path)
    assert len(results) == 3
    for result in results.values():
        assert all("outcome" not in node for node in result["tree"]["nodes"])


@pytest.mark.promise("synthesis:files:stored-once")
async def test_a_journal_with_whole_trees_in_its_results_gives_the_same_files(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    await run_to_the_end(config)
    before = contents(tmp_path)
    trees = [json.loads(line) for line in (tmp_path / TREES).read_text(encoding="utf-8").splitlines()]
    with closing(sqlite3.connect(tmp_path / "journal.db")) as database:
        for (seed, result), tree in zip(sorted(stored_results(tmp_path).items()), trees, strict=True):
            result["tree"]["seed"]["content"] = tree["seed_data"]
            for node, record in zip(result["tree"]["nodes"], tree["nodes"], strict=True):
                text = tree["seed_data"] if node.get("parent") is None else record["observation"]
                node["observation"] = {"parts": [{"type": "text", "text": text}]}
            body = json.dumps(result).encode()
            database.execute("UPDATE agentflow_harvests SET body = ? WHERE seed = ?", (body, seed))
        database.commit()
    run, _ = await run_to_the_end(config)
    assert run.nothing_to_do
    assert contents(tmp_path) == before


@pytest.mark.promise("supervisor:pipeline")
async def test_asynthesize_does_everything_with_one_call_and_returns_the_report(tmp_path: Path) -> None:
    words = ["max_depth=2", "control=false", f"output_dir={tmp_path}"]
    report = await asynthesize(seeds=["Explore the harbour"], overrides=words)
    assert (report.seeds, report.trees) == (1, 1)
    assert len((tmp_path / TREES).read_text(encoding="utf-8").splitlines()) == 1
