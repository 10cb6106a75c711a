"""Instructions of tasks, from the actions that solve them and the conditions on their result."""

import re

from agentflow.trajectory import InstructionRequest, TaskInstruction

_NAMED = re.compile(r"`(?:\./)?([^`]+)`")
_REPOSITORY = "git repository"


def instruct(request: InstructionRequest) -> TaskInstruction:
    """Return an instruction: for a shell the intents of the actions whose files are checked, otherwise the conditions."""
    conditions = [line.removeprefix("- ") for line in request.result.splitlines() if line.startswith("- ")]
    if request.kind != "terminal":
        goals = [each for each in conditions if each[:1].isupper()]
        return TaskInstruction(" ".join(goals or _wishes(conditions)))
    intents = [line.removeprefix("- ") for line in request.solution.splitlines() if line.startswith("- ")]
    return TaskInstruction(" ".join(each for each in intents if any(_asks(each, own) for own in conditions)))


def _asks(intent: str, condition: str) -> bool:
    """Tell whether an intent asks for what a condition checks."""
    if _REPOSITORY in condition:
        return _REPOSITORY in intent
    name = _NAMED.search(condition)
    return name is not None and re.search(rf"(?<![\w/]){re.escape(name[1])}(?![\w/])", intent) is not None


def _wishes(conditions: list[str]) -> list[str]:
    """Return conditions on a world as requests: what to carry, what to put where, and the states of things."""
    carried = [each.removeprefix("you carry ") for each in conditions if each.startswith("you carry ")]
    others = [each for each in conditions if not each.startswith("you carry ")]
    placed = [each for each in others if re.search(r" is (?:in|on) \w+(?: \w+)* \d+$", each)]
    puts = [f"Put {each.replace(' is ', ' ', 1)}." for each in placed]
    states = [
        f"{each[0].upper()}{each[1:].replace(' is ', ' must be ', 1)}."
        for each in others
        if each not in placed
    ]
    return [*puts, *([f"Carry {_joined(carried)}."] if carried else []), *states]


def _joined(clauses: list[str]) -> str:
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"
