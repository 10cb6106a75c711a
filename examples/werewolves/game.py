"""Werewolves: two wolves among seven players. By night the wolves kill a villager, by day all vote a player out.

The wolves win as soon as they are as many as the villagers, and lose when both are out. Players see who is left, and the votes of the
day so far: `wolf ann partner bob day others cid dan eve votes dan`. They answer `vote dan`, or `kill dan` by night.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeAlias

from agentflow.trace import Task
from examples.library import Messages, Part, part_of

__all__ = ["PLAYERS", "WOLVES", "AskPlayer", "make_tasks", "play"]

AskPlayer: TypeAlias = Callable[[str, Messages], Awaitable[str]]
"""Asks a `wolf` or a `villager`."""
PLAYERS: Final = ["ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal", "ivy", "jan", "kim", "leo"]
"""Names; seven of them play."""
SEATS, WOLVES = 7, 2
"""Number of players, and of wolves."""


def make_tasks(part: Part, count: int, seed: int) -> list[Task]:
    """Make games: players in the order of their votes, and the wolves. Those of different parts have different players."""
    random = Random(f"werewolves {part} {seed}")
    tasks: list[Task] = []
    while len(tasks) < count:
        players = random.sample(PLAYERS, SEATS)
        if part_of(" ".join(sorted(players))) == part:
            task = Task(
                index=len(tasks),
                id=f"{part}-{len(tasks)}",
                question=" ".join(players),
                metadata={"wolves": random.sample(players, WOLVES)},
            )
            tasks.append(task)
    return tasks


async def play(task: Task, ask: AskPlayer) -> bool:
    """Play one game; return whether the wolves win.

    :param ask: asks a player.
    """
    living, wolves = task.question.split(), set[str](task.metadata["wolves"])
    for _ in range(SEATS):
        hunter = next(each for each in living if each in wolves)
        victim = _named(await ask("wolf", _prompt(hunter, wolves, living, "night", [])), "kill", living)
        if victim and victim not in wolves:
            living.remove(victim)
        if over(living, wolves):
            break
        votes: list[str] = []
        for player in living:
            role = "wolf" if player in wolves else "villager"
            answer = await ask(role, _prompt(player, wolves, living, "day", votes))
            if (suspect := _named(answer, "vote", living)) and suspect != player:
                votes.append(suspect)
        # The first to get the most votes is out.
        if votes:
            living.remove(Counter(votes).most_common(1)[0][0])
        if over(living, wolves):
            break
    return any(each in wolves for each in living) and over(living, wolves)


def over(living: list[str], wolves: set[str]) -> bool:
    """Return whether a game has ended: no wolf is left, or as many wolves as villagers."""
    count = sum(each in wolves for each in living)
    return count == 0 or 2 * count >= len(living)


def _named(answer: str, verb: str, living: list[str]) -> str:
    """Return the player that an answer names; empty: it names none that is left."""
    said, _, name = answer.partition(" ")
    return name if said == verb and name in living else ""


def _prompt(player: str, wolves: set[str], living: list[str], time: str, votes: list[str]) -> Messages:
    if player in wolves:
        partner = next((each for each in living if each in wolves and each != player), "none")
        others = [each for each in living if each not in wolves]
        head = f"wolf {player} partner {partner}"
    else:
        others = [each for each in living if each != player]
        head = f"villager {player}"
    shown = f" votes {' '.join(votes)}" if votes else ""
    return [{"role": "user", "content": f"{head} {time} others {' '.join(others)}{shown}"}]
