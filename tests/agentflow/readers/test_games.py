"""Tasks of reasoning-gym and games of textarena."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow.errors import ConfigurationError
from agentflow.readers import GameFailure, open_text_game, read_tasks, score_reasoning_gym, task_record
from agentflow.trace import Task


@pytest.mark.promise("readers:reasoning_gym")
def test_tasks_of_reasoning_gym_are_scored_by_their_own_scorers(tmp_path: Path) -> None:
    tasks = list(read_tasks("reasoning_gym:countdown,gcd?size=2&seed=1&", columns={}))
    assert [task.id for task in tasks] == ["countdown/1/0", "gcd/1/0", "countdown/1/1", "gcd/1/1"]
    assert tasks == list(read_tasks("reasoning_gym:countdown,gcd?size=2&seed=1"))
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(task_record(task)) for task in tasks))
    for task in read_tasks(path):
        assert score_reasoning_gym(f"I think <answer>{task.references[0]}</answer>", task) == 1.0
        assert score_reasoning_gym("no idea", task) < 0.1


@pytest.mark.promise("readers:reasoning_gym_confined")
def test_an_answer_that_is_a_program_is_not_run(tmp_path: Path) -> None:
    task = next(read_tasks("reasoning_gym:countdown?size=1&seed=1"))
    mark = tmp_path / "mark"
    for program in (f"__import__('os').system('touch {mark}')", f"open('{mark}', 'w').write('x')"):
        assert score_reasoning_gym(program, task) < 0.1
    assert not mark.exists()
    assert score_reasoning_gym(task.references[0], task) == 1.0


@pytest.mark.promise("readers:reasoning_gym_confined")
def test_a_task_that_names_something_else_has_no_score() -> None:
    origin: dict[str, Any] = {"dataset": "os.system", "size": 1, "seed": 0, "number": 0, "config": {}}
    forged = Task(
        index=0, id="x", question="?", metadata={"source": "reasoning_gym", "reasoning_gym": origin}
    )
    with pytest.raises(ValueError, match=r"the scorer of x failed: .*os\.system: there is no such data set"):
        score_reasoning_gym("1", forged)
    bomb = {
        "dataset": "gcd",
        "size": 1,
        "seed": 0,
        "number": 0,
        "config": {"max_num_terms": 10**9, "min_num_terms": 10**9},
    }
    forged = Task(index=0, id="x", question="?", metadata={"source": "reasoning_gym", "reasoning_gym": bomb})
    with pytest.raises(ValueError, match="the scorer of x failed"):
        score_reasoning_gym("1", forged)
    with pytest.raises(ValueError, match="x is not a task of reasoning_gym"):
        score_reasoning_gym("1", Task(index=0, id="x", question="?"))


BROKEN = [
    ("reasoning_gym:countdwn", "there is no such data set; did you mean countdown"),
    ("reasoning_gym:gcd?sise=1", "check its options"),
    ("reasoning_gym:gcd?size=0", "size is 0"),
    ("reasoning_gym:gcd?size=many", "size: Expected `int`"),
    ("textarena:TicTacTo-v0", "there is no such game; did you mean TicTacToe-v0"),
    ("textarena:TicTacToe-v0?players=7", "it can't be begun: .*players"),
    ("textarena:TicTacToe-v0?color=red", "it can't be begun: TypeError"),
]


@pytest.mark.promise("readers:games_refused")
@pytest.mark.parametrize(("source", "message"), BROKEN)
def test_a_wrong_name_or_option_is_one_line(source: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        next(read_tasks(source))
    assert "\n" not in str(caught.value)


def play(task: Task, moves: list[str]) -> list[tuple[int, str]]:
    seen: list[tuple[int, str]] = []
    with open_text_game(task) as game:
        for move in moves:
            seen.append((game.player, game.observation))
            game.step(move)
        assert game.done and game.rewards == {0: 1.0, 1: -1.0}
        with pytest.raises(GameFailure, match="the game is over"):
            game.step("[8]")
    return seen


@pytest.mark.promise("readers:textarena")
def test_a_game_is_stepped_until_its_rewards() -> None:
    task, other = read_tasks("textarena:TicTacToe-v0?size=2&seed=1")
    assert "Tic Tac Toe" in task.question and task.metadata["textarena"] != other.metadata["textarena"]
    moves = ["[0]", "[3]", "[1]", "[4]", "[2]"]
    seen = play(task, moves)
    assert [player for player, _ in seen] == [0, 1, 0, 1, 0]
    with (
        pytest.raises(GameFailure, match="x is not a task of textarena"),
        open_text_game(Task(index=0, id="x", question="?")),
    ):
        pass


@pytest.mark.promise("readers:textarena")
def test_games_in_threads_do_not_share_their_randomness() -> None:
    task = next(read_tasks("textarena:SecretMafia-v0?size=1&seed=5&players=6"))

    def roles() -> list[str]:
        with open_text_game(task) as game:
            return [game.observation]

    alone = roles()
    together: list[list[str]] = []
    threads = [threading.Thread(target=lambda: together.append(roles())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [alone] * 4
