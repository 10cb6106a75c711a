"""Tune an agent for AppWorld: `python examples/appworld/run.py --program …/bin/appworld --root FOLDER policy.model=…`."""

import argparse
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.gateway import EpisodeOutcome
from agentflow.trace import Task
from examples.appworld.worlds import AppWorlds
from examples.library import ChatPolicy, chat

__all__ = ["code_in", "main", "make_solve", "read_tasks"]

TURNS, LONGEST, OBSERVATION = 15, 1024, 4000
"""Number of turns, tokens of an answer, and characters of an observation."""
_CODE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)
_PROMPT = """You are the assistant of {first_name} {last_name} ({email}, {phone_number}) and act through the APIs of apps.
Answer with one block of Python code at a time, in ```python fences; what it prints is your next observation.
`apis.api_docs.show_app_descriptions()`, `apis.api_docs.show_api_descriptions(app_name=…)` and
`apis.api_docs.show_api_doc(app_name=…, api_name=…)` describe the APIs; `apis.supervisor.show_account_passwords()` gives
passwords. When the task is done, call `apis.supervisor.complete_task(answer=…)`, without `answer` if none is asked for.

Task: {instruction}"""


def code_in(answer: str) -> str:
    """Return the code of an answer: its fenced block, or all of it."""
    found = _CODE.search(answer)
    return found[1] if found else answer


def read_tasks(root: Path, part: str) -> list[Task]:
    """Read the ids of a part of the data: `train`, `dev`, `test_normal` or `test_challenge`.

    :raises ConfigurationError: if there is none.
    """
    path = root / "data" / "datasets" / f"{part}.txt"
    try:
        ids = path.read_text(encoding="utf-8").split()
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}; choose train or dev") from error
    return [Task(index=index, id=name, question=name) for index, name in enumerate(ids)]


def make_solve(worlds: AppWorlds) -> Callable[[Task, ChatPolicy], Awaitable[EpisodeOutcome]]:
    """Return the agent: it writes code until it completes the task, or its turns are used up."""

    async def solve(task: Task, policy: ChatPolicy) -> EpisodeOutcome:
        ask = chat(policy, longest=LONGEST)
        async with worlds.open(task.id) as world:
            first = _PROMPT.format(instruction=world.instruction, **world.supervisor)
            messages = [{"role": "user", "content": first}]
            for _ in range(TURNS):
                answer = await ask(messages)
                shown = (await world.execute(code_in(answer)))[:OBSERVATION]
                if await world.completed():
                    break
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": shown}]
            success, share = await world.evaluate()
        return EpisodeOutcome(reward=float(success), success=success, metrics={"passed_tests": share})

    return solve


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune; run the same command to resume."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--program", type=Path, required=True, help="the command appworld of its environment")
    parser.add_argument("--root", type=Path, required=True, help="folder with its data")
    parser.add_argument("--worlds", type=int, default=4, help="number of concurrent worlds")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings that override settings.yaml"
    )
    given = parser.parse_args(arguments)

    async def work() -> None:
        train, held_out = (read_tasks(given.root, part) for part in ("train", "dev"))
        settings = Path(__file__).parent / "settings.yaml"
        # It imports the learner.
        from agentflow.tuner import atune

        async with AppWorlds(given.program, given.root, count=given.worlds) as worlds:
            await atune(
                make_solve(worlds),
                train,
                validation=held_out,
                config_path=settings,
                overrides=given.overrides,
            )

    try:
        anyio.run(work)
    except AgentFlowError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
