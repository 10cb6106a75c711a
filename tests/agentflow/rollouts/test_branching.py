"""Branching rollouts: their files, what they saved, and the search of an answer."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import UNSET
from pydantic import ValidationError

from agentflow.errors import ConfigurationError
from agentflow.inspection import open_runs
from agentflow.models import Model, Prices
from agentflow.rollouts import RolloutConfig
from agentflow.team import ToolAgent
from agentflow.trace import BlobStore, Task, Turn
from tests.agentflow.engine.test_branching import Chooser
from tests.agentflow.rollouts._rollouts import config_for, contents, lines, run_to_the_end, some_tasks


def think_of_a_year(seen: Sequence[str], number: int) -> tuple[str, str] | str:
    """Look something up, add a digit in each branch, and answer with the last year."""
    if not seen:
        return "bash_run", "year=183; echo $year"
    return ("bash_run", f"echo ${{year}}{number + 3}") if len(seen) == 1 else seen[-1].strip()


def chooser(model: Model, blobs: BlobStore) -> ToolAgent:
    return ToolAgent(Chooser(think_of_a_year), blobs)


async def likes_4(task: Task, turns: Sequence[Turn], answer: str | None) -> float:
    return float(bool(turns) and turns[-1].result.endswith("4"))


def branching(folder: Path, **settings: object) -> RolloutConfig:
    return config_for(
        folder,
        agent=f"{__name__}:chooser",
        available_tools=["bash_run"],
        max_turns=5,
        branching={"width": 2, "leaves": 2, **settings},
    )


@pytest.mark.promise("branching:rollouts")
async def test_each_path_of_a_task_is_a_result_and_the_summary_says_what_was_shared(tmp_path: Path) -> None:
    _, summary = await run_to_the_end(branching(tmp_path), some_tasks(1))
    results = lines(tmp_path, "results.jsonl")
    assert [(line["sample"], line["answer"], line["score"]) for line in results] == [
        (0, "1833", 0.0),
        (1, "1834", 1.0),
    ]
    assert [line["path"] for line in results] == [[0, 0, 0], [0, 1, 0]]
    assert (summary.score, summary.pass_at) == (0.5, {"1": 0.5, "2": 1.0})
    assert summary.branching is not UNSET
    shared, used, independent = summary.branching, summary.branching.used, summary.branching.independent
    assert (shared.paths, shared.answers, shared.forks) == (2.0, 2.0, {"fork": 1, "shared": 4})
    # Both paths looked the same up first.
    assert (used.tool_calls, independent.tool_calls) == (3, 4)
    assert used.prompt_tokens == 60 and independent.prompt_tokens == 60
    trajectories = lines(tmp_path, "trajectories.jsonl")
    assert [point["turns"] for point in trajectories[1]["branches"]] == [0, 1, 2]


@pytest.mark.promise("branching:rollouts")
async def test_a_guided_search_answers_with_the_path_of_the_best_value(tmp_path: Path) -> None:
    config = branching(tmp_path, search="best_first", leaves=1, guide=f"{__name__}:likes_4")
    _, summary = await run_to_the_end(config, some_tasks(1))
    assert summary.score == 1.0
    assert [line["answer"] for line in lines(tmp_path, "results.jsonl") if line["ending"] == "answered"] == [
        "1834"
    ]


@pytest.mark.promise("branching:rollouts")
async def test_a_finished_branching_rollout_writes_the_same_files_again(tmp_path: Path) -> None:
    await run_to_the_end(branching(tmp_path), some_tasks(2))
    files = contents(tmp_path, "results.jsonl", "trajectories.jsonl")
    await run_to_the_end(branching(tmp_path), some_tasks(2))
    assert contents(tmp_path, "results.jsonl", "trajectories.jsonl") == files


@pytest.mark.promise("branching:rollouts")
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"samples": 3, "branching": {}}, "samples: branching.leaves is the number of episodes per task"),
        ({"seed": 7, "branching": {}}, "seed: with it every continuation is the same"),
        ({"branching": {"search": "beam"}}, "guide: search=beam needs one"),
        ({"branching": {"roles": ["cook"]}}, "branching.roles: there is no role cook"),
        ({"agent": "single", "branching": {"guide": "verifier"}}, "branching.guide: there is no verifier"),
        ({"branching": {"width": 0}}, "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_in_one_line(
    settings: dict[str, object], problem: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        RolloutConfig.model_validate(settings)
    assert problem in str(refused.value)


@pytest.mark.promise("branching:rollouts")
async def test_a_function_that_does_not_exist_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        await run_to_the_end(branching(tmp_path, at="nowhere:function"), some_tasks(1))


@pytest.mark.promise("branching:shown")
async def test_the_view_of_a_branching_task_shows_where_it_split_and_what_each_path_cost(
    tmp_path: Path,
) -> None:
    priced = {"model_name": "m", "api_key": "x", "prices": Prices(input=5, output=2)}
    await run_to_the_end(branching(tmp_path).model_copy(update=priced), some_tasks(1))
    with open_runs(tmp_path) as runs:
        run = runs.run(runs.runs()[0].id)
        [seed] = run.seeds()
        nodes = {path: run.node(seed.id, path) for path in run.skeleton(seed.id).spots if path}
        read = len(run.tokens(seed.id))
    assert (seed.answer, seed.nodes) == ("1833", 3)
    assert list(nodes) == ["0", "1", "0-0", "0-1", "0-0-0", "0-1-0"]
    assert (nodes["1"].verdict, nodes["1"].intent) == ("repeats", "the same as an earlier one: run once")
    # The first continuation stays in its own sandbox.
    assert [nodes[path].isolation for path in ("0-0", "0-1")] == ["", "fork"]
    ends = [nodes[path] for path in ("0-0-0", "0-1-0")]
    assert [(end.parts[0].text, end.verdict) for end in ends] == [("1833", "error"), ("1834", "new")]
    assert ends[1].intent == "1834; score 1; 71 tokens sampled; 2 tool calls; cost 0.0003"
    assert read > 0
