"""Every setting of a rollout has an effect that is seen from outside: in requests, in files, in what is refused."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.rollouts import RESULTS, RolloutConfig, assign, load_rollout_config
from agentflow.sandbox import register_api_tool
from agentflow.sandbox._api_tools import registered_tools
from agentflow.testing import fake_endpoint
from tests.agentflow.rollouts._rollouts import config_for, run_to_the_end, some_tasks

SEEN: set[str] = {
    # Shown by test_run, test_config and the tests of retries, sandboxes and the command.
    "output_dir", "agent", "max_turns", "max_workers", "samples", "branching", "evaluate_results", "evaluation_metric", "max_retries",
    "save_results", "save_trajectories", "trajectory_only", "save_summary", "available_tools", "max_sandboxes", "api",
    "short_prompts", "planner_format", "imports", "tracing", "save_prompts", "requests_per_minute", "host_name", "launch_id",
}  # fmt: skip
"""Settings whose effect is shown elsewhere."""
HERE = {
    "requests": {
        "model_name", "base_url", "api_key", "temperature", "top_p", "max_tokens", "max_text_chars", "seed", "extra_body",
        "structured", "system_prompt", "system_prompt_file", "analyst_model", "planner_model", "executor_model", "verifier_model",
        "generator_model", "verify", "tool_model", "tool_models", "abstain",
    },
    "judge": {
        "evaluator_model_name", "evaluator_api_key", "evaluator_base_url", "evaluator_temperature",
        "evaluator_max_retries", "evaluator_extra_params",
    },
    "tasks": {"data_path", "benchmark_name", "number_of_tasks", "task_ids", "metric_options"},
    "limits": {
        "episode_seconds", "episode_tokens", "episode_cost", "memory_chars", "context_tokens", "max_observation_chars", "max_total_tokens", "max_cost", "max_seconds",
        "prices",
    },
    "places": {"journal", "run_name", "parallel"},
    "engine": {"vision", "max_concurrency", "call_seconds", "max_attempts", "response_bytes", "tokens"},
    "sandbox": {
        "sandbox_server_url", "sandbox_token", "sandbox_auto_start", "sandbox_config_path", "sandbox_timeout", "resource_types",
        "resource_init_configs", "on_missing_tool",
    },
}  # fmt: skip
"""Settings by the test that shows them."""


@pytest.fixture(autouse=True)
def shelf() -> Iterator[None]:
    """A tool that tells the same each time."""
    before = dict(registered_tools)

    @register_api_tool("shelf:search", read_only=True)
    def search(query: str) -> str:
        """Search for something.

        :param query: what
        """
        return f"{query[:30]} stands on the shelf, number {len(query)}."

    assert callable(search)
    yield
    registered_tools.clear()
    registered_tools.update(before)


def served(folder: Path, url: str, **settings: object) -> RolloutConfig:
    """Settings of a rollout against an endpoint."""
    given = {
        "model_name": "fake",
        "base_url": url,
        "available_tools": ["shelf:search"],
        "max_turns": 1,
        **settings,
    }
    return config_for(folder, **given)


def bodies(log: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the requests to the endpoint, by the name of the answer's schema."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in log.read_text(encoding="utf-8").splitlines():
        body = json.loads(line)
        name = body.get("response_format", {}).get("json_schema", {}).get("name", "")
        found[name].append(body)
    return found


@pytest.mark.promise("rollout:config:fields")
def test_every_setting_is_covered_by_a_test() -> None:
    named = SEEN.union(*HERE.values())
    assert named == set(RolloutConfig.model_fields)


@pytest.mark.promise("rollout:config:fields")
async def test_model_settings_are_sent_in_requests(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("Look under the stairs.")
    roles = ("analyst", "planner", "executor", "verifier", "generator")
    own = {f"{role}_model": {"max_tokens": 1000 + place} for place, role in enumerate(roles)}
    merged: dict[str, object] = {"verify": "merged", "verifier_model": {}}
    log = tmp_path / "log.jsonl"
    async with fake_endpoint(log=log) as url:
        for name, verify in (("separate", dict[str, object]()), ("merged", merged)):
            config = served(
                tmp_path / name, url, temperature=0.5, top_p=0.25, seed=7, extra_body={"top_k": 3}, max_tokens=99, max_text_chars=777,
                system_prompt_file=str(tmp_path / "prompt.md"), abstain=not verify, **{**own, **verify},
            )  # fmt: skip
            await run_to_the_end(config, some_tasks(1))
            sent = bodies(log)
            everything = [body for those in sent.values() for body in those]
            assert {(body["model"], body["temperature"], body["top_p"]) for body in everything} == {
                ("fake", 0.5, 0.25)
            }
            assert {(body["seed"], body["top_k"]) for body in everything} == {(7, 3)}
            limits = {body.get("max_tokens", body.get("max_completion_tokens")) for body in everything}
            silent = {1003} if verify else set[int]()
            assert limits == {1000, 1001, 1002, 1003, 1004} - silent
            assert all(
                "{0,128}" in json.dumps(body["response_format"])
                for name in sent
                if name
                for body in sent[name]
            )
            assert ("Always give a direct answer" in json.dumps(everything)) == bool(verify)
            assert "Look under the stairs." in json.dumps([body["messages"] for body in everything])
            assert "Be brief." not in json.dumps(everything)
            log.write_text("")
        await run_to_the_end(
            served(
                tmp_path / "alone",
                url,
                agent="single",
                system_prompt="Be brief.",
                structured="text",
                api_key="sk",
            ),
            some_tasks(1),
        )
        assert "Be brief." in json.dumps(bodies(log)[""][0]["messages"][0])


@pytest.mark.promise("rollout:config:fields")
async def test_tools_that_use_a_model_have_their_own(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with fake_endpoint(log=log) as url:
        config = served(
            tmp_path / "run", url, available_tools=["base_generator"], tool_model={"max_tokens": 77}
        )
        _, summary = await run_to_the_end(config, some_tasks(1))
    free = bodies(log)[""]
    assert [body.get("max_tokens", body.get("max_completion_tokens")) for body in free] == [77]
    assert summary.tool_use["base_generator"].errors == 0
    assert summary.usage["tool"].calls == 1


@pytest.mark.promise("rollout:config:fields")
async def test_each_tool_can_have_a_model_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with fake_endpoint(log=log) as url:
        config = served(
            tmp_path / "run",
            url,
            available_tools=["base_generator"],
            tool_model={"max_tokens": 77, "temperature": 0.5},
            tool_models={"base_generator": {"model_name": "wise", "temperature": 0.25}},
        )
        _, summary = await run_to_the_end(config, some_tasks(1))
    (asked,) = bodies(log)[""]
    assert (asked["model"], asked["temperature"], asked["max_tokens"]) == ("wise", 0.25, 77)
    assert summary.models["base_generator"] == "wise"
    assert summary.usage["base_generator"].calls == 1
    assert "tool" not in summary.usage


@pytest.mark.promise("rollout:config:fields")
async def test_the_evaluator_has_its_own_model(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with fake_endpoint() as url, fake_endpoint(log=log) as other:
        config = served(
            tmp_path / "run", url, evaluation_metric="llm_judgement", evaluator_model_name="wise",
            evaluator_base_url=other, evaluator_api_key="sk-judge", evaluator_temperature=0.25,
            evaluator_extra_params={"top_k": 9}, evaluator_max_retries=0,
        )  # fmt: skip
        _, summary = await run_to_the_end(config, some_tasks(1))
    (asked,) = [body for those in bodies(log).values() for body in those]
    assert (asked["model"], asked["temperature"], asked["top_k"]) == ("wise", 0.25, 9)
    assert summary.models["judge"] == "wise"
    assert summary.usage["judge"].calls == 1
    assert config.models["judge"].max_attempts == 1


@pytest.mark.promise("rollout:config:fields")
async def test_file_benchmark_number_and_ids_select_tasks_and_metric(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tasks.jsonl"
    rows = [
        {"id": f"r{number}", "question": "When was Needle Light built?", "answer": "1830"}
        for number in range(3)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))

    def ids(**settings: object) -> list[str]:
        return [task.id for task in assign(config_for(tmp_path, **settings)).tasks]

    assert ids(data_path=str(file)) == ["r0", "r1", "r2"]
    assert ids(data_path=str(file), number_of_tasks=2) == ["r0", "r1"]
    assert ids(data_path=str(file), task_ids=["r2"]) == ["r2"]
    assert assign(config_for(tmp_path, benchmark_name="gpqa")).metric == "multiple_choice"
    config = config_for(
        tmp_path / "run", metric_options={"tolerances": 0.5}, evaluation_metric="numeric_match"
    )
    with pytest.raises(ConfigurationError, match="there is no option tolerances; it has tolerance"):
        await run_to_the_end(config, some_tasks(1))
    for settings, message in (
        ({"data_path": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"benchmark_name": "gpqq"}, "did you mean gpqa"),
        ({"data_path": str(file), "task_ids": ["r9"]}, "there is no task r9"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            assign(config_for(tmp_path, **settings))


@pytest.mark.promise("rollout:config:fields")
async def test_an_episode_and_a_run_end_at_their_limits(tmp_path: Path) -> None:
    prices = {"input": 1.0, "output": 1.0}
    async with fake_endpoint(delay_ms=20) as url:
        for name, settings, ending in (
            ("time", {"episode_seconds": 0.01}, {"time", "failed"}),
            ("tokens", {"episode_tokens": 1}, {"tokens"}),
            ("money", {"episode_cost": 1e-9, "prices": prices}, {"money"}),
        ):
            config = served(tmp_path / name, url, max_turns=5, max_retries=0, **settings)
            _, summary = await run_to_the_end(config, some_tasks(1))
            assert set(summary.endings) <= ending
        for name, settings in (
            ("all-tokens", {"max_total_tokens": 1}),
            ("all-money", {"max_cost": 1e-9, "prices": prices}),
            ("all-time", {"max_seconds": 0.01}),
        ):
            with pytest.raises(RunStopped) as stopped:
                await run_to_the_end(served(tmp_path / name, url, **settings), some_tasks(1))
            assert stopped.value.cause is StopCause.BUDGET
    assert served(tmp_path, "", memory_chars=2000).episode.memory_chars == 2000
    assert served(tmp_path, "", max_observation_chars=700).episode.max_observation_chars == 700
    for settings, budget in (
        ({}, 32_000), ({"context_tokens": 5_000, "memory_chars": 9_000}, 5_000), ({"memory_chars": 20_000}, 5_000), ({"memory_chars": 2_000}, 1_000),
    ):  # fmt: skip
        assert served(tmp_path, "", agent="single", **settings).episode.context_tokens == budget


@pytest.mark.promise("rollout:config:fields")
async def test_journal_and_run_name_locate_a_run(tmp_path: Path) -> None:
    config = config_for(
        tmp_path / "out", journal=f"sqlite:///{tmp_path}/all.db", run_name="mine", max_turns=1
    )
    await run_to_the_end(config, some_tasks(1))
    assert (tmp_path / "all.db").exists()
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {RESULTS}
    assert not (tmp_path / "out" / "journal.db").exists()
    with pytest.raises(ConfigurationError, match="run 'mine' was made with other settings"):
        await run_to_the_end(config.model_copy(update={"memory_chars": 5000}), some_tasks(1))
    assert (RolloutConfig(parallel=True).workers, RolloutConfig().workers) == (8, 1)


@pytest.mark.promise("rollout:config:fields")
def test_settings_of_the_engine_reach_every_role() -> None:
    said = {
        "vision": False, "max_concurrency": 9, "call_seconds": 8.0, "max_attempts": 2, "response_bytes": 5000, "tokens": "exact",
    }  # fmt: skip
    config = RolloutConfig.model_validate({**said, "model_name": "mine", "evaluate_results": False})
    for model in config.models.values():
        assert {name: getattr(model, name) for name in said} == said


@pytest.mark.promise("rollout:config:fields")
async def test_settings_of_the_sandbox_reach_it(tmp_path: Path) -> None:
    (tmp_path / "sandbox.yaml").write_text("env: {MINE: x}\n")
    here = config_for(
        tmp_path, sandbox_config_path=str(tmp_path / "sandbox.yaml"), sandbox_timeout=7, resource_types=["code"],
        resource_init_configs={"knowledge_base": {"top_k": 2}},
    ).sandbox  # fmt: skip
    assert (here.env, here.timeout) == ({"MINE": "x"}, 7)
    assert here.backend_settings == {"code": {}, "rag": {"top_k": 2}}
    there = config_for(tmp_path, sandbox_server_url="http://127.0.0.1:9", sandbox_auto_start=True).sandbox
    assert (there.server_url, there.auto_start) == ("http://127.0.0.1:9", True)
    nobody = config_for(tmp_path / "x", sandbox_server_url="http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="sandbox: "):
        await run_to_the_end(nobody, some_tasks(1))
    missing = {"available_tools": ["rag_search", "no:such"], "max_turns": 1}
    with pytest.raises(ConfigurationError, match="no:such can't be used"):
        await run_to_the_end(config_for(tmp_path / "y", **missing), some_tasks(1))
    _, summary = await run_to_the_end(
        config_for(tmp_path / "z", **missing, on_missing_tool="drop"), some_tasks(1)
    )
    assert list(summary.dropped_tools) == ["no:such"]


@pytest.mark.promise("rollout:config:one-line")
async def test_unsupported_settings_of_the_offline_engine_give_one_line(tmp_path: Path) -> None:
    for settings, message in (
        ({"agent": "single"}, "agent: a single agent needs a model"),
        (
            {"evaluation_metric": "llm_judgement"},
            "evaluation_metric: llm_judgement needs a judge model",
        ),
        ({"evaluation_metric": "f1"}, "metric f1: there is none of that name; did you mean f1_score?"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            await run_to_the_end(config_for(tmp_path, **settings), some_tasks(1))
        assert message in str(refused.value)
    assert not (tmp_path / RESULTS).exists(), "nothing was begun"


@pytest.mark.promise("rollout:config:one-line")
def test_a_run_without_tasks_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="data_path: there are no tasks"):
        assign(config_for(tmp_path, model_name="mine"))
    assert len(assign(load_rollout_config(arguments={"output_dir": str(tmp_path)})).tasks) > 0
