"""The example library: rules of the games, teachers, agents over HTTP, and the report."""

import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import pytest
from aiohttp import web

from agentflow.errors import ConfigurationError
from agentflow.gateway import EpisodeOutcome
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.trace import Task
from examples.countdown.game import reply_to, solutions
from examples.countdown.run import EXAMPLE as COUNTDOWN
from examples.frozen_lake.game import Lake, path_of
from examples.frozen_lake.run import EXAMPLE as FROZEN_LAKE
from examples.learning_to_ask.run import EXAMPLE as LEARNING_TO_ASK
from examples.library import Example, Messages, main
from examples.library.example import reward_of
from examples.library.plan import ExamplePlan, read_example_plan
from examples.library.report import example_figures, example_table, write_report
from examples.library.teaching import demonstrate, make_and_fine_tune
from examples.library.training import Played, run_example
from examples.math_tool.game import value_of
from examples.math_tool.run import EXAMPLE as MATH_TOOL
from examples.terminal.game import SimulatedShell, first_content, play
from examples.terminal.run import EXAMPLE as TERMINAL
from examples.werewolves.game import over
from examples.werewolves.run import EXAMPLE as WEREWOLVES
from tests._real_model import real_model
from tests._vllm import PYTHON, make_environment

EXAMPLES = (COUNTDOWN, FROZEN_LAKE, LEARNING_TO_ASK, MATH_TOOL, WEREWOLVES, TERMINAL)
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)


class Address(NamedTuple):
    """A policy at an address."""

    base_url: str
    api_key: str = "key"
    model: str = "teacher"

    def agent(self, name: str) -> "Address":
        """Return the policy of an agent: each has its own key."""
        return self._replace(api_key=f"key of {name}")


@asynccontextmanager
async def served(answer: Callable[[Messages], str]) -> AsyncGenerator[tuple[Address, list[str]]]:
    """Serve a scripted model; yield its address, and the keys of its calls."""
    keys: list[str] = []

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        keys.append(request.headers["Authorization"].removeprefix("Bearer "))
        message = {"role": "assistant", "content": answer(body["messages"])}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 0, "model": "teacher", "choices": [choice]}
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield Address(f"http://{host}:{port}/v1"), keys
    finally:
        await runner.cleanup()


@pytest.mark.promise("examples:tasks")
@every_example
def test_parts_of_an_example_share_no_task(example: Example) -> None:
    def parts(part: str, seed: int) -> set[str]:
        tasks = example.make_tasks("train" if part == "train" else "held_out", 60, seed)
        assert len(tasks) == len({task.id for task in tasks}) == 60
        return {msgspec.json.encode((task.question, task.metadata.get("wrong"))).decode() for task in tasks}

    assert not parts("train", 0) & parts("held_out", 0)
    assert parts("train", 0) == parts("train", 0) != parts("train", 1)


@pytest.mark.promise("examples:teacher")
@every_example
async def test_a_teacher_leaves_room_to_learn_and_is_reproducible(example: Example) -> None:
    tasks = example.make_tasks("train", 200, 0)
    shown = await demonstrate(example, tasks, 3)
    assert shown == await demonstrate(example, tasks, 3) != await demonstrate(example, tasks, 4)
    assert 0.2 < sum(each.reward for each in shown) / len(shown) < 0.7
    assert all(step[-1]["role"] == "assistant" for each in shown for step in each.steps)


@pytest.mark.promise("examples:agent")
@every_example
async def test_an_agent_plays_over_http_as_its_teacher_plays(example: Example) -> None:
    tasks = example.make_tasks("held_out", 4, 0)
    expected = [each.reward for each in await demonstrate(example, tasks, 1)]
    rewards: list[float] = []
    async with AsyncExitStack() as stack:
        sandbox = None
        if example.backends:
            settings = SandboxSettings(backends={name: {} for name in example.backends})
            sandbox = await stack.enter_async_context(Sandbox(settings))
        for number, task in enumerate(tasks):
            random = Random(f"1 {number}")
            async with served(lambda messages, random=random: example.teach(messages, random)) as (
                policy,
                keys,
            ):
                if sandbox is None:
                    outcome = await example.solve(task, policy)
                else:
                    async with await sandbox.fork() as own:
                        outcome = await example.solve(task, policy, own)
            rewards.append(reward_of(outcome, example.trained))
            agents = {f"key of {name}" for name in (*example.trained, *example.frozen)}
            assert set(keys) == (agents or {"key"})
    assert rewards == expected


@pytest.mark.promise("examples:rules")
@pytest.mark.parametrize("example", [MATH_TOOL, TERMINAL], ids=lambda example: example.folder.name)
async def test_an_answer_that_a_tool_refuses_loses_only_its_own_episode(example: Example) -> None:
    (task,) = example.make_tasks("held_out", 1, 0)
    async with (
        Sandbox(SandboxSettings(backends={name: {} for name in example.backends})) as sandbox,
        served(lambda messages: "run \0") as (policy, _),
    ):
        assert await example.solve(task, policy, sandbox) == 0.0


@pytest.mark.promise("examples:rules")
def test_a_try_of_countdown_names_the_numbers_in_order() -> None:
    question = "numbers: 6 4 8 target: 10"
    assert solutions((6, 4, 8), 10) == [("+", "-", "+")]
    assert reply_to(question, "try + 6 - 4 + 8") == (True, "value: 10 again")
    assert reply_to(question, "try + 6 + 4 - 8") == (False, "value: 2 again")
    assert reply_to(question, "try + 4 - 6 + 8") == (False, "not these numbers, again")
    for broken in ("", "try", "try + 6 - 4", "try + 6 - 4 + 8 =", "try + 6 * 4 + 8", "try + 66 - 4 + 8"):
        assert reply_to(question, broken) == (False, "unreadable, again")


@pytest.mark.promise("examples:rules")
def test_a_walk_over_the_lake_ends_in_a_hole_or_at_the_goal() -> None:
    lake = Lake.of("lake: P . H H / . . . . / . . . . / . H H G")
    assert Lake.of(lake.picture()).holes == lake.holes
    assert path_of(lake) == ["right", "down", "right", "right", "down", "down"]
    lake.walk(["up", "left"])
    assert lake.place == (0, 0)
    lake.walk(["right", "right", "left"])
    assert lake.place == (0, 2)
    assert lake.place in lake.holes
    assert path_of(Lake.of("lake: P H . . / H . . . / . . . . / . . . G")) == []


@pytest.mark.promise("examples:rules")
def test_werewolves_end_when_a_side_has_won() -> None:
    assert over(["ann", "bob"], {"ann"})
    assert over(["bob", "cid"], {"ann"})
    assert not over(["ann", "bob", "cid"], {"ann"})


@pytest.mark.promise("examples:rules")
async def test_werewolves_who_never_decide_do_not_win() -> None:
    task = WEREWOLVES.make_tasks("train", 1, 0)[0]
    async with served(lambda _messages: "nothing") as (policy, keys):
        outcome = await WEREWOLVES.solve(task, policy)
    assert isinstance(outcome, EpisodeOutcome)
    assert outcome.reward == {"wolf": 0.0, "villager": 1.0}
    assert len(keys) < 100


@pytest.mark.promise("examples:rules")
async def test_the_simulated_tools_answer_as_the_real_ones_do() -> None:
    expressions = ("7 * 8 - 5", "12 * 12 + 12", "2 * 2 - 12", "7 x 8 - 5")
    async with Sandbox(SandboxSettings(backends={"code": {}, "bash": {}})) as sandbox:
        for expression in expressions:
            done = await sandbox.execute("code:run", {"code": f"print({expression})"})
            real = "error" if done.data["error"] else done.data["stdout"].strip()
            assert value_of(expression) == real
        for number, task in enumerate(TERMINAL.make_tasks("train", 6, 0)):
            async with await sandbox.fork() as own:

                async def real_shell(command: str, own: Sandbox = own) -> str:
                    done = await own.execute("bash:run", {"command": command})
                    return f"{done.data['stdout']}{done.data['stderr']}"

                told = [await _told(task, run, number) for run in (real_shell, SimulatedShell(task).run)]
            assert told[0] == told[1]


async def _told(task: Task, run: Callable[..., object], number: int) -> object:
    random, seen = Random(number), list[Messages]()

    async def ask(messages: Messages) -> str:
        seen.append(list(messages))
        return TERMINAL.teach(messages, random)

    reward = await play(task, ask, run)  # pyright: ignore[reportArgumentType]
    return reward, seen[-1]


@pytest.mark.promise("examples:rules")
async def test_a_simulated_shell_knows_only_its_own_file() -> None:
    task = TERMINAL.make_tasks("train", 1, 0)[0]
    shell, file = SimulatedShell(task), task.metadata["file"]
    assert await shell.run(f"cat {file}") == f"{first_content(task)}\n"
    assert (await shell.run("cat other")).endswith("No such file or directory\n")
    assert (await shell.run("sed -i s/a/b/ other")).endswith("No such file or directory\n")
    assert (await shell.run("rm -rf /")).endswith("command not found\n")


@pytest.mark.promise("examples:settings")
@every_example
def test_the_settings_of_an_example_are_complete(example: Example) -> None:
    plan = read_example_plan(example.folder / "settings.yaml")
    assert plan.tune["schedule"]["steps"] > 0
    with pytest.raises(ConfigurationError, match="tempratur"):
        read_example_plan(example.folder / "settings.yaml", ["tempratur=1"])


@pytest.mark.promise("examples:learn")
async def test_a_teacher_becomes_a_model_that_engines_can_serve(tmp_path: Path) -> None:
    plan = ExamplePlan.model_validate({"model": {"layers": 1, "heads": 1, "words": 400}})
    shown = await demonstrate(COUNTDOWN, COUNTDOWN.make_tasks("train", 6, 0), 0)
    said: list[str] = []
    made = make_and_fine_tune(COUNTDOWN, plan, shown, tmp_path / "fine_tuned", 0, said.append)
    names = {path.name for path in made.iterdir()}
    assert {"config.json", "tokenizer.json"} <= names


@pytest.mark.promise("examples:base_model")
async def test_an_example_fine_tunes_the_model_that_its_settings_name(tmp_path: Path) -> None:
    shown = await demonstrate(COUNTDOWN, COUNTDOWN.make_tasks("train", 2, 0), 0)
    plan = ExamplePlan.model_validate({"model": {"layers": 1, "heads": 1, "words": 400}})
    base = make_and_fine_tune(COUNTDOWN, plan, shown, tmp_path / "base/fine_tuned", 0, print)
    plan = ExamplePlan.model_validate({"base_model": str(base)})
    tuned = make_and_fine_tune(COUNTDOWN, plan, shown, tmp_path / "fine_tuned", 0, print)
    before, after = ((folder / "model.safetensors").read_bytes() for folder in (base, tuned))
    assert len(before) == len(after)
    assert before != after
    assert not (tmp_path / "model").exists()


@pytest.mark.promise("examples:base_model")
@pytest.mark.parametrize("example", [COUNTDOWN, MATH_TOOL], ids=lambda each: each.name)
def test_an_example_has_settings_with_smollm2(example: Example) -> None:
    assert read_example_plan(example.folder / "smollm2.yaml").base_model == "smollm2"


@pytest.mark.promise("examples:settings")
def test_a_settings_file_that_is_missing_is_an_error_of_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(COUNTDOWN, ["--settings", "none"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "none.yaml: no such file" in line


@pytest.mark.promise("examples:report")
async def test_a_finished_example_only_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played = Played([0.0, 1.0] * 50, [0.0, 1.0] * 50, [1.0] * 80 + [0.0, 1.0] * 10)
    folder = tmp_path / "0"
    (folder / "tuned").mkdir(parents=True)
    (folder / "played.json").write_bytes(msgspec.json.encode(played))
    (folder / "tuned/metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.4}\n{"step": 2}\n')
    assert await run_example(COUNTDOWN, ExamplePlan(), folder) == played
    figures = example_figures("countdown", played, 0, 61.0, folder)
    gain, low, high = figures.gain
    assert gain == pytest.approx(0.4)
    assert 0 < low < gain < high
    assert figures.curve == [(1, 0.4)]
    assert "| gain, points | +40.0 (" in write_report(folder, figures)
    assert json.loads((folder / "figures.json").read_text())["success"]["tuned"] == 0.9
    assert (folder / "curve.svg").read_text().count("<polyline") == 1
    both = ["--table", str(folder), str(folder)]
    assert main(COUNTDOWN, [*both, "--curve", str(tmp_path / "both.svg")]) == 0
    assert (tmp_path / "both.svg").read_text().count("<polyline") == 2
    assert capsys.readouterr().out.strip() == example_table([figures, figures])
    assert main(COUNTDOWN, [*both, "--curve", str(tmp_path / "none" / "both.svg")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.promise("examples:report")
@pytest.mark.parametrize("content", [None, "{}", "[1]", "\x00"])
def test_a_table_of_unfinished_runs_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    if content is not None:
        (tmp_path / "figures.json").write_text(content)
    assert main(COUNTDOWN, ["--table", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(tmp_path / "figures.json") in error


@pytest.mark.promise("examples:report")
@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("run.json", '["countdown", 1]', "choose another --out"),
        ("run.json", '["werewolves", 0]', "choose another --out"),
        ("run.json", "{", "remove it"),
        ("played.json", "[1]", "remove it"),
    ],
)
def test_a_folder_of_another_run_or_a_damaged_file_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, content: str, problem: str
) -> None:
    (tmp_path / file).write_text(content)
    assert main(COUNTDOWN, ["--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(tmp_path) in error
    assert problem in error


@pytest.mark.promise("examples:report")
def test_a_folder_that_can_not_be_made_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(COUNTDOWN, ["--out", str(tmp_path / "file" / "0")]) == 1
    assert "file" in capsys.readouterr().err


@pytest.mark.promise("examples:report")
def test_a_missing_extra_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_numpy(*_: object) -> str:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(sys.modules["examples.library.main"], "_run", without_numpy)
    assert main(COUNTDOWN, []) == 1
    assert "needs the extra train" in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.promise("examples:learn")
@every_example
async def test_an_example_learns(example: Example, tmp_path: Path) -> None:
    make_environment()
    plan = read_example_plan(example.folder / "settings.yaml", [f"python={PYTHON}"])
    played = await run_example(example, plan, tmp_path)
    figures = example_figures(example.name, played, 0, 0.0, tmp_path)
    assert figures.gain[1] > 0
    assert await run_example(example, plan, tmp_path) == played


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.promise("examples:base_model")
@pytest.mark.parametrize("example", [COUNTDOWN, MATH_TOOL], ids=lambda each: each.name)
async def test_an_example_tunes_smollm2(example: Example, tmp_path: Path) -> None:
    make_environment()
    overrides = [f"python={PYTHON}", f"base_model={real_model()}"]
    plan = read_example_plan(example.folder / "smollm2.yaml", overrides)
    played = await run_example(example, plan, tmp_path)
    figures = example_figures(f"{example.name}_smollm2", played, 0, 0.0, tmp_path)
    assert len(figures.curve) == plan.tune["schedule"]["steps"]
    assert figures.success["fine_tuned"] > 0
