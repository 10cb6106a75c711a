"""Tasks of a terminal: the state of a workspace, conditions from its differences, and tasks from bash trees."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, NamedTuple

import pytest

from agentflow.engine import GrowthSettings
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.tasks import State, StateCondition, TaskAttempt, TerminalState, VerifiableTask, check_task
from agentflow.trace import Action, Tree
from tests.agentflow.tasks._trees import Workshop, workshop


class Derived(NamedTuple):
    """Tree with its tasks."""

    tree: Tree
    page: Page
    tasks: tuple[VerifiableTask, ...]


SMALL = GrowthSettings(max_depth=3, branching_factor=2, depth_threshold=2)


@pytest.fixture(scope="module")
async def shop(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[Workshop]:
    async with workshop(
        TerminalState(), SandboxSettings(backends=["bash"]), ["bash_run"], SMALL, most=2
    ) as found:
        yield found


@pytest.fixture(scope="module")
async def derived(shop: Workshop) -> Derived:
    tree, page = await shop.grow(0), Page()
    return Derived(tree, page, (await shop.kind.derive(tree, page)).tasks)


def file(text: str, mode: str = "644", **others: str) -> Mapping[str, str]:
    """Return the properties of a text file."""
    return {
        "kind": "file",
        "mode": mode,
        "sha256": str(hash(text)),
        "text": text,
        "lines": str(text.count("\n") + 1),
        **others,
    }


LONG = "\n".join(f"line {number}" for number in range(30))


@pytest.mark.promise("tasks:terminal:conditions")
@pytest.mark.parametrize(
    ("before", "after", "conditions"),
    [
        ({}, {"a": file("x")}, ["`a` has exactly this content: x"]),
        ({"a": file("x")}, {}, ["`a` does not exist"]),
        ({"d": {"kind": "directory"}, "d/a": file("x")}, {}, ["`d` does not exist"]),
        ({"a": file("x")}, {"a": file("x", "640")}, ["the mode of `a` is 640"]),
        ({}, {"a": file("x", "755")}, ["`a` has exactly this content: x"]),
        ({}, {"l": {"kind": "symlink", "mode": "777", "target": "a"}}, ["`l` is a symbolic link to `a`"]),
        ({}, {"d": {"kind": "directory", "mode": "755"}}, ["`d` is a directory"]),
        ({}, {"d": {"kind": "directory"}, "d/a": file("x")}, ["`d/a` has exactly this content: x"]),
        (
            {"a": file(LONG)},
            {"a": file(f"{LONG}\nnew")},
            ["`a` contains the line new", "`a` has 31 lines"],
        ),
        ({}, {"a.json": file("{}", json="{}")}, ["`a.json` has exactly this content: {}"]),
        (
            {},
            {"a.tar": {"kind": "file", "mode": "644", "sha256": "1", "members": '{"x": "2"}'}},
            ["the archive `a.tar` has exactly these files: x"],
        ),
        ({}, {"run.sh": file("#!/bin/sh", "755", script="yes"), "./run.sh": {"output": "7", "exit": "0"}}, ["running `./run.sh` in the home directory prints: 7"]),
        ({}, {"run.sh": file("#!/bin/sh", "755", script="yes"), "./run.sh": {"output": "7", "exit": "1"}}, []),
        (
            {},
            {"repository r": {"branch": "main", "commits": '["Add x"]', "changes": "[]"}},
            [
                "in the git repository `r` the branch is `main`",
                "in the git repository `r` the commits, newest first, are `Add x`",
                "in the git repository `r` the uncommitted files are: none",
            ],
        ),
        ({"a": file("x")}, {"a": file("x")}, []),
    ],
)  # fmt: skip
def test_conditions_are_enumerated_from_the_difference_of_two_states(
    before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]], conditions: list[str]
) -> None:
    reader = TerminalState()
    found = reader.differences(before, after)
    assert [reader.says(each) for each in found] == conditions
    assert all(each.holds(after) and not each.holds(before) for each in found)
    assert [StateCondition.of(each.predicate("", reader.probe(each))) for each in found] == list(found)


@pytest.mark.promise("tasks:terminal:repeatable")
@pytest.mark.parametrize(
    ("command", "repeatable"),
    [
        ("sort a > b; cut -d, -f2 date.csv | uniq -c", True),
        ("grep time log && echo $HOME 2>&1", True),
        ("date > a", False),
        ("echo $(date +%s)", False),
        ("echo $RANDOM", False),
        ("ls -l > a", False),
        ("find . -mtime +1 -ls", False),
        ("head -c 9 /dev/urandom", False),
        ("python3 -c 'import random; print(random.random())'", False),
        ("sleep 9 & echo x", True),
        ("python3 -m http.server &", False),
        ("shuf a | head -1", False),
        ("ps aux | wc -l", False),
    ],
)
def test_commands_that_depend_on_the_moment_make_no_task(command: str, repeatable: bool) -> None:
    actions = (Action("bash_run", {"command": command}),)
    expected = repeatable and "sleep" not in command
    assert TerminalState().repeatable((), actions) is expected
    assert TerminalState().repeatable(actions, ()) is expected


@pytest.mark.promise("tasks:terminal:layout")
async def test_the_layout_of_tables_and_numbers_does_not_matter() -> None:
    async with Sandbox(backends=["bash"]) as sandbox:
        commands = (
            "printf '{\"b\": 1,\\n \"a\": [2]}' > x.json; printf 'a, b\\n1,\"2\"\\n' > x.csv; printf '  3 a \\n\\n' > x",
            "printf '{\"a\": [2], \"b\": 1}\\n' > x.json; printf 'a,b\\r\\n1,2' > x.csv; printf '3 a' > x",
        )
        states: list[Mapping[str, Mapping[str, str]]] = []
        for command in commands:
            await sandbox.execute("bash_run", {"command": command})
            states.append(await TerminalState().read(sandbox))
    assert TerminalState().differences(*states) == ()


def attempts_of(task: VerifiableTask) -> set[str]:
    """Return the kinds of the attempts that must fail."""
    return {each.name.partition("/")[0] for each in task.wrong}


async def check_tasks(shop: Workshop, tasks: Sequence[VerifiableTask]) -> None:
    """Check that each task tells its solution from everything else."""
    for task in tasks:
        check = await check_task(task, shop.kind, Page())
        assert check.accepted, (task, check)
        verdicts = {trial.attempt: [one.passed for one in trial.verdicts] for trial in check.trials}
        assert verdicts.pop("gold") == [True, True]
        assert set(map(tuple, verdicts.values())) == {(False, False)}
        assert "initial" in verdicts
        assert attempts_of(task) >= {"no_op", "sibling"}


@pytest.mark.promise("tasks:terminal:verified")
async def test_only_the_solution_of_a_terminal_task_passes(shop: Workshop, derived: Derived) -> None:
    tasks = (*derived.tasks, *await shop.tasks(2))
    assert len(tasks) >= 3
    assert any("shortcut" in attempts_of(task) for task in tasks)
    await check_tasks(shop, tasks)


@pytest.mark.soak
@pytest.mark.promise("tasks:terminal:verified")
async def test_only_the_solutions_of_forty_terminal_tasks_pass(shop: Workshop) -> None:
    checked = 0
    while checked < 40:
        tasks = await shop.tasks(checked)
        await check_tasks(shop, tasks)
        checked += len(tasks)


async def state_of(sandbox: Sandbox) -> State:
    """Return the state of a sandbox, read in a fork."""
    async with await sandbox.fork() as fork:
        return await TerminalState().read(fork)


@pytest.mark.promise("tasks:terminal:attempts")
async def test_attempts_are_forks_and_the_verifier_leaves_no_trace_in_them(
    shop: Workshop, derived: Derived
) -> None:
    task = derived.tasks[0]
    fakes = "ls() { :; }; cat() { echo faked; }; alias wc='echo 9'; PATH=/nowhere"
    fake = TaskAttempt(name="fake", actions=(Action("bash_run", {"command": fakes}),))
    verdicts: dict[str, bool] = {}
    async with await shop.kind.open(task) as start:
        before = await state_of(start)
        for attempt in (task.gold, *task.wrong, fake):
            async with await start.fork() as session:
                for action in attempt.actions:
                    await session.execute(action.tool, action.arguments)
                after = await state_of(session)
                verdicts[attempt.name] = (await shop.kind.verify(task, attempt, session)).passed
                assert await state_of(session) == after
        assert await state_of(start) == before
    assert [name for name, passed in verdicts.items() if passed] == ["gold"]


@pytest.mark.promise("tasks:terminal:journal")
async def test_tasks_derived_again_from_a_page_repeat_no_call(shop: Workshop, derived: Derived) -> None:
    done = (shop.roles.actions, shop.roles.instructions)
    again = await shop.kind.derive(derived.tree, derived.page)
    assert again.tasks == derived.tasks
    assert (shop.roles.actions, shop.roles.instructions) == done
    assert await shop.kind.derive(derived.tree, Page()) == again


@pytest.mark.promise("tasks:terminal:instruction")
def test_an_instruction_names_what_is_checked_and_does_not_give_it_away(derived: Derived) -> None:
    for task in derived.tasks:
        for predicate in task.verifier:
            path = predicate.expected["thing"].removeprefix("./").removeprefix("repository ")
            assert path.rpartition("/")[2] in task.instruction
            value = predicate.expected["value"]
            assert "\n" not in value or value not in task.instruction
